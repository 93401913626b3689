"""Quantizing a checkpoint: from float safetensors to a folder that transformers and vLLM load quantized."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lowbit._version import __version__
from lowbit.calibration import Moments
from lowbit.formats.compressed_tensors.plan import Item, Plan, existing_quantization, plan_checkpoint, read_config
from lowbit.formats.compressed_tensors.scheme import Scheme
from lowbit.formats.compressed_tensors.solved import SolvedWeights
from lowbit.formats.compressed_tensors.solver import Solver, solver_of
from lowbit.formats.compressed_tensors.stream import stream_shard
from lowbit.formats.pickled import PickledCheckpoint, is_pickled
from lowbit.formats.safetensors.checkpoint import INDEX, Checkpoint, inside
from lowbit.formats.safetensors.writer import ShardWriter
from lowbit.formats.statistics.fingerprint import model_fingerprint
from lowbit.formats.statistics.folder import Statistics
from lowbit.formats.work_folder import MANIFEST, Assembly, Finished, real_target
from lowbit.models.recipe import Recipe
from lowbit.models.report import ModelReport, WeightRow
from lowbit.models.weights import method_for
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.files.atomic import refuse_unwritable, written_whole

Progress = Callable[[int, int, str], None]  # (bytes of the source done, total, current tensor)

# Files with weights, which are not copied: they would be stale beside the new ones.
_SHARDS = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt")
_WEIGHTS = (*_SHARDS, ".h5", ".msgpack", ".gguf", ".onnx", ".ot", ".npz")
_MAX_COPIED = 1 << 28
_FORMAT = "compressed-tensors"


def quantize_checkpoint(
    source: str | os.PathLike[str],
    target_folder: str | os.PathLike[str],
    recipe: Recipe | str | os.PathLike[str] | Mapping[str, Any],
    *,
    resume: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    max_shard_bytes: int = 5_000_000_000,
    allow_pickle: bool = False,
    data: Any = None,
    stats: Mapping[str, Moments] | None = None,
    sequence_length: int | None = None,
    max_sequences: int | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> ModelReport:
    """Write the checkpoint quantized by a recipe, as compressed-tensors, and report what was done to each weight.

    data: text that shows what the layers of a causal language model are multiplied with: a `.txt` or `.jsonl` file, a
    folder of them, strings, or lists of tokens; it is cut into at most `max_sequences` (32) sequences of
    `sequence_length` (1024) tokens. The recipe's method "auto" is then GPTQ, layer by layer. stats: moments of the
    inputs by the names of weights, in place of data. max_memory: bytes of the whole process; where a layer's Gram
    matrix does not fit, its weights are quantized with mean squares alone, and the row says so. warn: gets notes on the
    text before any work.

    source: a `.safetensors` file, a folder, or an index of shards; `.bin` files only with `allow_pickle`. The target
    is there whole or not at all; `resume` continues an interrupted run and gives the same bytes. A link to a folder
    is followed. `overwrite` replaces a folder that lowbit wrote, and refuses any other that is not empty. With
    `strict` nothing is written if a weight that the recipe asks for cannot be quantized.

    >>> import tempfile
    >>> import numpy as np
    >>> from lowbit.runtime.files.container import write_arrays
    >>> w = np.random.default_rng(0).standard_normal((32, 128)).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_arrays(f"{folder}/model.safetensors", {"layers.0.q_proj.weight": w}, {"format": "pt"})
    ...     report = quantize_checkpoint(folder, f"{folder}/int4", "W4A16")
    >>> report.treated[0].how, report.treated[0].bytes_after
    ('int4 symmetric, groups of 128', 2128)
    """
    start = time.perf_counter()
    made = Recipe.of(recipe)
    target = Path(target_folder)
    refuse_unwritable(real_target(target))
    with open_checkpoint(source, allow_pickle=allow_pickle) as opened:
        if opened.folder.resolve().is_relative_to(target.resolve()):
            raise InvalidProblem(f"{target}: the source is in it; choose another folder")
        config = read_config(opened.folder)
        already = existing_quantization(opened.tensors, config)
        if already:
            raise InvalidProblem(f"{source}: already quantized ({already}); left alone")
        plan = plan_checkpoint(opened.tensors, config, made, max_shard_bytes)
        if strict:
            _refuse_skipped(plan)
        rest = _rest(opened.folder)
        if isinstance(stats, Statistics):
            stats.refuse_other(model_fingerprint(source))
        solver = solver_of(opened, plan, made, data, stats, sequence_length, max_sequences, max_memory)
        if warn is not None:
            for note in solver.notes:
                warn(note)
        fingerprint = _fingerprint(opened, config, made, max_shard_bytes, solver.fingerprint)
        with Assembly(target, fingerprint, resume=resume, overwrite=overwrite) as assembly:
            solved = SolvedWeights(assembly, plan.items)
            if not assembly.complete:
                if any(name not in assembly.finished for name in plan.shards):
                    solver.solve(solved, progress)
                _write(opened, plan, config, rest, assembly, solved, progress)
        schemes = {item.info.name: item.scheme for item in plan.items if item.scheme is not None}
        rows = [_completed(row, schemes.get(row.name), assembly, solved, solver) for row in plan.rows]
        after = sum(shard.nbytes for shard in assembly.finished.values())
        report = ModelReport(os.fspath(source), str(target), _FORMAT, made.to_dict(), rows, opened.nbytes, after)
        spent = time.perf_counter() - start
        notes = [*plan.notes, *solver.notes]
        if not config:
            notes.append("the source has no config.json; the new one holds only the quantization_config")
        if assembly.complete:
            notes.append(f"nothing to do: the target is complete ({MANIFEST})")
        return report.but(notes=tuple(notes), seconds=spent, lowbit_version=__version__)


def open_checkpoint(source: str | os.PathLike[str], *, allow_pickle: bool = False) -> Checkpoint:
    """The checkpoint at a path; pickles, which can run code when loaded, only if they are allowed."""
    path = Path(source)
    if not is_pickled(path):
        return Checkpoint.open(path)
    if not allow_pickle:
        raise InvalidProblem(f"{path}: weights in a pickle, which can run code; allow_pickle reads it, weights only")
    return PickledCheckpoint.open(path)


def _write(
    source: Checkpoint,
    plan: Plan,
    config: Mapping[str, Any],
    rest: list[Path],
    assembly: Assembly,
    solved: SolvedWeights,
    progress: Progress | None,
) -> None:
    total = sum(item.info.nbytes for item in plan.items)
    done = sum(item.info.nbytes for name in assembly.finished for item in plan.shards.get(name, ()))
    left = sum(item.nbytes for name, items in plan.shards.items() if name not in assembly.finished for item in items)
    free = shutil.disk_usage(assembly.folder).free
    if left > free:
        raise OSError(errno.ENOSPC, f"{left} bytes are to be written, {free} are free", str(assembly.target))

    def tell(item: Item, nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total, item.info.name)

    for name, items in plan.shards.items():
        if name in assembly.finished:
            continue
        tensors = [stored for item in items for stored in item.stored]
        with ShardWriter(assembly.folder / name, tensors, {"format": "pt"}) as shard:
            losses = stream_shard(source, items, shard, tell, solved)
        predicted, methods = solved.figures(items)
        assembly.finish(name, Finished(shard.nbytes, shard.checksum, losses, predicted, methods))
    for file in rest:
        with open(file, "rb") as given, written_whole(assembly.folder / file.name, binary=True) as copy:
            shutil.copyfileobj(given, copy)
    _write_json(assembly.folder / "config.json", {**config, "quantization_config": plan.quantization_config})
    if len(plan.shards) > 1:
        where = {s.name: name for name, items in plan.shards.items() for item in items for s in item.stored}
        _write_json(assembly.folder / INDEX, {"metadata": {"total_size": plan.nbytes}, "weight_map": where})
    solved.discard()
    assembly.commit()


def _completed(
    row: WeightRow, scheme: Scheme | None, assembly: Assembly, solved: SolvedWeights, solver: Solver
) -> WeightRow:
    """The row with what was measured."""
    if scheme is None:
        return row
    shard = next(s for s in assembly.finished.values() if row.name in s.sqnr_db)
    note = "; ".join(filter(None, (row.note, solver.remarks.get(row.name))))
    return dataclasses.replace(
        row,
        sqnr_db=shard.sqnr_db[row.name],
        method=shard.methods.get(row.name) or method_for(scheme.weights),
        predicted_db=shard.predicted_db.get(row.name),
        seconds=solved.seconds.get(row.name, 0.0),
        note=note,
    )


def _rest(folder: Path) -> list[Path]:
    """Files to copy, such as tokenizer and generation settings: small ones without weights. None without a
    config.json, since the folder is then not a model's."""
    if not (folder / "config.json").is_file():
        return []
    names = sorted(f.name for f in folder.iterdir() if f.is_file() and f.stat().st_size <= _MAX_COPIED)
    kept = (n for n in names if not n.startswith(".") and n != "config.json" and not n.endswith(_WEIGHTS))
    return [inside(folder, name, name) for name in kept]


def _write_json(path: Path, value: Any) -> None:
    with written_whole(path) as file:
        file.write(json.dumps(value, indent=2) + "\n")


def _refuse_skipped(plan: Plan) -> None:
    skipped = [row for row in plan.rows if row.skipped]
    if skipped:
        more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        raise InvalidProblem(f"strict: {skipped[0].name} cannot be treated: {skipped[0].why_not}{more}")


def _fingerprint(
    source: Checkpoint, config: Mapping[str, Any], recipe: Recipe, max_shard_bytes: int, statistics: Any
) -> str:
    """A digest of everything that the output depends on; the contents of the source count by size and time."""
    files = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in source.files]
    tensors = [(t.name, t.dtype, t.shape, t.file.name, t.offset) for t in source.tensors.values()]
    said = [__version__, files, tensors, config, recipe.to_dict(), max_shard_bytes, statistics]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
