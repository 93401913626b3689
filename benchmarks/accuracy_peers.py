"""What peers make of the same weights with the same calibration data: ggml here, others in environments of their own.

    python -m benchmarks.accuracy --beds smollm2 --peers ggml,hqq,gptqmodel --json OUT

An environment under build/peers is made at the first run, with the same torch. `accuracy_peer_runs` is what runs in it:
it quantizes a checkpoint and writes the numbers that its codes stand for, which the bed then judges like ours.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from benchmarks.accuracy_beds import Bed
from benchmarks.minilm import Array
from benchmarks.peers import ggml
from lowbit.calibration import Moments

ENVIRONMENTS = Path("build/peers")
TORCH = "torch==2.13.0"
RUNNER = Path(__file__).with_name("accuracy_peer_runs.py")
_GGML_TYPES = ("Q4_0", "Q4_1", "IQ4_NL", "Q4_K", "Q3_K", "Q2_K")


@dataclass(frozen=True)
class Packages:
    """What a peer's environment has: packages with what they need, and packages alone."""

    whole: tuple[str, ...]
    alone: tuple[str, ...] = ()


_TRANSFORMERS = ("transformers==5.22.2", "safetensors", "numpy")
PACKAGES = {
    "hqq": Packages((*_TRANSFORMERS, "hqq==0.2.8")),
    "gptqmodel": Packages(
        (
            *_TRANSFORMERS, "accelerate", "datasets", "threadpoolctl", "logbar", "tokenicer", "device-smi", "pypcre",
            "defuser", "dill", "protobuf", "setuptools", "wheel", "packaging", "pillow", "requests",
        ),
        ("gptqmodel==7.6.0",),
    ),
    "auto-round": Packages((*_TRANSFORMERS, "auto-round==0.16.0", "sentencepiece")),
    "llmcompressor": Packages(("numpy", "safetensors", "llmcompressor==0.14.0")),
}  # fmt: skip
PEERS = ("ggml", *PACKAGES)
_SETTINGS = {"GPTQMODEL_CPU_WORKERS": "2"}  # else it asks for more workers than it has, and stops


@dataclass(frozen=True)
class Run:
    """A peer, and what it is asked for."""

    peer: str
    bits: int
    group: int
    type_name: str = ""  # of ggml

    @property
    def name(self) -> str:
        return f"{self.peer} {self.type_name}".strip()


def runs_of(peer: str) -> list[Run]:
    """All that is measured of a peer."""
    if peer == "ggml":
        return [Run(peer, int(name.lstrip("IQ")[0]), ggml_group(name), name) for name in _GGML_TYPES]
    return [Run(peer, bits, 64) for bits in (4, 3)]


def peer_weights(bed: Bed, run: Run, moments: Mapping[str, Moments]) -> tuple[dict[str, Array], dict[str, float]]:
    """The dequantized weights by layer, true bits, and where another process made them, its seconds and memory."""
    if run.peer == "ggml":
        return dict(ggml_solutions(bed, run.type_name, moments)), {"true bits": ggml_bits(run.type_name)}
    if bed.checkpoint is None:
        raise ValueError(f"{run.peer}: {bed.name} is no checkpoint that it reads")
    return run_peer(run, bed.checkpoint, np.concatenate([batch.numpy() for batch in bed.batches]))


def ggml_solutions(bed: Bed, type_name: str, moments: Mapping[str, Moments]) -> Iterator[tuple[str, Array]]:
    """Each layer's name and dequantized weight, by ggml with E[x^2] as its importance matrix.

    Types of 256 weights per block take rows that are no multiple of it joined, which llama.cpp does not: it would store
    them as another type.
    """
    for name, w in bed.floats.items():
        yield name, ggml_dequantized(w, type_name, moments[name].diagonal())


def ggml_dequantized(w: Array, type_name: str, importance: Array) -> Array:
    """A weight [outputs, inputs] as a type of ggml, and back."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    joined = math.lcm(w.shape[1], block) // w.shape[1]
    if len(w) % joined:
        raise ValueError(f"{w.shape}: {joined} rows at a time make whole blocks of {type_name}")
    rows = np.ascontiguousarray(w, np.float32).reshape(len(w) // joined, -1)
    packed = np.empty((len(rows), rows.shape[1] // block * size), np.uint8)
    weights = np.ascontiguousarray(np.tile(importance, joined), np.float32)
    ggml().ggml_quantize_chunk(kind.value, rows.ctypes.data, packed.ctypes.data, 0, *rows.shape, weights.ctypes.data)
    return gguf.quants.dequantize(packed, kind).reshape(w.shape)


def ggml_bits(type_name: str) -> float:
    """True bits per weight."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    return 8 * size / block


def ggml_group(type_name: str) -> int:
    """The weights that share a scale of their own."""
    return 16 if type_name in ("Q3_K", "Q2_K") else 32


# ---- peers in their own environments ------------------------------------------------------------------


def python_of(peer: str) -> Path:
    """The Python of a peer's environment, which is made where there is none."""
    folder = ENVIRONMENTS / peer
    python, done = folder / "bin" / "python", folder / ".made"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraint = folder / "constraint.txt"
    constraint.write_text(TORCH + "\n", "utf-8")
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(constraint)]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, *PACKAGES[peer].whole], check=True)
    if PACKAGES[peer].alone:
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *PACKAGES[peer].alone], check=True)
    done.touch()
    return python


def run_peer(
    run: Run, checkpoint: Path, tokens: Array, minutes: float = 15
) -> tuple[dict[str, Array], dict[str, float]]:
    """The dequantized weights by module, with true bits, seconds and memory. Raises where it fails or takes longer."""
    python = python_of(run.peer)
    with tempfile.TemporaryDirectory(dir=ENVIRONMENTS) as folder:
        given, made = Path(folder) / "tokens.npy", Path(folder) / "weights.safetensors"
        np.save(given, tokens)
        asked = map(str, (run.peer, checkpoint, given, made, run.bits, run.group))
        command, environment = [str(python), str(RUNNER), *asked], os.environ | _SETTINGS
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60 * minutes, check=False, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"{run.peer}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return load_file(made), json.loads(done.stdout.splitlines()[-1])
