"""The operations of the benchmark suite, each prepared with its float baseline and its data."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lowbit.bench.results import MemoryUsage
from lowbit.layers import QuantizedLinear
from lowbit.numerics.dtypes import Array
from lowbit.numerics.metrics import error_report
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.dequantize import dequantize
from lowbit.ops.elementwise import qadd, qrelu
from lowbit.ops.quantize import quantize

# A name stands for the same work in every run, so "quick" is a part of "full".
_COUNTS = {"quick": (1 << 18,), "full": (1 << 14, 1 << 18, 1 << 20, 1 << 24)}
_QUICK_SHAPES = ((1, 1024, 1024), (64, 1024, 1024))  # rows, outputs, inputs
_SHAPES = {"quick": _QUICK_SHAPES, "full": (*_QUICK_SHAPES, (1, 4096, 4096), (16, 4096, 4096), (256, 4096, 4096))}
_KINDS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "int4 g32": {"dtype": "int4", "group_size": 32},
    "int4 g128": {"dtype": "int4", "group_size": 128},
    "int2": {"dtype": "int2", "group_size": 32},
}


@dataclass(frozen=True)
class Work:
    """A prepared operation: the quantized call, its float baseline, and what they are measured by."""

    run: Callable[[], Any]
    baseline: Callable[[], Any] | None = None
    error: Callable[[], float] | None = None  # SQNR in dB
    operations: int = 0
    bytes_moved: int = 0
    weight_bytes: int | None = None
    memory: Callable[[], MemoryUsage] | None = None  # measured instead of time
    uses_blas: bool = False  # whether the baseline does


@dataclass(frozen=True)
class Operation:
    name: str
    family: str
    prepare: Callable[[], Work]


def operations(sizes: str, memory: bool) -> Iterator[Operation]:
    """All operations of a set of sizes; memory: those that measure memory too."""
    counts, shapes = _COUNTS[sizes], _SHAPES[sizes]
    for n in counts:
        size = _count_text(n)
        yield Operation(f"quantize int8 {size}", "quantization", partial(_quantize, n, "int8"))
        yield Operation(f"quantize int8 known range {size}", "quantization", partial(_quantize, n, "int8", True))
        yield Operation(f"quantize int4 g32 {size}", "quantization", partial(_quantize, n, "int4 g32"))
        yield Operation(f"dequantize int8 {size}", "quantization", partial(_dequantize, n, "int8"))
        yield Operation(f"dequantize int4 g32 {size}", "quantization", partial(_dequantize, n, "int4 g32"))
    for shape in shapes:
        for kind in ("int8", "int4 g128"):
            yield Operation(f"linear {kind} {_shape_text(shape)}", "matrix", partial(_linear, shape, kind))
    for n in counts:
        yield Operation(f"qadd int8 {_count_text(n)}", "elementwise", partial(_add, n))
        yield Operation(f"qrelu int8 {_count_text(n)}", "elementwise", partial(_relu, n))
    if memory:
        for kind in ("int8", "int4 g32"):
            yield Operation(f"tensor {kind} {_count_text(1 << 20)}", "memory", partial(_tensor_memory, 1 << 20, kind))
        for kind in ("int8", "int4 g128"):
            yield Operation(f"layer {kind} 64x1024x1024", "memory", partial(_layer_memory, (64, 1024, 1024), kind))
    shape = (16, 1024, 1024) if sizes == "quick" else (16, 4096, 4096)
    for kind in _KINDS:
        yield Operation(f"layer {_shape_text(shape)}: {kind}", "comparative", partial(_linear, shape, kind))


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _sqnr(exact: Array, found: Any) -> float:
    return error_report(exact, np.asarray(found, np.float32)).sqnr_db


def _quantize(n: int, kind: str, known: bool = False) -> Work:
    x = _normal(n)
    q = quantize(x, **_KINDS[kind])
    target, out = np.empty_like(x), np.empty_like(q.data)
    options: dict[str, Any] = {"params": q.params} if known else _KINDS[kind]
    run, moved = partial(quantize, x, out=out, **options), x.nbytes + q.nbytes
    return Work(run, lambda: np.copyto(target, x), lambda: _sqnr(x, q.dequantize()), bytes_moved=moved)


def _dequantize(n: int, kind: str) -> Work:
    x = _normal(n)
    q = quantize(x, **_KINDS[kind])
    target, out = np.empty_like(x), np.empty_like(x)
    run, moved = partial(dequantize, q, out=out), x.nbytes + q.nbytes
    return Work(run, lambda: np.copyto(target, x), lambda: _sqnr(x, run()), bytes_moved=moved)


def _linear(shape: tuple[int, int, int], kind: str) -> Work:
    m, n, k = shape
    x, w = _normal(m, k), _normal(n, k, seed=1)
    layer, turned, out = QuantizedLinear(w, **_KINDS[kind]), w.T, np.empty((m, n), np.float32)
    run, product = partial(layer, x), partial(np.matmul, x, turned, out=out)
    moved = x.nbytes + layer.nbytes + out.nbytes
    return Work(run, product, lambda: _sqnr(x @ turned, run()), 2 * m * n * k, moved, layer.nbytes, uses_blas=True)


def _codes(n: int, seed: int = 0) -> tuple[Array, QuantizedTensor]:
    x = _normal(n, seed=seed)
    return x, quantize(x)


def _add(n: int) -> Work:
    (x, a), (y, b) = _codes(n), _codes(n, 1)
    exact = x + y
    params = QuantizationParams.from_statistics(exact.min(), exact.max(), dtype="int8", scheme="symmetric")
    out, target = np.empty_like(a.data), np.empty_like(x)
    run, moved = partial(qadd, a, b, out_params=params, out=out), 3 * a.data.nbytes
    return Work(run, partial(np.add, x, y, out=target), lambda: _sqnr(exact, run().dequantize()), bytes_moved=moved)


def _relu(n: int) -> Work:
    x, a = _codes(n)
    out, target = np.empty_like(a.data), np.empty_like(x)
    run, baseline = partial(qrelu, a, out=out), partial(np.maximum, x, 0, out=target)
    return Work(run, baseline, lambda: _sqnr(baseline(), run().dequantize()), bytes_moved=2 * a.data.nbytes)


def _tensor_memory(n: int, kind: str) -> Work:
    x = _normal(n)

    def measured() -> MemoryUsage:
        peak, q = _peak(lambda: quantize(x, **_KINDS[kind]))
        return MemoryUsage(x.nbytes, q.nbytes, peak)

    return Work(measured, memory=measured)


def _layer_memory(shape: tuple[int, int, int], kind: str) -> Work:
    m, n, k = shape
    x, w = _normal(m, k), _normal(n, k, seed=1)
    layer = QuantizedLinear(w, **_KINDS[kind])

    def measured() -> MemoryUsage:
        peak, _ = _peak(lambda: layer(x))
        return MemoryUsage(w.nbytes, layer.nbytes, peak, layer.workspace_size(m))

    return Work(measured, memory=measured)


def _peak(call: Callable[[], Any]) -> tuple[int, Any]:
    """The peak allocation of a call, and its result. Tracing that was on stays on."""
    call()  # so that cached allocations are not counted
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        return max(0, tracemalloc.get_traced_memory()[1] - before), result
    finally:
        if not tracing:
            tracemalloc.stop()


def _count_text(n: int) -> str:
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}K"


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
