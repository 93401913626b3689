"""ONNX models written whole or not at all, with weights beside the file where one file cannot hold them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from lowbit.errors import InvalidProblem
from lowbit.formats.onnx.model_file import byte_count, external_place, subgraphs, tensor_array, tensors
from lowbit.whole_file import sync_directory

__all__ = ["save_model"]

_LARGEST = (1 << 31) - (1 << 20)  # bytes of one protobuf message, with room for what is not weights
_INSIDE = 1024  # bytes; smaller tensors stay in the model file, where shape inference sees them
_PAGE = 4096  # what a runtime can map


def save_model(
    proto: ModelProto,
    source: Path | None,
    target: Path,
    external_data: bool | str,
    overwrite: bool,
    check: Callable[[Path], None] | None,
) -> int:
    """Writes the model and, if asked or needed, its data file; returns the bytes of both. See Graph.save."""
    if external_data not in (True, False, "auto"):
        raise InvalidProblem(f"external_data: {external_data!r}; expected True, False or 'auto'")
    folder = None if source is None else source.parent
    data_file = target.with_name(f"{target.name}.data")
    _refuse_inputs(proto, source, folder, target, data_file, overwrite)
    total = sum(byte_count(t) for t in tensors(proto.graph))
    if total > _LARGEST and external_data is False:
        raise InvalidProblem(f"external_data: False; {total} bytes of weights are more than one ONNX file can hold")
    outside = external_data is True or total > _LARGEST
    with _staged(target, [data_file] if outside else []) as staging:
        beside = staging / data_file.name
        written = _write_data(proto, folder, beside) if outside else _with_data_inside(proto, folder)
        with open(staging / target.name, "xb") as file:
            file.write(written.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(staging / target.name)
        size = sum(f.stat().st_size for f in staging.iterdir() if f.is_file())
    return size


def _refuse_inputs(
    proto: ModelProto, source: Path | None, folder: Path | None, target: Path, data_file: Path, overwrite: bool
) -> None:
    if target.is_dir():
        raise InvalidProblem(f"{target}: a folder; expected a file to write")
    if overwrite or source is None:
        return
    outside = [t for t in tensors(proto.graph) if t.data_location == TensorProto.EXTERNAL]
    read = {source.resolve()} | {external_place(t, folder)[0] for t in outside}
    for path in (target, data_file):
        if path.resolve() in read:
            raise InvalidProblem(f"{path}: the model is read from it; give another name, or overwrite=True")


@contextmanager
def _staged(target: Path, beside: list[Path]) -> Iterator[Path]:
    """A folder on the target's own disk: what is in it when the block ends is put in place, the target last. Until
    then, and whatever fails, all old files stay as they were."""
    staging = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    staging.mkdir()
    try:
        yield staging
        kept: list[tuple[Path, Path | None]] = []
        try:
            for path in (*beside, target):
                old = None
                if path.exists():
                    old = staging / f"{path.name}.old"
                    _linked(path, old)
                kept.append((path, old))
                os.replace(staging / path.name, path)
        except BaseException:
            for path, old in kept:
                if old is not None:
                    os.replace(old, path)
                elif not (staging / path.name).exists():
                    path.unlink(missing_ok=True)
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_directory(target.parent)


def _linked(path: Path, as_well: Path) -> None:
    """The same file under a second name, or a copy where the disk has no such names."""
    try:
        os.link(path, as_well)
    except OSError:
        shutil.copy2(path, as_well)


def _write_data(proto: ModelProto, folder: Path | None, path: Path) -> ModelProto:
    """Writes the large weights, one at a time, and returns the model that refers to them."""
    bare = _skeleton(proto, lambda t: byte_count(t) > _INSIDE and t.data_type != TensorProto.STRING)
    with open(path, "xb") as file:
        for old, new in zip(tensors(proto.graph), tensors(bare.graph), strict=True):
            if new.data_location != TensorProto.EXTERNAL:
                if old.data_location == TensorProto.EXTERNAL:
                    new.raw_data = _raw(old, folder)
                continue
            file.write(b"\0" * (-file.tell() % _PAGE))
            start = file.tell()
            _copy(old, folder, file.write)
            for key, value in (("location", path.name), ("offset", str(start)), ("length", str(file.tell() - start))):
                new.external_data.add(key=key, value=value)
        file.flush()
        os.fsync(file.fileno())
    return bare


def _with_data_inside(proto: ModelProto, folder: Path | None) -> ModelProto:
    if not any(t.data_location == TensorProto.EXTERNAL for t in tensors(proto.graph)):
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    for t in tensors(made.graph):
        if t.data_location == TensorProto.EXTERNAL:
            t.raw_data = _raw(t, folder)
            t.ClearField("external_data")
            t.ClearField("data_location")
    return made


def _skeleton(proto: ModelProto, outside: Callable[[TensorProto], bool]) -> ModelProto:
    """A copy without the data of the tensors that go outside, which never holds them twice."""
    made = ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            _copy_graph(made.graph, value, outside)
        elif field.is_repeated:
            getattr(made, field.name).extend(value)
        elif field.message_type is not None:
            getattr(made, field.name).CopyFrom(value)
        else:
            setattr(made, field.name, value)
    return made


def _copy_graph(into: GraphProto, graph: GraphProto, outside: Callable[[TensorProto], bool]) -> None:
    for field, value in graph.ListFields():
        if field.name == "initializer":
            for t in value:
                _copy_tensor(into.initializer.add(), t, outside)
        elif field.name == "node":
            for node in value:
                if any(True for _ in subgraphs(node)) or any(a.type == AttributeProto.TENSOR for a in node.attribute):
                    new = into.node.add()
                    for f, v in node.ListFields():
                        if f.name != "attribute":
                            getattr(new, f.name).extend(v) if f.is_repeated else setattr(new, f.name, v)
                    for a in node.attribute:
                        _copy_attribute(new.attribute.add(), a, outside)
                else:
                    into.node.append(node)
        elif field.is_repeated:
            getattr(into, field.name).extend(value)
        else:
            setattr(into, field.name, value)


def _copy_attribute(into: AttributeProto, a: AttributeProto, outside: Callable[[TensorProto], bool]) -> None:
    if a.type == AttributeProto.GRAPH:
        into.name, into.type = a.name, a.type
        _copy_graph(into.g, a.g, outside)
    elif a.type == AttributeProto.TENSOR:
        into.name, into.type = a.name, a.type
        _copy_tensor(into.t, a.t, lambda t: False)  # runtimes read attributes from the model file only
    else:
        into.CopyFrom(a)


def _copy_tensor(into: TensorProto, t: TensorProto, outside: Callable[[TensorProto], bool]) -> None:
    if not outside(t):
        into.CopyFrom(t)
        if t.data_location == TensorProto.EXTERNAL:
            into.ClearField("external_data")
            into.ClearField("data_location")
        return
    into.name, into.data_type, into.doc_string = t.name, t.data_type, t.doc_string
    into.dims.extend(t.dims)
    into.data_location = TensorProto.EXTERNAL


def _raw(t: TensorProto, folder: Path | None) -> bytes:
    pieces: list[bytes] = []
    _copy(t, folder, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)


def _copy(t: TensorProto, folder: Path | None, write: Callable[[bytes], object]) -> None:
    """The tensor's bytes as a file holds them, in pieces."""
    if t.data_location == TensorProto.EXTERNAL:
        file, offset, length = external_place(t, folder)
        with open(file, "rb") as source:
            source.seek(offset)
            while length:
                piece = source.read(min(length, 1 << 24))
                if not piece:
                    raise InvalidProblem(f"{t.name!r}: {file.name} ended early")
                write(piece)
                length -= len(piece)
    elif t.HasField("raw_data"):
        write(t.raw_data)
    else:
        from onnx import numpy_helper

        write(numpy_helper.from_array(np.ascontiguousarray(tensor_array(t, folder)).reshape(tuple(t.dims))).raw_data)
