"""The operations of every backend against the equations of the contract, for every dtype, scheme and granularity."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowbit as lb
from every_kind import DTYPES, SIDE, kinds, tensor
from lowbit import reference
from lowbit.gpu.ops import GpuQuantizationOps
from lowbit.ops.epilogue import ConvOptions, MatMulOptions

pytestmark = pytest.mark.filterwarnings("ignore:x. has negative values")  # which symmetric unsigned codes clip

Array = npt.NDArray[Any]
F32 = np.float32
FAST, SLOW = lb.CpuQuantizationOps(), lb.ReferenceQuantizationOps()


def numbers(q: lb.QuantizedTensor, dtype: npt.DTypeLike = F32) -> Array:
    """What each code stands for, one element after the other."""
    p, codes = q.params, q.unpack()
    y = np.empty(q.shape, dtype)
    for at in np.ndindex(q.shape):
        axis = None if p.axis is None else p.axis % q.ndim
        scope: tuple[int, ...] = ()
        if axis is not None:
            scope = (at[axis],)
            if p.group_size is not None:
                scope = (*at[:axis], at[axis] // p.group_size, *at[axis + 1 :])
        s, z = (v[scope] if v.ndim else v[()] for v in (p.scale.astype(dtype), p.zero_point))
        code = int(codes[at])
        if p.dtype.is_binary or (p.dtype.is_mixed and p.dtype.widths[at[axis or 0]] == 1):
            y[at] = s if code else -s
        elif p.is_logarithmic:
            y[at] = reference.dequantize_log(np.array(code), np.asarray(s), p.magnitude_levels, p.steps_per_octave or 1)
        else:
            y[at] = np.dtype(dtype).type(code - int(z)) * s
    return y


KINDS, IMAGES = kinds(2), kinds(4)


def test_every_dtype_has_a_row() -> None:
    assert len(KINDS) > 90
    assert {name.split(" sym")[0].split(" asym")[0].split(" log")[0] for name in KINDS} == set(DTYPES)


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_is_the_equation(name: str) -> None:
    for dtype in (F32, np.float64):
        q = tensor(0, KINDS[name], 2, dtype)
        for backend in (FAST, SLOW):
            y = backend.dequantize(q)
            assert y.dtype == dtype
            assert np.array_equal(y, numbers(q, dtype))


@pytest.mark.parametrize("name", KINDS)
def test_qadd_is_the_equation(name: str) -> None:
    a = tensor(1, KINDS[name], 2)
    others = [tensor(2, KINDS[name], 2), tensor(3, KINDS["int8 symmetric axis=None block=None"], 2)]
    others.append(tensor(4, KINDS["uint8 asymmetric axis=1 block=None"], 2))
    targets = [lb.quantize(np.eye(SIDE, dtype=F32), **KINDS[name]).params, lb.QuantizationParams("uint8", scale=0.05)]
    for b, out in itertools.product(others, targets):
        expected = reference.quantize(numbers(a) + numbers(b), out.for_compute(F32))
        for backend, (left, right) in itertools.product((FAST, SLOW), ((a, b), (b, a))):
            found = backend.qadd(left, right, out_params=out)
            assert np.array_equal(found.unpack(), expected)
            assert found.params == out.for_compute(F32)


def test_qadd_broadcasts_and_keeps_float64() -> None:
    for dtype in (F32, np.float64):
        a = lb.quantize(np.arange(12, dtype=dtype).reshape(3, 4), "uint8")
        b = lb.quantize(np.array([[1.5], [-2.5], [0.25]], dtype), "int8", axis=0)
        assert FAST.qadd(a, b, out_params=a.params) == SLOW.qadd(a, b, out_params=a.params)
        assert SLOW.qadd(a, b, out_params=a.params).params.scale.dtype == dtype


@pytest.mark.parametrize("name", KINDS)
def test_qrelu_is_the_equation(name: str) -> None:
    a = tensor(5, KINDS[name], 2)
    if a.dtype.is_binary or 1 in a.dtype.widths:
        for backend in (FAST, SLOW):
            with pytest.raises(lb.Unsupported, match=r"^a: .*binary"):
                backend.qrelu(a)
        return
    expected = reference.quantize(np.maximum(numbers(a), 0), a.params)
    for backend in (FAST, SLOW):
        found = backend.qrelu(a)
        assert np.array_equal(found.unpack(), expected)
        assert found.params == a.params
        assert (numbers(found) >= 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_qmatmul_is_the_equation(name: str) -> None:
    plain = KINDS["int8 symmetric axis=None block=None"]
    for left, right in ((KINDS[name], KINDS[name]), (KINDS[name], plain), (plain, KINDS[name])):
        a, b = tensor(6, left, 2), tensor(7, right, 2)
        products = numbers(a, np.float64)[:, :, None] * numbers(b, np.float64)[None]
        bound = 8 * 2.0**-24 * np.abs(products).sum(1) + 1e-30
        for backend in (FAST, SLOW):
            assert (np.abs(np.asarray(backend.qmatmul(a, b)) - products.sum(1)) <= bound).all()


def test_qmatmul_of_batches_is_the_equation() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((2, 3, 8)).astype(F32), rng.standard_normal((2, 8, 5)).astype(F32)
    for left, right in itertools.product(("int8", "uint8", "int16", "binary"), ("int8", "int4", "uint8", "binary")):
        for axis, block in ((None, None), (-1, None), (-2, 4)):
            a = lb.quantize(x, left)
            for weights in (w, w[0]):
                b = lb.quantize(weights, right, axis=axis, group_size=block)
                expected = numbers(a, np.float64) @ numbers(b, np.float64)
                assert np.allclose(np.asarray(SLOW.qmatmul(a, b)), expected, rtol=1e-5, atol=1e-5)


def patches(x: Array, w: Array, padding: int) -> Array:
    """Products of a convolution, [n, out, height, width, taps], one after the other."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, _, height, width = padded.shape
    out, _, kh, kw = w.shape
    y = np.empty((n, out, height - kh + 1, width - kw + 1, w[0].size))
    for i, o, r, c in np.ndindex(y.shape[:-1]):
        y[i, o, r, c] = (padded[i, :, r : r + kh, c : c + kw] * w[o]).reshape(-1)
    return y


@pytest.mark.parametrize("name", IMAGES)
def test_qconv2d_is_the_equation(name: str) -> None:
    plain = IMAGES["int8 symmetric axis=None block=None"]
    for left, right in ((IMAGES[name], IMAGES[name]), (IMAGES[name], plain), (plain, IMAGES[name])):
        x, w = tensor(9, left, 4), tensor(10, right, 4)
        products = patches(numbers(x, np.float64), numbers(w, np.float64), 1)
        bound = 8 * 2.0**-24 * np.abs(products).sum(-1) + 1e-30
        expected = products.sum(-1)
        found = np.asarray(SLOW.qconv2d(x, w, padding=1))
        assert (np.abs(found - expected) <= bound).all()
        last = lb.quantize(np.ascontiguousarray(np.moveaxis(x.dequantize(), 1, -1)), **left) if left is plain else None
        if last is not None:
            turned = np.asarray(SLOW.qconv2d(last, w, padding=1, layout="NHWC"))
            assert np.array_equal(np.moveaxis(turned, -1, 1), found)
        try:
            fast = np.asarray(FAST.qconv2d(x, w, padding=1))
        except lb.Unsupported:
            continue
        assert (np.abs(fast - expected) <= bound).all()
        if (x.params.axis, w.params.group_size) == (None, None) and w.params.axis in (None, 0):
            exact = all(q.dtype.bits <= 8 and not q.dtype.is_binary and not q.params.is_logarithmic for q in (x, w))
            if exact and not w.dtype.is_mixed:
                assert np.array_equal(fast, found)


def test_qconv2d_general_path_takes_bias_clamp_and_codes() -> None:
    x, w = tensor(11, IMAGES["int8 logarithmic axis=None block=None"], 4), tensor(12, IMAGES[next(iter(IMAGES))], 4)
    bias, out = np.float32([0.5, -1.0, 2.0]), lb.QuantizationParams("int8", scale=0.5)
    y = np.asarray(SLOW.qconv2d(x, w))
    biased = y + bias.reshape(1, -1, 1, 1)
    assert np.array_equal(np.asarray(SLOW.qconv2d(x, w, bias)), biased)
    assert np.array_equal(np.asarray(SLOW.qconv2d(x, w, bias, clamp=(-1, 1))), np.clip(biased, -1, 1))
    codes = SLOW.qconv2d(x, w, bias, out_params=out)
    assert isinstance(codes, lb.QuantizedTensor)
    assert np.array_equal(codes.unpack(), reference.quantize(biased, out.for_compute(F32)))


# ---- the protocol -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [lb.CpuQuantizationOps, lb.ReferenceQuantizationOps, GpuQuantizationOps])
def test_backends_take_what_the_protocol_says(backend: type) -> None:
    """Every parameter by its name, with the same default. mypy holds the CPU backends to the types as well."""
    methods = [name for name, value in vars(lb.QuantizationOps).items() if inspect.isfunction(value)]
    public = {name for name in methods if not name.startswith("_")}
    assert public == {"calibrate", "quantize", "dequantize", "qmatmul", "qconv2d", "qadd", "qrelu"}
    options = {"qmatmul": MatMulOptions, "qconv2d": ConvOptions}
    defaults = {name: inspect.signature(getattr(lb, name)).parameters for name in options}
    for name in public:
        wanted, found = (inspect.signature(getattr(cls, name)).parameters for cls in (lb.QuantizationOps, backend))
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values())
        named = {p.name: p for p in list(wanted.values())[1:] if p.kind is not inspect.Parameter.VAR_KEYWORD}
        assert (len(named) < len(wanted) - 1) == (name in options)
        if name in options:
            named |= {option: defaults[name][option] for option in options[name].__annotations__}
        for parameter in named.values():
            if parameter.name in found:
                assert found[parameter.name].default == parameter.default
            else:
                assert open_ended, f"{backend.__name__}.{name} has no {parameter.name}"
    assert hasattr(backend, "hardware_features")


def test_backends_say_where_they_run() -> None:
    for backend in (FAST, SLOW):
        assert isinstance(backend, lb.QuantizationOps)
        assert backend.device == "cpu"
        assert backend.hardware_features == lb.hardware()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int16", "uint16", "int2", "binary"])
@pytest.mark.parametrize("scheme", ["linear", "symmetric", "asymmetric", "logarithmic"])
def test_backends_calibrate_alike(dtype: str, scheme: str) -> None:
    rng = np.random.default_rng(13)
    for kind in (F32, np.float64, np.float16):
        samples = [(rng.standard_normal((3, 4)) + 0.5).astype(kind), np.float64(rng.standard_normal(5)).astype(kind)]
        for given in (samples, samples[0]):
            try:
                found = FAST.calibrate(given, dtype, scheme=scheme)
            except lb.InvalidProblem:
                with pytest.raises(lb.InvalidProblem):
                    SLOW.calibrate(given, dtype, scheme=scheme)
                continue
            assert found == SLOW.calibrate(given, dtype, scheme=scheme)
            assert found == lb.calibrate(given, dtype, "min_max", scheme=scheme)


@pytest.mark.parametrize("bad", [[], F32([1, np.nan]), [F32([1]), F32([-np.inf])], np.empty(0, F32), 3, "text"])
def test_backends_refuse_samples_without_a_range(bad: Any) -> None:
    for backend in (FAST, SLOW):
        with pytest.raises(lb.InvalidProblem, match=r"^samples"):
            backend.calibrate(bad)


def test_qadd_without_params_has_those_of_the_first() -> None:
    """As lb.qadd: a sum beyond their range saturates."""
    a, b = lb.quantize(F32([1.0, -0.5]), "int8"), lb.quantize(F32([1.0, 0.25]), "uint8")
    for backend in (FAST, SLOW):
        found = backend.qadd(a, b)
        assert found == lb.qadd(a, b, out_params=a.params)
        assert found.unpack().tolist() == [127, -32]
