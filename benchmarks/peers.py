"""The peers, each built only when its turn comes: a package that is missing or fails is reported as that.

All run with the same number of threads on the same memory. ONNX Runtime is bound to that memory, so that
neither its input nor its output is copied or allocated; torch has no way to be given an output.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.onnx_call import onnx_call
from benchmarks.shapes import aligned
from benchmarks.timing import Contender

Array = npt.NDArray[Any]

TORCH, ORT, NUMPY = "torch", "ONNX Runtime", "NumPy"
GGML, GGUF, ORT_4BITS = "ggml Q4_0 (C)", "gguf Q4_0 (NumPy)", "ORT quantize_matmul_4bits"

_PACKAGES = (
    "numpy", "torch", "onnxruntime", "onnx", "gguf", "pywhispercpp", "ml_dtypes", "rich",
)  # fmt: skip
_Q4_0 = 2  # GGML_TYPE_Q4_0


@dataclass(frozen=True)
class Peers:
    """Makers of contenders that use this many threads."""

    threads: int = 1

    # ---- torch --------------------------------------------------------------------------------------

    def torch(self, build: Callable[[Any], Callable[[], Any]], name: str = TORCH, **fields: Any) -> Contender:
        """A contender of torch; `build` is given the module."""
        return Contender(name, lambda: build(torch_with(self.threads)), **fields)

    def torch_quantize(self, x: Array, scale: float, zero_point: int) -> Contender:
        def build(torch: Any) -> Callable[[], Any]:
            tensor = torch.from_numpy(x)
            return lambda: torch.quantize_per_tensor(tensor, scale, zero_point, torch.qint8)

        return self.torch(build, answer=lambda q: q.int_repr().numpy())

    def torch_quantize_channels(self, x: Array, scales: Array, axis: int) -> Contender:
        def build(torch: Any) -> Callable[[], Any]:
            tensor, scale = torch.from_numpy(x), torch.from_numpy(scales)
            zeros = torch.zeros(scales.size, dtype=torch.long)
            return lambda: torch.quantize_per_channel(tensor, scale, zeros, axis, torch.qint8)

        return self.torch(build, answer=lambda q: q.int_repr().numpy())

    def torch_dequantize(self, x: Array, scale: float, zero_point: int) -> Contender:
        def build(torch: Any) -> Callable[[], Any]:
            q = torch.quantize_per_tensor(torch.from_numpy(x), scale, zero_point, torch.qint8)
            return lambda: q.dequantize()

        return self.torch(build, answer=lambda y: y.numpy())

    def torch_aminmax(self, x: Array) -> Contender:
        def build(torch: Any) -> Callable[[], Any]:
            tensor = torch.from_numpy(x)
            return lambda: torch.aminmax(tensor)

        return self.torch(build, "torch.aminmax", answer=lambda r: [float(r.min), float(r.max)])

    # ---- ONNX Runtime -------------------------------------------------------------------------------

    def ort_quantize(self, x: Array, scale: float, zero_point: int) -> Contender:
        out = aligned(x.shape, np.int8)
        inputs = {"x": x, "scale": np.array(scale, x.dtype), "zero": np.array(zero_point, np.int8)}
        name = ORT if x.dtype == np.float32 else f"{ORT}, {x.dtype}"
        return Contender(name, lambda: onnx_call(self.threads, "QuantizeLinear", inputs, out), answer=lambda _: out)

    def ort_dequantize(self, codes: Array, scale: float, zero_point: int) -> Contender:
        out = aligned(codes.shape, np.float32)
        inputs = {"x": codes, "scale": np.array(scale, np.float32), "zero": np.array(zero_point, np.int8)}
        return Contender(ORT, lambda: onnx_call(self.threads, "DequantizeLinear", inputs, out), answer=lambda _: out)

    def ort_dequantize_int4(self, packed: Array, shape: tuple[int, ...], scale: Array, block: int) -> Contender:
        """`packed` holds two codes a byte, the first in the low bits, as ONNX and lowbit both have them."""
        out = aligned(shape, np.float32)
        inputs = {"x": packed, "scale": scale}
        options = {"axis": len(shape) - 1, "block_size": block} if block else {}

        def build() -> Callable[[], Any]:
            return onnx_call(self.threads, "DequantizeLinear", inputs, out, int4_shape=shape, **options)

        return Contender(ORT, build, answer=lambda _: out)

    def ort_matmul_4bits(self, w: Array, block: int, symmetric: bool) -> Contender:
        """Groups along K of a [K, N] matrix, its own layout; answers with the numbers the codes stand for."""
        k, n = w.shape
        groups = -(-k // block)
        packed, scale = np.zeros((n, groups, block // 2), np.uint8), np.zeros(n * groups, np.float32)
        zeros = np.zeros(n * -(-groups // 2), np.uint8)

        def build() -> Callable[[], Any]:
            from onnxruntime.capi._pybind_state import quantize_matmul_4bits

            return lambda: quantize_matmul_4bits(packed, w, scale, zeros, block, n, k, symmetric)

        def numbers(_: Any) -> Array:
            codes = np.stack([packed & 15, packed >> 4], -1).reshape(n, groups, block).astype(np.float32)
            zero = np.stack([zeros & 15, zeros >> 4], -1).reshape(n, -1)[:, :groups, None]
            by_column = (codes - (8 if symmetric else zero)) * scale.reshape(n, groups, 1)
            return by_column.reshape(n, -1)[:, :k].T

        return Contender(ORT_4BITS, build, answer=numbers, around=lambda: _on_cpus(self.threads))

    # ---- NumPy --------------------------------------------------------------------------------------

    def numpy_quantize(self, x: Array, scale: float, zero_point: int) -> Contender:
        return Contender(NUMPY, lambda: lambda: numpy_codes(x, scale, zero_point), answer=lambda q: q)

    def numpy_dequantize(self, codes: Array, scale: float, zero_point: int) -> Contender:
        s, z = np.float32(scale), np.float32(zero_point)
        return Contender(NUMPY, lambda: lambda: (codes.astype(np.float32) - z) * s, answer=lambda y: y)

    def numpy_min_max(self, x: Array) -> Contender:
        return Contender("np.min + np.max", lambda: lambda: (np.min(x), np.max(x)), answer=lambda r: r)

    # ---- ggml and gguf ------------------------------------------------------------------------------

    def ggml_quantize(self, w: Array) -> Contender:
        """llama.cpp's C, on one thread; its blocks have 32 elements."""
        out = _empty_q4_0(w)

        def build() -> Callable[[], Any]:
            quantize, source, target = ggml().ggml_quantize_chunk, w.ctypes.data, out.ctypes.data
            return lambda: quantize(_Q4_0, source, target, 0, *w.shape, None)

        def numbers(_: Any) -> Array:
            numbers = np.empty(w.shape, np.float32)
            ggml().dequantize_row_q4_0(out.ctypes.data, numbers.ctypes.data, w.size)
            return numbers

        return Contender(GGML, build, answer=numbers)

    def ggml_dequantize(self, w: Array) -> Contender:
        packed, out = _empty_q4_0(w), aligned(w.shape, np.float32)

        def build() -> Callable[[], Any]:
            library, source, target = ggml(), packed.ctypes.data, out.ctypes.data
            library.ggml_quantize_chunk(_Q4_0, w.ctypes.data, source, 0, *w.shape, None)
            return lambda: library.dequantize_row_q4_0(source, target, w.size)

        return Contender(GGML, build, answer=lambda _: out)

    def gguf_quantize(self, w: Array) -> Contender:
        def build() -> Callable[[], Any]:
            import gguf

            return lambda: gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_0)

        def numbers(packed: Array) -> Any:
            import gguf

            return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_0)

        return Contender(GGUF, build, answer=numbers)

    def gguf_dequantize(self, w: Array) -> Contender:
        def build() -> Callable[[], Any]:
            import gguf

            packed = gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_0)
            return lambda: gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_0)

        return Contender(GGUF, build, answer=lambda y: y)


def numpy_codes(x: Array, scale: npt.ArrayLike, zero_point: int) -> Array:
    """int8 codes of x."""
    codes: Array = np.clip(np.rint(x / np.asarray(scale, np.float32)) + zero_point, -128, 127).astype(np.int8)
    return codes


def package_versions() -> dict[str, str | None]:
    """Versions of every package that takes part; None where it is not installed."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    try:
        versions["ggml"] = ggml().ggml_version().decode()
    except (OSError, ImportError, AttributeError):
        versions["ggml"] = None
    return versions


@cache
def torch_with(threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    return torch


@cache
def ggml() -> ctypes.CDLL:
    """ggml's base library, as the pywhispercpp wheel carries it."""
    files = importlib.metadata.files("pywhispercpp") or []
    found = [f for f in files if f.name.startswith("libggml-base") and ".so" in f.name]
    if not found:
        raise ImportError("pywhispercpp carries no libggml-base")
    bundled = next((f for f in found if f.parent.name == "pywhispercpp.libs"), found[0])
    library = ctypes.CDLL(str(bundled.locate()))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, count]
    library.dequantize_row_q4_0.restype = None
    library.dequantize_row_q4_0.argtypes = [pointer, pointer, count]
    library.ggml_version.restype = ctypes.c_char_p
    if library.ggml_row_size(_Q4_0, 32) != 18:
        raise ImportError("ggml: its Q4_0 is not the one known here")
    return library


def _empty_q4_0(w: Array) -> Array:
    """Memory for w: per block, 32 codes of 4 bits and a float16 scale."""
    rows, columns = w.shape
    return aligned((rows, columns // 32 * 18), np.uint8)


@contextmanager
def _on_cpus(count: int) -> Iterator[None]:
    """Keeps threads made within to this number of CPUs: the only way to limit a peer that has no setting for it.
    The CPU this thread is on comes first: another may be busier, and the race not the same.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("it takes all cores, and this system cannot keep a thread to one")
    usable = os.sched_getaffinity(0)
    here = ctypes.CDLL(None).sched_getcpu()
    os.sched_setaffinity(0, sorted(usable, key=lambda cpu: cpu != here)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)
