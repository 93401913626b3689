"""Linear layers on floats with quantized weights: near float64 for any data, the same bits for any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowbit as lb
from conftest import THREADS
from lowbit import _core, reference
from lowbit.ops.gemm_paths import pack_weight_only
from lowbit.runtime import arrays as cpu

Array = npt.NDArray[Any]
EPS = float(np.finfo(np.float32).eps)

# (dtype, options): every code, with one scale, one a row, and blocks along k whose last one is ragged.
AFFINE = [
    (dtype, {"scheme": scheme, **granularity})
    for dtype in ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2")
    for scheme in (("asymmetric",) if dtype.startswith("u") else ("symmetric", "asymmetric"))
    for granularity in ({}, {"axis": 0}, {"axis": -1, "group_size": 32}, {"axis": 1, "group_size": 100})
]
SPECIAL = [
    (dtype, {"scheme": scheme, **granularity})
    for dtype, scheme in (("binary", "symmetric"), ("int8", "logarithmic"), ("int4", "logarithmic"))
    for granularity in ({}, {"axis": 0}, {"group_size": 64})
]
WEIGHTS = AFFINE + SPECIAL


def label(weight: tuple[str, dict[str, Any]]) -> str:
    return "-".join([weight[0], *(str(v) for v in weight[1].values())])


def numbers(seed: int, *shape: int, positive: bool = False) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return np.abs(x) if positive else x


def multiply(
    x: Any, q: lb.QuantizedTensor, bias: Array | None = None, dtype: Any = np.float32, **clamp: float
) -> Array:
    given = cpu.as_float_array(x)
    y, out = cpu.empty_float((given.shape[0], q.shape[0]), dtype)
    run(given, pack_weight_only(q), bias, out, **clamp)
    return y


def run(
    x: cpu.FloatArray,
    packed: _core.WeightOnly,
    bias: Array | None,
    out: cpu.FloatArray,
    floor: float = -np.inf,
    ceiling: float = np.inf,
) -> None:
    results = {cpu.Element.f32: _core.Result.f32, cpu.Element.f16: _core.Result.f16, cpu.BFLOAT16: _core.Result.bf16}
    epilogue = _core.Epilogue.floats(results[out.element], (floor, ceiling), bias=bias)
    _core.FloatLinearPlan(packed, x.element, epilogue).run(x.array, out.array)


def exact(x: Array, q: lb.QuantizedTensor, bias: Array | None = None) -> tuple[Array, Array]:
    """(result, sum of the magnitudes of its terms) in float64."""
    w = reference.dequantize(q.unpack(), q.params, np.float32).astype(np.float64)
    wide = np.asarray(x, np.float64)
    b = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    return wide @ w.T + b, np.abs(wide) @ np.abs(w).T + np.abs(b)


def assert_near(y: Array, x: Array, q: lb.QuantizedTensor, bias: Array | None = None) -> None:
    expected, terms = exact(x, q, bias)
    assert (np.abs(y - expected) <= 4 * EPS * terms).all()


@pytest.mark.parametrize("weight", WEIGHTS, ids=label)
@pytest.mark.parametrize("k", [333, 1040], ids=["odd", "whole-vectors"])
def test_every_dtype_and_granularity(isa: str, weight: tuple[str, dict[str, Any]], k: int) -> None:
    dtype, options = weight
    q = lb.quantize(numbers(1, 37, k), dtype, **options)
    x, bias = numbers(2, 10, k), numbers(3, 37)
    assert_near(multiply(x, q), x, q)
    assert_near(multiply(x[:2], q, bias), x[:2], q, bias)


@pytest.mark.parametrize("dtype", ["uint4", "int8", "binary"])
def test_deep_sums_of_one_sign_stay_near(isa: str, dtype: str) -> None:
    """Nothing cancels: every rounding of a long sum would show. More than one piece of k, and an odd rest."""
    scheme = "symmetric" if dtype == "binary" else "asymmetric"
    q = lb.quantize(numbers(1, 9, 4099, positive=True), dtype, scheme=scheme, group_size=128)
    x = numbers(2, 13, 4099, positive=True)
    assert_near(multiply(x, q), x, q)


def test_rounding_that_never_averages_out(isa: str) -> None:
    """One number in 32, then numbers of half its last place: each addition in float32 would lose all of them."""
    k = 2048
    x = np.full((3, k), 2.0**-24, np.float32)
    x[:, ::32] = 1
    q = lb.quantize(np.ones((4, k), np.float32), params=lb.QuantizationParams("int8", scale=1.0))
    for shift in range(8):
        assert_near(multiply(np.roll(x, shift, 1), q), np.roll(x, shift, 1), q)


@pytest.mark.parametrize("dtype", ["int4", "uint16"])
def test_bits_do_not_depend_on_threads_or_on_other_rows(isa: str, dtype: str) -> None:
    q = lb.quantize(numbers(1, 150, 1100), dtype, scheme="asymmetric", group_size=32)
    x = numbers(2, 131, 1100)
    results = []
    for threads in THREADS:
        lb.set_num_threads(threads)
        results.append(multiply(x, q))
    for y in results[1:]:
        assert y.tobytes() == results[0].tobytes()
    for rows in (slice(0, 1), slice(64, 70), slice(3, 100)):
        assert multiply(x[rows], q).tobytes() == results[0][rows].tobytes()


def test_float16_and_bfloat16_in_and_out(isa: str) -> None:
    """The same sums as of the widened numbers, narrowed once more."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = lb.quantize(numbers(1, 33, 515), "int4", group_size=64)
    for narrow in (np.float16, ml_dtypes.bfloat16):
        x = numbers(2, 11, 515).astype(narrow)
        y = multiply(x.astype(np.float32), q)
        assert_near(multiply(x, q), x.astype(np.float32), q)
        assert multiply(x, q).tobytes() == y.tobytes()
        assert multiply(x, q, dtype=narrow).tobytes() == y.astype(narrow).tobytes()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 8), (1, 0, 8), (3, 5, 0), (1, 1, 1), (2, 3, 7), (4, 65, 513)])
def test_small_and_empty(isa: str, m: int, n: int, k: int) -> None:
    params = lb.QuantizationParams("int4", scale=0.5)
    q = lb.QuantizedTensor.from_codes(np.random.default_rng(0).integers(-8, 8, (n, k)), params)
    x, bias = numbers(1, m, k), numbers(2, n)
    assert_near(multiply(x, q, bias), x, q, bias)


def test_nan_and_infinity_stay_in_their_row(isa: str) -> None:
    q = lb.quantize(numbers(1, 6, 700), "int8", axis=0)
    x = numbers(2, 9, 700)
    clean = multiply(x, q)
    x[4, 699], x[7, 0] = np.nan, np.inf
    y = multiply(x, q)
    assert np.isnan(y[4]).all()
    assert not np.isfinite(y[7]).any()
    others = [0, 1, 2, 3, 5, 6, 8]
    assert y[others].tobytes() == clean[others].tobytes()


def test_clamp(isa: str) -> None:
    q = lb.quantize(numbers(1, 20, 64), "int8")
    x = numbers(2, 5, 64)
    assert (
        multiply(x, q, floor=0.0, ceiling=6.0).tobytes() == np.clip(multiply(x, q), 0, 6).astype(np.float32).tobytes()
    )


def test_weights_live_as_long_as_their_packed_form() -> None:
    w = numbers(1, 8, 64)
    packed = pack_weight_only(lb.quantize(w, "int8", axis=0))
    junk = [np.full((8, 64), 99, np.int8) for _ in range(100)]
    x = numbers(2, 3, 64)
    y, out = cpu.empty_float((3, 8), np.float32)
    run(cpu.as_float_array(x), packed, None, out)
    assert_near(y, x, lb.quantize(w, "int8", axis=0))
    assert len(junk) == 100


def test_whole_rows_are_not_copied_and_the_workspace_is_bounded() -> None:
    q = lb.quantize(numbers(1, 64, 256), "int4", group_size=128)
    packed = pack_weight_only(q)
    assert packed.nbytes == q.data.nbytes + q.params.scale.nbytes
    lb.set_num_threads(1)
    few, more, most = (packed.workspace_for(m, packed.k) for m in (10, 1000, 10**9))
    assert few < more <= most < 8 << 20


def test_what_cannot_be_multiplied_is_refused() -> None:
    w = numbers(1, 8, 64)
    columns = lb.quantize(w, "int8", axis=1)
    mixed = lb.quantize(w, params=lb.QuantizationParams(lb.QuantizedDType.mixed([8] * 8), scale=np.ones(8), axis=0))
    for bad in (columns, mixed):
        with pytest.raises(lb.Unsupported, match="weight"):
            pack_weight_only(bad)
    with pytest.raises(lb.InvalidProblem, match="weight"):
        pack_weight_only(lb.quantize(w[0], "int8"))
    q = lb.quantize(w, "int8")
    layer = lb.QuantizedLinear(q, activation_dtype="float")
    with pytest.raises(lb.InvalidProblem, match="x: shape"):
        layer(numbers(1, 3, 63))
    with pytest.raises(lb.InvalidProblem, match="bias"):
        lb.QuantizedLinear(q, np.zeros(7, np.float32), activation_dtype="float")
    with pytest.raises(lb.UnsupportedDType, match="x: float64"):
        layer(numbers(1, 3, 64).astype(np.float64))
    with pytest.raises(ValueError, match="codes"):
        _core.WeightOnly(
            np.zeros(7, np.int8),
            _core.Code.s8,
            _core.WeightLayout(2, 4, _core.GranularityKind.tensor, 1),
            np.ones(1, np.float32),
            None,
            None,
        )
