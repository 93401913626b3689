"""A large checkpoint against the machine: python -m benchmarks.checkpoint_stream [--gigabytes 8] [--dir FOLDER]

Generates a sharded bf16 checkpoint, quantizes it to W4A16 in a process of its own and compares with what the machine
can do: reading the same bytes from a cold cache, quantizing them from memory, writing as many bytes as come out with a
sync at the end, each alone and the best of several tries. A perfect stream takes as long as the slowest of the three.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import report_table

RESULT = Path(__file__).parent / "results" / "checkpoint-stream.json"
_PIECE = 8 << 20
_HIDDEN, _INNER, _WORDS = 4096, 14336, 32000
_MEMORY_LIMIT = 1_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--dir", type=Path, help="where there is room; a temporary folder in it is used")
    parser.add_argument("--recipe", default="W4A16")
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    free = shutil.disk_usage(options.dir or tempfile.gettempdir()).free
    asked = options.gigabytes
    options.gigabytes = min(asked, 0.45 * free / 1e9)  # source, result, and a spare
    if options.gigabytes < asked:
        print(f"{free / 1e9:.1f} GB are free: {options.gigabytes:.1f} GB instead of {asked:.1f}")
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="lowbit-stream-") as folder:
        row = _measured(Path(folder), options.gigabytes, options.recipe, options.tries)
    columns = [
        "recipe", "GB in", "GB out", "seconds", "read alone, s", "quantize alone, s", "write alone, s",
        "share of the slowest, %", "peak MB",
    ]  # fmt: skip
    report_table(f"A checkpoint of {row[1]:.0f} GB, streamed", columns, [row], RESULT)
    print(f"Peak memory below {_MEMORY_LIMIT / 1e6:.0f} MB: {row[-1] * 1e6 < _MEMORY_LIMIT}")


def _measured(folder: Path, gigabytes: float, recipe: str, tries: int) -> list[Any]:
    """The row of the table."""
    source, target = folder / "float", folder / "quantized"
    print(f"Load before: {os.getloadavg()[0]:.1f}; with more than a little other work the shares mean nothing.")
    _generate(source, int(gigabytes * 1e9))
    files = sorted(source.glob("*.safetensors"))
    nbytes = sum(f.stat().st_size for f in files)
    runs = []
    reads: list[float] = []
    writes: list[float] = []
    for _ in range(tries):  # in turns, so that a noisy moment of the disk hits them all
        reads.append(_read(files))
        _forget(files)
        shutil.rmtree(target, ignore_errors=True)
        with multiprocessing.get_context("spawn").Pool(1) as own_process:
            runs.append(own_process.apply(_run, (source, target, recipe)))
        out = sum(f.stat().st_size for f in target.glob("*.safetensors"))
        writes.append(_write(folder / "plain", out))
    alone = [min(reads), _quantize(nbytes), min(writes)]
    best = min(seconds for seconds, _ in runs)
    peak = max(grown for _, grown in runs)
    return [recipe, nbytes / 1e9, out / 1e9, best, *alone, 100 * max(alone) / best, peak / 1e6]


def _generate(folder: Path, nbytes: int) -> None:
    """Layers in the shapes of an 8B model until there are enough bytes; numbers of one normal block, each tensor from
    another place in it."""
    from lowbit.formats.safetensors.writer import ShardWriter, Stored

    folder.mkdir()
    numbers = np.random.default_rng(0).standard_normal(_PIECE, np.float32) * np.float32(0.02)
    block = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    inner = {"self_attn.q_proj": (_HIDDEN, _HIDDEN), "self_attn.k_proj": (1024, _HIDDEN),
             "self_attn.v_proj": (1024, _HIDDEN), "self_attn.o_proj": (_HIDDEN, _HIDDEN),
             "mlp.gate_proj": (_INNER, _HIDDEN), "mlp.up_proj": (_INNER, _HIDDEN),
             "mlp.down_proj": (_HIDDEN, _INNER), "input_layernorm": (_HIDDEN,)}  # fmt: skip
    shards: list[list[Stored]] = [[Stored("model.embed_tokens.weight", "BF16", (_WORDS, _HIDDEN))]]
    size, layer = shards[0][0].nbytes, 0
    while size < nbytes:
        for name, shape in inner.items():
            shards[-1].append(Stored(f"model.layers.{layer}.{name}.weight", "BF16", shape))
            size += shards[-1][-1].nbytes
        layer += 1
        if sum(t.nbytes for t in shards[-1]) > 1_500_000_000:
            shards.append([])
    index = {}
    shards = [shard for shard in shards if shard]
    for i, tensors in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        with ShardWriter(folder / name, tensors, {"format": "pt"}) as shard:
            for n, tensor in enumerate(tensors):
                index[tensor.name] = name
                left, at = tensor.nbytes // 2, (n * 7919 + i) * 64 % block.size
                while left:
                    part = block[at : at + left]
                    shard.write(tensor.name, part)
                    left, at = left - part.size, 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))


def _run(source: Path, target: Path, recipe: str) -> tuple[float, int]:
    """Seconds, and the bytes by which the memory of this process has grown at the most."""
    from lowbit.formats.compressed_tensors.convert import quantize_checkpoint

    start = _memory("VmRSS")
    began = time.perf_counter()
    quantize_checkpoint(source, target, recipe)
    return time.perf_counter() - began, _memory("VmHWM") - start


def _memory(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _forget(files: list[Path]) -> None:
    """Drops the files from the system's cache, so that reading them reads the disk."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read(files: list[Path]) -> float:
    buffer = bytearray(_PIECE)

    def work() -> None:
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    pass

    _forget(files)
    return _timed(work)


def _write(path: Path, nbytes: int) -> float:
    buffer = np.random.default_rng(1).integers(0, 256, _PIECE, np.uint8)

    def work() -> None:
        with open(path, "wb", buffering=0) as file:
            for start in range(0, nbytes, _PIECE):
                file.write(buffer[: min(_PIECE, nbytes - start)].data)
            os.fsync(file.fileno())

    seconds = _timed(work)
    path.unlink()
    return seconds


def _quantize(nbytes: int) -> float:
    """Seconds to quantize this number of bytes of bf16, from memory, at the best rate of several."""
    import ml_dtypes

    import lowbit as lb

    rows = np.random.default_rng(2).standard_normal((1024, _HIDDEN), np.float32).astype(ml_dtypes.bfloat16)
    best = min(_timed(lambda: lb.quantize(rows, "int4", axis=1, group_size=128) and None) for _ in range(20))
    return best * nbytes / rows.nbytes


if __name__ == "__main__":
    main()
