"""Writing ONNX models atomically, with external data where one file cannot hold them."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from lowbit.formats.onnx.model_file import byte_count, copy_fields, copy_graph, external_place, tensor_array, tensors
from lowbit.formats.work_folder import MANIFEST, WorkFolder
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.files.atomic import refuse_unwritable, sync_directory

_LARGEST = (1 << 31) - (1 << 20)  # bytes of one protobuf message, with room for what is not weights
_INSIDE = 1024  # bytes; smaller tensors stay in the model file, where shape inference sees them
_PAGE = 4096  # what a runtime can map
_PIECE = 1 << 24  # bytes read at once
_DIGITS = 16  # of the SHA-256 that a data file is named by


def save_model(
    proto: ModelProto,
    source: Path | None,
    target: Path,
    external_data: bool | str,
    overwrite: bool,
    check: Callable[[Path], None] | None,
) -> int:
    """Write the model and, on request or if needed, its data file; returns the bytes of both. See Graph.save."""
    if external_data not in (True, False, "auto"):
        raise InvalidProblem(f"external_data: {external_data!r}; expected True, False or 'auto'")
    folder = None if source is None else source.parent
    refuse_target(target)
    if source is not None and not overwrite:
        outside = [t for t in tensors(proto.graph) if t.data_location == TensorProto.EXTERNAL]
        if target.resolve() in {source.resolve(), *(external_place(t, folder)[0] for t in outside)}:
            raise InvalidProblem(f"{target}: the model is read from it; give another name, or overwrite=True")
    total = sum(byte_count(t) for t in tensors(proto.graph))
    if total > _LARGEST and external_data is False:
        raise InvalidProblem(f"external_data: False; {total} bytes of weights are more than one ONNX file can hold")
    work = WorkFolder(target.with_name(f".{target.name}.partial"), target)
    try:
        work.clear(keep=(MANIFEST,))
        work.mark({"fingerprint": target.name})
        if external_data is True or total > _LARGEST:
            written, data = _write_data(proto, folder, work.path, target.stem)
        else:
            written, data = _with_data_inside(proto, folder), None
        model = work.path / target.name
        with open(model, "xb") as file:
            file.write(written.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(model)
        size = sum(f.stat().st_size for f in (model, data) if f is not None)
        _put_in_place(model, data, target, overwrite)
    finally:
        work.remove()
    return size


def refuse_target(target: Path) -> None:
    """Raise, before anything is computed, where no model can be written."""
    if target.is_dir():
        raise InvalidProblem(f"{target}: a folder; expected a file to write")
    if not target.parent.is_dir():
        raise InvalidProblem(f"{target}: its folder is not there")
    refuse_unwritable(target)


def _put_in_place(model: Path, data: Path | None, target: Path, overwrite: bool) -> None:
    """Rename the data first, the model last. A data file is named by its content, so that the old model keeps its data
    and the model at the target is complete at every moment. Data that no model reads are removed then."""
    placed = None
    try:
        if data is not None:
            beside = target.with_name(data.name)
            if not _holds_what_it_says(beside):
                if os.path.lexists(beside) and not overwrite:
                    raise InvalidProblem(f"{beside}: already there, with other content; remove it, or overwrite=True")
                placed = beside
                os.replace(data, beside)
                sync_directory(target.parent)  # the model must not reach the disk before what it reads
        os.replace(model, target)
    except BaseException:
        if placed is not None and data is not None and not data.exists():
            placed.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
    _remove_unread_data(target, None if data is None else data.name)


def _remove_unread_data(target: Path, kept: str | None) -> None:
    """Remove data files of earlier models at the target: named by lowbit, with the content that their name implies,
    and mentioned by no model in the folder."""
    named = re.compile(re.escape(target.stem) + rf"-[0-9a-f]{{{_DIGITS}}}\.data")
    unread = [f for f in target.parent.iterdir() if named.fullmatch(f.name) and f.name != kept]
    models = [f for f in target.parent.iterdir() if f.suffix == target.suffix] if unread else []
    for file in unread:
        if not any(_mentions(model, file.name) for model in models) and _holds_what_it_says(file):
            file.unlink(missing_ok=True)


def _holds_what_it_says(file: Path) -> bool:
    """Whether lowbit wrote a data file: a regular file whose content has the digest in its name."""
    if file.is_symlink() or not file.is_file():
        return False
    content = hashlib.sha256()
    with open(file, "rb") as opened:
        while piece := opened.read(_PIECE):
            content.update(piece)
    return file.name.endswith(f"-{content.hexdigest()[:_DIGITS]}.data")


def _mentions(model: Path, name: str) -> bool:
    """Whether the bytes of a model contain the name of a data file."""
    if not model.is_file() or not model.stat().st_size:
        return False
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


def _write_data(proto: ModelProto, folder: Path | None, into: Path, stem: str) -> tuple[ModelProto, Path]:
    """Write the large weights one at a time; returns the model that refers to them, and their file."""
    bare = ModelProto()
    copy_fields(bare, proto, "graph")
    places: list[tuple[TensorProto, int, int]] = []
    content, at = hashlib.sha256(), 0
    with open(into / "data", "xb") as file:

        def write(piece: bytes) -> None:
            nonlocal at
            file.write(piece)
            content.update(piece)
            at += len(piece)

        def moved(graph: GraphProto, part: Any) -> bool:
            """Whether a large initializer is now in the file."""
            if not isinstance(part, TensorProto) or byte_count(part) <= _INSIDE:
                return False
            new = graph.initializer.add(name=part.name, data_type=part.data_type, doc_string=part.doc_string)
            new.dims.extend(part.dims)
            write(b"\0" * (-at % _PAGE))
            start = at
            _copy(part, folder, write)
            places.append((new, start, at - start))
            return True

        copy_graph(bare.graph, proto.graph, moved)
        file.flush()
        os.fsync(file.fileno())
    _take_in(bare, folder)  # runtimes read attributes from the model file only
    path = into / f"{stem}-{content.hexdigest()[:_DIGITS]}.data"
    os.rename(into / "data", path)
    for new, start, length in places:
        new.data_location = TensorProto.EXTERNAL
        for key, value in (("location", path.name), ("offset", str(start)), ("length", str(length))):
            new.external_data.add(key=key, value=value)
    return bare, path


def _with_data_inside(proto: ModelProto, folder: Path | None) -> ModelProto:
    if not any(t.data_location == TensorProto.EXTERNAL for t in tensors(proto.graph)):
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    _take_in(made, folder)
    return made


def _take_in(proto: ModelProto, folder: Path | None) -> None:
    """Replace external data by their bytes."""
    for t in tensors(proto.graph):
        if t.data_location == TensorProto.EXTERNAL:
            pieces: list[bytes] = []
            _copy(t, folder, pieces.append)
            t.raw_data = b"".join(pieces)
            t.ClearField("external_data")
            t.ClearField("data_location")


def _copy(t: TensorProto, folder: Path | None, write: Callable[[bytes], object]) -> None:
    if t.data_location == TensorProto.EXTERNAL:
        file, offset, length = external_place(t, folder)
        with open(file, "rb") as source:
            source.seek(offset)
            while length:
                piece = source.read(min(length, _PIECE))
                if not piece:
                    raise InvalidProblem(f"{t.name!r}: {file.name} ended early")
                write(piece)
                length -= len(piece)
    elif t.HasField("raw_data"):
        write(t.raw_data)
    else:
        write(numpy_helper.from_array(tensor_array(t, folder)).raw_data)
