"""lb.quantize and lb.dequantize as people call them: inputs, outputs, errors before work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, UnsupportedDType, reference

F32 = np.float32
RNG = np.random.default_rng(11)
X = RNG.standard_normal((6, 40)).astype(F32)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: np.asfortranarray(a),
        lambda a: a[:, 3:17],
        lambda a: np.broadcast_to(a[0], (5, 40)),
    ],
    ids=["steps", "reversed", "transposed", "fortran", "window", "broadcast"],
)
def test_strided_input(view: Any) -> None:
    x = view(X)
    q = lb.quantize(x, "int4", axis=0)
    assert np.array_equal(q.unpack(), lb.quantize(np.array(x, order="C"), "int4", axis=0).unpack())


def test_unaligned_input_and_output() -> None:
    raw = np.zeros(X.nbytes + 1, np.uint8)
    x = raw[1:].view(F32).reshape(X.shape)
    x[:] = X
    params = QuantizationParams("int16", scale=0.001)
    for _ in range(2):
        assert lb.quantize(x, params=params) == lb.quantize(X, params=params)
    out = raw[1 : 1 + 2 * X.size].view(np.int16).reshape(X.shape)
    with pytest.raises(InvalidProblem, match="aligned"):
        lb.quantize(X, params=params, out=out)
    with pytest.raises(InvalidProblem, match="aligned"):
        lb.dequantize(lb.quantize(X), out=x)


def test_read_only_input() -> None:
    x = X.copy()
    x.flags.writeable = False
    assert lb.quantize(x) == lb.quantize(X)


def test_input_is_not_copied_nor_changed() -> None:
    x = X.copy()
    lb.quantize(x, "uint8", scheme="asymmetric")
    assert np.array_equal(x, X)


@pytest.mark.parametrize(
    "bad",
    [
        np.array([1.0, 2.0], ">f4"),
        np.array([1.0, None], object),
        np.array([1, 2]),
        np.array([1j]),
        np.array(["a"]),
        np.array([True]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_foreign_arrays_are_refused_by_name(bad: Any) -> None:
    for call in (lambda: lb.quantize(bad, name="w"), lambda: lb.quantize(bad, params=QuantizationParams(), name="w")):
        with pytest.raises(UnsupportedDType, match=r"w: "):
            call()


def test_empty_data_has_no_range_but_zero_size_tensors_quantize() -> None:
    with pytest.raises(ValueError, match="empty"):
        lb.quantize(np.zeros((0,), F32))
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        for dtype in ("int8", "int4", "binary"):
            q = lb.quantize(np.zeros(shape, F32), params=QuantizationParams(dtype))
            assert q.shape == shape
            assert q.data.size == 0
            assert q.dequantize().shape == shape
            assert q.unpack().shape == shape


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1}, {"group_size": 8}, {"axis": 0, "group_size": 4}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", ["int8", "uint4", "binary", "int4"])
def test_nonfinite_data_is_named_with_its_index(value: float, options: dict[str, Any], dtype: str) -> None:
    x = X.copy()
    x[3, 17] = value
    x[5, 2] = np.nan
    scheme = "asymmetric" if dtype == "uint4" else "symmetric"
    with pytest.raises(InvalidProblem, match=r"layer\.weight: (nan|-?inf) at index \(3, 17\)"):
        lb.quantize(x, dtype, scheme=scheme, name="layer.weight", **options)
    with pytest.warns(UserWarning, match=r"x: 2 values .* left out"):
        q = lb.quantize(x, dtype, scheme=scheme, on_nonfinite="ignore", **options)
    clean = np.where(np.isfinite(x), x, 0)
    want = lb.quantize(clean, dtype, scheme=scheme, **options)
    assert np.array_equal(q.params.scale, want.params.scale)
    finite = np.isfinite(x)
    assert np.array_equal(q.unpack()[finite], want.unpack()[finite])


def test_huge_numbers_are_refused() -> None:
    for options in ({}, {"group_size": 8}):
        with pytest.raises(InvalidProblem, match="w: "):
            lb.quantize(np.full((2, 16), 3e38, F32), name="w", **options)


def test_symmetric_unsigned_says_what_it_clips() -> None:
    with pytest.warns(UserWarning, match="negative"):
        q = lb.quantize(X, "uint8")
    assert q.params.scale == np.abs(X).max() / F32(255)
    assert (q.unpack()[X < 0] == 0).all()


@pytest.mark.parametrize("dtype", ["int8", "int4", "uint16", "binary"])
def test_out_is_written_and_returned(dtype: str) -> None:
    params = QuantizationParams(dtype, scale=0.05)
    want = lb.quantize(X, params=params)
    codes = np.zeros_like(want.data)
    q = lb.quantize(X, params=params, out=codes)
    assert q.data is codes
    assert q == want
    again = lb.quantize(X * 2, params=params, out=q)
    assert again is q
    assert np.array_equal(q.unpack(), reference.quantize(X * 2, params))
    y = np.empty(X.shape, F32)
    assert lb.dequantize(q, out=y) is y
    assert np.array_equal(y, q.dequantize())


def test_out_takes_the_params_found_in_the_data() -> None:
    q = lb.quantize(X, "int4", group_size=8)
    again = lb.quantize(X * 3, "int4", group_size=8, out=q)
    assert again is q
    assert q == lb.quantize(X * 3, "int4", group_size=8)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((6, 41), np.int8),
        np.empty((6, 40), np.uint8),
        np.empty((40, 6), np.int8).T,
        np.empty(240, np.int8),
        [1, 2],
    ],
    ids=["shape", "dtype", "strides", "flat", "list"],
)
def test_an_out_that_does_not_fit_is_refused(out: Any) -> None:
    params = QuantizationParams("int8", scale=0.05)
    lb.quantize(X, params=params)  # the fast path is warm
    with pytest.raises(InvalidProblem, match="out"):
        lb.quantize(X, params=params, out=out)


def test_read_only_out_is_refused() -> None:
    params = QuantizationParams("int8", scale=0.05)
    out = lb.quantize(X, params=params).data
    out.flags.writeable = False
    with pytest.raises(InvalidProblem, match="out"):
        lb.quantize(X, params=params, out=out)
    y = np.empty(X.shape, F32)
    y.flags.writeable = False
    with pytest.raises(InvalidProblem, match="out"):
        lb.dequantize(lb.quantize(X), out=y)


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 2},
        {"axis": -3},
        {"group_size": 0},
        {"group_size": -4},
        {"dtype": "int5"},
        {"scheme": "magic"},
        {"qmin": 3, "qmax": 2},
        {"dtype": "uint8", "scheme": "logarithmic"},
        {"on_nonfinite": "perhaps"},
        {"dtype": lb.QuantizedDType.mixed([8, 4])},
    ],
    ids=str,
)
def test_bad_options_are_refused_before_any_work(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidProblem, UnsupportedDType)):
        lb.quantize(X, **options)


def test_options_that_contradict_params_are_refused() -> None:
    params = QuantizationParams("int8", scale=0.05)
    lb.quantize(X, "int8", params=params)
    for options in ({"dtype": "uint8"}, {"axis": 0}, {"scheme": "asymmetric"}, {"group_size": 4}, {"qmin": -7},
                    {"full_range": True}):  # fmt: skip
        with pytest.raises(InvalidProblem):
            lb.quantize(X, params=params, **options)


def test_a_scalar_scale_spreads_over_channels_and_blocks() -> None:
    plain = lb.quantize(X, params=QuantizationParams("int8", scale=0.05, zero_point=3))
    for options in ({"axis": 0}, {"axis": 1}, {"axis": -1, "group_size": 7}):
        q = lb.quantize(X, params=QuantizationParams("int8", "asymmetric", 0.05, 3, **options))
        assert np.array_equal(q.unpack(), plain.unpack())
        assert np.array_equal(q.dequantize(), plain.dequantize())


def test_float64_keeps_its_precision() -> None:
    x = RNG.standard_normal(1000)
    q = lb.quantize(x, "int16")
    assert q.params.scale.dtype == np.float64
    assert q.dequantize().dtype == np.float64
    assert q.params.scale == np.abs(x).max() / 32767
    assert lb.dequantize(q, dtype=F32).dtype == F32


def test_short_forms() -> None:
    codes = lb.quantize_to_int8(X, 0.05, 3)
    assert codes.dtype == np.int8
    assert np.array_equal(codes, reference.quantize(X, QuantizationParams("int8", scale=0.05, zero_point=3)))
    y = lb.dequantize_from_int8(codes, 0.05, 3)
    assert np.array_equal(y, ((codes.astype(np.int32) - 3).astype(F32) * F32(0.05)))


def test_lists_and_scalars() -> None:
    assert lb.quantize([1.0, -1.0]).unpack().tolist() == [127, -127]
    q = lb.quantize(F32(0.5))
    assert q.shape == ()
    assert q.dequantize() == pytest.approx(0.5)


def test_a_cap_that_does_not_exist_is_refused() -> None:
    from lowbit import _core

    with pytest.raises(ValueError, match="sse9"):
        _core.set_max_isa("sse9")


def test_threads_must_be_positive() -> None:
    for n in (0, -1, 1.5):
        with pytest.raises(InvalidProblem, match="n:"):
            lb.set_num_threads(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"group_size": 32}, {"dtype": "binary"}], ids=str)
@pytest.mark.parametrize("at", [2**20 - 1, 2**20, 2**20 + 1, 2**20 + 12_345, 2**21 + 5])
def test_what_is_not_finite_is_named_with_its_index_in_large_arrays_too(at: int, options: dict[str, Any]) -> None:
    x = np.zeros((2**21 + 64) // 64 * 64, np.float16).reshape(-1, 64)
    x.reshape(-1)[at] = np.inf
    x.reshape(-1)[at + 7] = np.nan  # not the first
    with pytest.raises(InvalidProblem, match=rf"big: inf at index \({at // 64}, {at % 64}\); a range needs finite"):
        lb.quantize(x, name="big", **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("codes", "steps"), [("int4", 0.5), ("int4", 0.25), ("int8", 1.5), ("int2", 0.5)])
def test_ties_of_logarithmic_codes_go_to_the_even_magnitude(codes: str, steps: float, dtype: Any) -> None:
    # Magnitudes m and m - 1 meet at s * 2^-((M - m + 1/2) / r), a number of its own where that is a power of two.
    params = QuantizationParams.logarithmic(codes, dtype(2.0), steps)
    levels, ties = params.magnitude_levels, 0
    for m in range(1, levels + 1):
        exponent = (levels - m + 0.5) / steps
        if exponent != int(exponent):
            continue
        ties += 1
        tie = dtype(2.0) * dtype(2.0) ** dtype(-exponent)
        x = np.array([np.nextafter(tie, dtype(0)), tie, np.nextafter(tie, dtype(4))], dtype)
        want = np.array([m - 1, m - m % 2, m])
        for sign in (1, -1):
            np.testing.assert_array_equal(lb.quantize(sign * x, params=params).unpack(), sign * want)
            np.testing.assert_array_equal(reference.quantize(sign * x, params), sign * want)
    assert ties > (0 if codes == "int2" else 3)
