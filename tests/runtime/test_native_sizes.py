"""Every function of lowbit._core with sizes of 0, with sizes whose product no memory holds, and with negative ones.

The Python layers never pass such sizes on, or only some of them; here nothing stands between them and the drivers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import _core

Array = np.ndarray[Any, Any]
F32, I32 = np.float32, np.int32
Code, Element, Kind = _core.Code, _core.Element, _core.GranularityKind
KINDS = tuple(Kind)
CODES = {Code.s8: np.int8, Code.s16: np.int16, Code.u16: np.uint16}  # others are stored as bytes
ELEMENTS = {Element.f32: F32, Element.f64: np.float64, Element.f16: np.float16, Element.bf16: np.uint16}
ZERO = sorted({s for n in (0, 1, 5, 64) for s in itertools.permutations((0, n, 13))} | {(0, 0, 7), (128, 13, 0)})
BEYOND = [
    (2**31, 2**31, 2**31),
    (2**62, 4, 1),
    (2**62, 2**62, 0),
    (0, 2**57, 1),
    (2**57, 0, 2),
    (-1, 2, 3),
    (-1, -1, 4),
]


def both(call: Callable[[Callable[..., Array]], Any]) -> Any:
    """call(make) with memory full of two different bytes; what it returns must not depend on them."""
    found = []
    for byte in (0x5A, 0xA5):

        def make(n: Any, dtype: Any, byte: int = byte) -> Array:
            a: Array = np.zeros(n, dtype)
            a.reshape(-1).view(np.uint8)[...] = byte
            return a

        found.append(call(make))
    for x, y in zip(*found, strict=True):
        assert np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f")
    return found[0]


def compute(element: _core.Element) -> Any:
    return np.float64 if element is Element.f64 else F32


# ---- layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ZERO)
@pytest.mark.parametrize("element", ELEMENTS)
def test_layouts_without_elements(
    kind: _core.GranularityKind, shape: tuple[int, int, int], element: _core.Element
) -> None:
    for block in (1, 5, 64, 2**63 - 1):
        empty_layout(_core.Granularity(kind, *shape, block), element)


def empty_layout(layout: Any, element: _core.Element) -> None:
    assert layout.elements == 0
    x, wide, n = np.zeros(0, ELEMENTS[element]), compute(element), layout.scales
    scale, zero, shapes = np.full(n, 0.1, wide), np.zeros(n, I32), _core.ScaledShape([0], [n], layout)
    for code in Code:
        codes = np.zeros(0, CODES.get(code, np.uint8))
        mappings = [_core.Affine(code, scale, zero, -1, 1), _core.Affine(code, scale, None, -1, 1)]
        assert [m.first_invalid for m in mappings] == [-1, -1]
        if code in (Code.s8, Code.s16, Code.s4, Code.s2):
            levels = np.ones(3, wide)
            mappings.append(_core.Logarithmic(code, scale, levels, levels))
        for mapping in mappings:
            assert _core.QuantizePlan(element, code, shapes).run(x, codes, mapping)
            assert _core.DequantizePlan(element, code, shapes).run(codes, x, mapping)
        for divisor in (0, 1) if code is not Code.b1 else ():
            plan = _core.DynamicQuantizePlan(element, code, shapes, -1, 1, divisor)
            made = both(lambda make, plan=plan: dynamic(make, plan, layout, element))
            assert (made[0] == 1).all()
            assert (made[1] == 0).all()
    lo, hi = both(lambda make: ranges(make, layout, element))
    assert (lo == np.inf).all()
    assert (hi == -np.inf).all()
    fake = _core.FakeQuantizePlan(element, shapes, -1, 1)
    assert fake.run(x, x, scale, zero) == fake.dequantize_backward(x, x, scale, zero) == -1
    assert fake.backward(x, x, x, scale, zero) == fake.quantize_backward(x, x, x, scale, zero) == -1
    ds, dz = both(lambda make: learned(make, fake, x, scale, zero))
    assert not ds.any()
    assert not dz.any()
    at = scale.ctypes.data
    if fake.has_mask:
        assert fake.mask_bytes == 0
        assert fake.run_masked(at, at, at, at, zero.ctypes.data) == -1
    fake.masked_backward(at, at, at)
    for bins in (0, 128):
        sketches = _core.Sketches(n, bins, 2)
        assert sketches.add(x, element, layout, False) == 0
        assert sketches.add(x, element, layout, True) == 0


def dynamic(make: Any, plan: Any, layout: Any, element: _core.Element) -> tuple[Array, Array]:
    scale, zero = make(layout.scales, compute(element)), make(layout.scales, I32)
    x, codes = np.zeros(0, ELEMENTS[element]), np.zeros(0, CODES.get(plan.code, np.uint8))
    assert plan.run(x, codes, scale, zero, make(plan.workspace_bytes, np.uint8)) == (0, 0)
    return scale, zero


def ranges(make: Any, layout: Any, element: _core.Element) -> tuple[Array, Array]:
    lo, hi = make(layout.scales, compute(element)), make(layout.scales, compute(element))
    assert _core.RangePlan(element, layout).run(np.zeros(0, ELEMENTS[element]), lo, hi) == 0
    return lo, hi


def learned(make: Any, plan: Any, x: Array, scale: Array, zero: Array) -> tuple[Array, Array]:
    ds, dz = make(scale.shape, scale.dtype), make(scale.shape, scale.dtype)
    made = _core.LearnedGradients(ds, dz, make(plan.workspace_bytes // 8, np.float64))
    assert plan.learned_backward(x, x, x, scale, zero, made) == -1
    return ds, dz


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", BEYOND)
def test_layouts_beyond_memory_are_refused(kind: _core.GranularityKind, shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="sizes: "):
        _core.Granularity(kind, *shape, 1)


@pytest.mark.parametrize("block", [0, -1, -(2**63)])
def test_blocks_of_nothing_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match="block: must be positive"):
        _core.Granularity(Kind.group, 1, 8, 1, block)
    with pytest.raises(ValueError, match="block: must be positive"):
        _core.PackedGroups(np.zeros((0, 0), np.uint8), 4, block, np.zeros(0, F32), None, 0)
    with pytest.raises(ValueError, match="block: must be positive"):
        _core.WeightLayout(0, 0, Kind.group, block)


def test_a_block_longer_than_any_axis_is_one_group() -> None:
    layout = _core.Granularity(Kind.group, 2, 8, 1, 2**63 - 1)
    assert layout.elements == 16
    assert layout.scales == 2
    lo, hi = np.zeros(2, F32), np.zeros(2, F32)
    assert _core.RangePlan(Element.f32, layout).run(np.arange(16, dtype=F32), lo, hi) == 0
    x = np.ones((2, 8), F32)
    assert (lb.fake_quantize(x, np.full((2, 1), 0.5, F32), axis=1, group_size=2**70) == x).all()
    assert lo.tolist() == [0, 8]
    assert hi.tolist() == [7, 15]


# ---- other sizes ---------------------------------------------------------------------------------------------


def test_runs_of_nothing() -> None:
    for length in (0, -1, 2**62):
        with pytest.raises(ValueError, match="length: "):
            _core.mean_abs(b"", Element.f32, length, np.zeros(8))
    _core.mean_abs(b"", Element.f32, 2**50, np.zeros(0))
    for codes in ([], [Code.s8, Code.s16, Code.b1]):
        n = len(codes)
        mixed = _core.Mixed(codes, 0, np.ones(n, F32), np.zeros(n, I32), np.ones(n, I32))
        assert mixed.nbytes == 0
        mixed.quantize(b"", Element.f32, bytearray()), mixed.dequantize(b"", bytearray(), Element.f32)
    for length in (-8, 2**60):
        with pytest.raises(ValueError, match="length: "):
            _core.Mixed([Code.s8, Code.s16], length, np.ones(2, F32), *[np.zeros(2, I32)] * 2)
    for bits in (1, 2, 4):
        _core.pack(bits, b"", bytearray()), _core.unpack(bits, True, b"", bytearray())
    _core.clamp_codes(Code.s8, b"", -1, 1, bytearray()), _core.lookup_codes(None, b"", 3, bytearray(), 0, 3)


def test_shapes_that_are_not_the_granularitys_are_refused() -> None:
    layout = _core.Granularity(Kind.channel, 2, 3, 4, 1)
    _core.ScaledShape([2, 3, 4], [3], layout)
    for shape, scales in (([2, 3], [3]), ([2, 3, 4], [2]), ([2**32, 2**32, 24], [3]), ([-2, -3, 4], [3])):
        with pytest.raises(ValueError, match="shape: "):
            _core.ScaledShape(shape, scales, layout)


def test_plans_take_only_what_they_describe() -> None:
    shape = _core.ScaledShape([2, 3], [], _core.Granularity(Kind.tensor, 1, 1, 6, 1))
    x, q, step = np.ones((2, 3), F32), np.zeros((2, 3), np.int8), np.ones((), F32)
    affine = _core.Affine(Code.s8, step, None, -128, 127)
    plan, fake = _core.QuantizePlan(Element.f32, Code.s8, shape), _core.FakeQuantizePlan(Element.f32, shape, -128, 127)
    assert plan.run(x, q, affine)
    assert (q == 1).all()
    readonly = q.copy()
    readonly.flags.writeable = False
    for other in (x.astype(np.float64), x[:1], x.T.copy().T, x.ravel(), b"", np.ma.array(x), x.view(np.int32)):
        assert not plan.run(other, q, affine)
        assert fake.run(other, x, 1.0, 0) == fake.run(x, other, 1.0, 0) == _core.NOT_AS_DESCRIBED
    assert fake.backward(None, x, x, 1.0, 0) == fake.run(x, None, 1.0, 0) == _core.NOT_AS_DESCRIBED
    for other in (q.view(np.uint8), q[:1], q.T.copy().T, readonly, bytearray(6)):
        assert not plan.run(x, other, affine)
    with pytest.raises(ValueError, match="codes are not the plan's"):
        plan.run(x, q, _core.Affine(Code.u8, step, None, 0, 255))
    with pytest.raises(ValueError, match="compute type"):
        plan.run(x, q, _core.Affine(Code.s8, np.ones(()), None, -128, 127))
    with pytest.raises(ValueError, match="number of scales"):
        plan.run(x, q, _core.Affine(Code.s8, np.ones(2, F32), None, -128, 127))
    with pytest.raises(lb.InvalidProblem, match="shares memory"):
        plan.run(x, x.view(np.int8).reshape(-1)[:6].reshape(2, 3), affine)
    for scale, zero in ((None, 0), (1, 0), (np.ones((), np.float64), 0), (1.0, None), (1.0, 0.0), (1.0, 2**31)):
        assert fake.run(x, x, scale, zero) == _core.NOT_AS_DESCRIBED
    assert fake.run(x, x, 0.0, 0) == 0
    assert fake.run(x, x, 1.0, 200) == -2


Result = _core.Result
UNBOUNDED = (-np.inf, np.inf)


def epilogue(result: _core.Result, n: int, bias: bool = False, add: bool = False, wide: bool = False) -> Any:
    added = np.arange(n, dtype=I32) if add else None
    if result is Result.s32:
        return _core.Epilogue(added, wide)
    scale = np.ones(n, F32)
    if result is Result.s8:
        return _core.Epilogue.codes(_core.CodeParams(Code.s8, 1.0, 0, -128, 127), scale, None, added)
    return _core.Epilogue.floats(result, UNBOUNDED, scale, None, np.arange(n, dtype=F32) if bias else None, added)


BITS = {Code.s8: 8, Code.u8: 8, Code.s16: 16, Code.s4: 4, Code.s2: 2, Code.b1: 1}
MNK = [s for s in itertools.product((0, 1, 3, 40), repeat=3) if 0 in s]
RESULTS = {Result.s32: I32, Result.f32: F32, Result.f16: np.float16, Result.s8: np.int8}
FLOATS = (Result.f32, Result.f16)


@pytest.mark.parametrize("mnk", MNK)
def test_products_without_terms(mnk: tuple[int, int, int]) -> None:
    m, n, k = mnk
    a, b = np.ones((m, k), np.int8), np.ones((k, n), np.int8)
    steps = np.broadcast_to(np.arange(n), (m, n))
    for zeros in (None, np.full(n, 3, I32)):
        packed = _core.PackedMatrix(b, False, zeros)
        packed.unpack(np.zeros((n, k), np.int8))
        for result, dtype in RESULTS.items():
            for za, wide in itertools.product((np.full(1, 2, I32), np.full(m, 2, I32)), (False, True)):
                item = np.int64 if wide and result is Result.s32 else dtype
                last = epilogue(result, n, bias=result in FLOATS, add=result is Result.s32, wide=wide)
                plan = _core.GemmPlan(packed, Code.s8, za, last)
                assert plan.workspace_bytes(m) >= 0

                def run(make: Any, item: Any = item, plan: Any = plan) -> list[Array]:
                    out = make((m, n), item)
                    plan.run(a, out)
                    return [out]

                (y,) = both(run)
                assert (y == (steps if result is not Result.s8 else 0)).all()
        fixed = _core.CodeParams(Code.s8, 1.0, 0, -127, 127)
        for element, (code, params) in itertools.product(
            (Element.f32, Element.f16), ((Code.s8, None), (Code.u8, None), (Code.s8, fixed))
        ):
            linear = _core.LinearPlan(packed, element, code, params, epilogue(Result.f32, n, True))

            def layer(make: Any, element: Any = element, plan: Any = linear) -> list[Array]:
                out = make((m, n), F32)
                assert plan.run(np.ones((m, k), ELEMENTS[element]), out)
                return [out]

            (y,) = both(layer)
            assert k != 0 or (y == steps).all()
    for bits, block in itertools.product((4, 2), (8, 64, 2**63 - 1)):
        scale = np.ones((n, -(-k // block)), F32)
        for zeros in (None, np.ones(scale.shape, np.uint8)):
            groups = _core.PackedGroups(np.ones((n, k), np.uint8), bits, block, scale, zeros, 1)
            groups.unpack(np.zeros((n, k), np.uint8))

            def grouped(make: Any, groups: Any = groups) -> list[Array]:
                y = [make((m, n), F32) for _ in range(3)]
                last = epilogue(Result.f32, n, True)
                _core.GroupGemmPlan(groups, last).run(a, np.ones(m, F32), y[0])
                x = np.ones((m, k), F32)
                assert _core.LinearPlan(groups, Element.f32, Code.s8, None, last).run(x, y[1])
                _core.FloatLinearPlan(groups, Element.f32, last).run(x, y[2])
                return y

            for y in both(grouped):
                assert (y == steps).all()
    for code, kind in itertools.product(BITS, KINDS):
        count = (1, n, n * -(-k // 8))[kind.value]
        width = -(-k * BITS[code] // 8)
        layout = _core.WeightLayout(n, k, kind, 8)
        w = _core.WeightOnly(np.zeros((n, width), np.uint8), code, layout, np.ones(count, F32), None, None)

        def floats(make: Any, w: Any = w) -> list[Array]:
            out = make((m, n), F32)
            _core.FloatLinearPlan(w, Element.f32, epilogue(Result.f32, n, True)).run(np.ones((m, k), F32), out)
            return [out]

        (y,) = both(floats)
        assert (y == steps).all()
    for call in (_core.GemmPlan.workspace_for, _core.BinaryGemmPlan.workspace_for):
        assert call(m, n, k) >= 0
    assert _core.LinearPlan.workspace_for(m, k) >= 0
    assert _core.WeightOnly.workspace_for(m, k) >= 0
    assert min(_core.GroupGemmPlan.workspace_for(m, n, k, 4, 8)) >= 0
    assert _core.GroupGemmPlan.float_workspace_for(m, n, k, 4, 8) >= 0
    bits_a, bits_b = np.zeros((m, -(-k // 8)), np.uint8), np.zeros((n, -(-k // 8)), np.uint8)
    matrix = _core.BinaryMatrix(bits_b, k)

    def binary(make: Any) -> list[Array]:
        y, scaled, one = make((m, n), I32), make((m, n), F32), np.ones(1, F32)
        _core.BinaryGemmPlan(matrix).run(bits_a, y)
        _core.BinaryGemmPlan(matrix, one, np.arange(n, dtype=F32)).run(bits_a, scaled, one)
        return [y, scaled]

    sums, scaled = both(binary)
    assert (sums == k).all()
    assert (scaled == steps + k).all()


@pytest.mark.parametrize("sizes", [(2**32, 2**32), (2**62, 4), (2**57, 0), (0, 2**57), (-1, 0), (-1, -1), (0, -5)])
def test_products_beyond_memory_are_refused(sizes: tuple[int, int]) -> None:
    p, q = sizes
    none = np.zeros(0, np.uint8)
    calls: list[Callable[[], Any]] = [
        lambda: _core.WeightLayout(p, q, Kind.tensor, 1),
        lambda: _core.PackedMatrix.bytes_for(p, q),
        lambda: _core.LinearPlan.workspace_for(p, q),
        lambda: _core.WeightOnly.workspace_for(p, q),
        lambda: _core.GemmPlan.workspace_for(1, p, q),
        lambda: _core.BinaryGemmPlan.workspace_for(1, p, q),
        lambda: _core.GroupGemmPlan.workspace_for(1, p, q, 4, 8),
        lambda: _core.GroupGemmPlan.float_workspace_for(p, 1, q, 4, 8),
        lambda: _core.binary_align_rows(none, p, q, none),
        lambda: _core.Sketches(p, 8, q), lambda: _core.Sketches(q, 8, p),
        lambda: _core.Window((p, 1, 1, q), (1, 1)),
        lambda: _core.Window((0, p, q, 1), (1, 1)),
        lambda: _core.Window((0, 1, 1, 0), (p, q), padding=(abs(p), abs(q)) * 2),
        lambda: _core.Window((0, 1, 1, 1), (p, 1), dilation=(q, 1), padding=(2**55, 0) * 2),
        lambda: _core.Window((p, 1, 1, 1), (1, 1), padding=(q, 0, q, 0)),
    ]  # fmt: skip
    assert [i for i, call in enumerate(calls) if not is_refused(call)] == []


@pytest.mark.parametrize("name", ["a", "out", "a_zero_point", "codes", "scale"])
def test_arrays_of_other_shapes_are_refused(name: str) -> None:
    given = {"a": (3, 5), "out": (3, 4), "a_zero_point": (3,), "codes": (5, 4), "scale": (4,)}
    given[name] = (*given[name][:-1], given[name][-1] + 1)
    packed = _core.PackedMatrix(np.ones(given["codes"], np.int8))
    last = _core.Epilogue.floats(Result.f32, UNBOUNDED, np.ones(given["scale"], F32))
    plan = _core.GemmPlan(packed, Code.s8, np.zeros(given["a_zero_point"], I32), last)
    with pytest.raises(ValueError, match="expected"):
        plan.run(np.ones(given["a"], np.int8), np.zeros(given["out"], F32))


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (ValueError, MemoryError):  # the latter where sizes are possible, and there is just not so much
        return True
    return False


# ---- images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 7), (2**40, 1)])
def test_convolutions_without_terms_give_what_is_added(dilation: int, kernel: tuple[int, int]) -> None:
    n, oh, ow = 3, 2, 5
    packed = _core.PackedMatrix(np.zeros((0, n), np.int8))
    bottom, right = (size - 1 + dilation * (k - 1) for size, k in zip((oh, ow), kernel, strict=True))
    window = _core.Window((2, 1, 1, 0), kernel, padding=(0, 0, bottom, right), dilation=(dilation, dilation))
    assert (window.out_height, window.out_width) == (oh, ow)
    for result, dtype in RESULTS.items():
        last = epilogue(result, n, bias=result in FLOATS, add=result is Result.s32)
        plan = _core.ConvPlan([packed], window, Code.s8, 3, [last])

        def run(make: Any, plan: Any = plan, dtype: Any = dtype) -> list[Array]:
            out = make((2 * oh * ow, n), dtype)
            plan.run(b"", out)
            return [out]

        (y,) = both(run)
        assert (y == (np.arange(n) if result is not Result.s8 else 0)).all()


@pytest.mark.parametrize(("count", "depth"), [(0, 3), (3, 0), (0, 0)])
def test_pools_and_depthwise_convolutions_of_nothing(count: int, depth: int) -> None:
    window, codes = _core.Window((count, 4, 5, depth), (2, 2)), _core.CodeParams(Code.s8, 1.0, 0, -1, 1)
    _core.MaxPoolPlan(window, Code.s8).run(b"", bytearray())
    _core.AveragePoolPlan(window, codes, codes, False).run(b"", bytearray())
    for height, kernel, padding in ((0, 1, 1), (1, 1, 1)):
        wrong = _core.Window((count, height, 5, depth), (kernel, 1), padding=(padding, 0, 0, 0))
        with pytest.raises(ValueError, match="window: no such pooling"):
            _core.MaxPoolPlan(wrong, Code.s8)
    with pytest.raises(ValueError, match="kernel: larger than the padded image"):
        _core.Window((count, 1, 5, depth), (2, 1))
    none = _core.Window((1, 4, 4, 0), (1, 1))
    with pytest.raises(ValueError, match="channels: must be positive"):
        _core.DepthwiseWeights(none, Code.s8, b"", Code.s8, None)
    window = _core.Window((0, 4, 4, 3), (1, 1), groups=3)
    weights = _core.DepthwiseWeights(window, Code.s8, np.ones(3, np.int8), Code.s8, None)
    plan = _core.DepthwiseConvPlan(weights, window, 0, _core.Epilogue())
    plan.run(b"", bytearray())
    assert plan.workspace_bytes == 0
    conv = _core.BinaryConv(np.zeros((1, 2, 1, 1, 0), np.uint8), 0)
    y = np.full((4, 2), 7, I32)
    _core.BinaryConvPlan(conv, _core.Window((1, 2, 2, 0), (1, 1)), False).run(b"", y)
    assert not y.any()


def test_a_pixel_beyond_memory_is_refused() -> None:
    huge = 2**62
    calls: list[Callable[[], Any]] = [
        lambda: _core.Window((1, 4, 4, 1), (1, 1), padding=(huge, 0, huge, 0)),
        lambda: _core.Window((1, 4, 4, 1), (3, 3), dilation=(huge, huge)),
        lambda: _core.Window((0, 1, 1, 0), (huge, 1), padding=(huge - 1, 0, huge - 1, 0)),
        lambda: _core.Window((0, 2, 2, 0), (2, 2), padding=(huge,) * 4, dilation=(huge, huge)),
    ]
    assert [i for i, call in enumerate(calls) if not is_refused(call)] == []


def test_windows_that_cannot_be() -> None:
    for options in ({"stride": (0, 1)}, {"dilation": (1, 0)}, {"padding": (0, 0, -1, 0)}, {"groups": 0}, {"groups": 3}):
        with pytest.raises(ValueError, match=r"stride|padding|groups"):
            _core.Window((1, 4, 4, 4), (2, 2), **options)
    with pytest.raises(ValueError, match="kernel: must be positive"):
        _core.Window((1, 4, 4, 4), (0, 2))


# ---- sketches and their scores -------------------------------------------------------------------------------


def test_sketches_of_sizes_that_cannot_be() -> None:
    for bins in (1, 2, 7, 2**25):
        with pytest.raises(ValueError, match="bins"):
            _core.Sketches(1, bins, 0)
    least, most = np.array([-(2**63)]), np.array([2**63 - 1])
    none, one = np.zeros(0), np.ones(1)
    with pytest.raises(ValueError, match="mapping"):
        _core.squared_error(_core.Histogram(none, none, none), one, least, most, one)
    for lower in (none, np.zeros(1)):
        (out,) = both(lambda make, a=lower: [scored(_core.squared_error, make, a)])
        assert (out == 0).all() or lower.size
        both(lambda make, a=lower: [scored(_core.divergence, make, a, 1e-9)])
    _core.squared_error(_core.Histogram(none, none, none), none, np.zeros(0, np.int64), np.zeros(0, np.int64), none)


def scored(function: Any, make: Any, lower: Array, *floor: float) -> Array:
    out = make(1, np.float64)
    function(_core.Histogram(lower, lower + 1, lower), np.ones(1), np.array([-3]), np.array([3]), *floor, out)
    return out


def test_logarithmic_codes_are_signed() -> None:
    levels = np.ones(3, F32)
    for code in (Code.u8, Code.u16, Code.u4, Code.u2, Code.b1):
        with pytest.raises(ValueError, match="logarithmic codes are signed"):
            _core.Logarithmic(code, np.ones(1, F32), levels, levels)
