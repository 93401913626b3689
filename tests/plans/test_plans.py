"""Every plan against the reference, its checks, its names, and what it promises about itself."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from conftest import THREADS
from lowbit import plans, reference
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Kind, granularity_of
from lowbit.plans import PLANS, BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs, family

Array = Any
FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
CODES = {"s8": (-128, 127), "u8": (0, 255), "s16": (-32768, 32767), "u16": (0, 65535), "s4": (-8, 7), "u4": (0, 15)}
STORED = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s4": np.uint8, "u4": np.uint8}
SCOPES: dict[str, list[tuple[tuple[int, ...], dict[str, Any]]]] = {
    "tensor": [((), {}), ((0,), {}), ((67,), {}), ((3, 5, 7), {}), ((40001,), {})],
    "channel": [((5, 33), {"axis": 0}), ((33, 5), {"axis": 1}), ((3, 4, 5, 6), {"axis": -3}), ((0, 4), {"axis": 1})],
    "token": [((5, 33), {}), ((3, 4, 65), {}), ((7,), {})],
    "group": [
        ((4, 128), {"group_size": 32}), ((6, 70), {"group_size": 16}), ((70, 6), {"group_size": 16, "axis": 0}),
        ((3, 130, 2), {"group_size": 64, "axis": 1}), ((2, 9), {"group_size": 100}),
    ],
}  # fmt: skip
ALL = [(scope, *case) for scope, cases in SCOPES.items() for case in cases]


def plan_of(op: str, shape: tuple[int, ...], options: dict[str, Any], **fields: Any) -> plans.Plan[Any]:
    cls = PLANS[op]
    preference = fields.pop("preference", "fastest")
    return cls.select(cls.Descriptor(shape=shape, **options, **fields), preference=preference)


class Problem:
    """Numbers that hurt, under random scales."""

    def __init__(self, shape: tuple[int, ...], scope: plans.PerTensorDescriptor, kind: str, lo: int, hi: int) -> None:
        rng = np.random.default_rng(len(shape) * 1000 + hi)
        g = scope.granularity
        compute = np.float64 if kind == "f64" else np.float32
        self.scale = np.asarray(rng.uniform(0.01, 0.1, g.scale_shape)).astype(compute)
        self.zero = np.asarray(rng.integers(lo, hi + 1, g.scale_shape)).astype(np.int32)
        s = reference.spread(self.scale.astype(np.float64), g, shape)
        x = rng.uniform(-1.3, 1.3, shape) * (hi - lo) * s
        pick = rng.random(shape)
        x = np.where(pick < 0.3, (np.rint(x / s) + 0.5) * s, x)
        for k, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
            x = np.where((pick > 0.9 + 0.02 * k) & (pick < 0.91 + 0.02 * k), special, x)
        dtype = FLOATS[kind]
        self.x = np.asarray(x).astype(dtype)
        dy = np.where(rng.random(shape) > 0.98, np.inf, rng.standard_normal(shape))
        self.dy = np.asarray(dy).astype(dtype)
        self.finite = np.asarray(np.where(np.isfinite(x), x, 0)).astype(dtype)
        self.dtype, self.compute, self.g = dtype, compute, g


def same(a: Array, b: Array) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind in "fV":
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))
    np.testing.assert_array_equal(a, b)


def codes_room(kind: str, shape: tuple[int, ...]) -> Array:
    n = int(np.prod(shape, dtype=np.int64))
    return np.zeros((n + 1) // 2, np.uint8) if kind in ("s4", "u4") else np.zeros(shape, STORED[kind])


def filled(scope: str, shape: tuple[int, ...], options: dict[str, Any], preference: str, kind: str, code: str) -> Any:
    """Everything every plan of a scope writes, for one pair of element kinds."""
    lo, hi = CODES[code]
    probe = plan_of(f"quantize_per_{scope}", shape, options, qmin=lo, qmax=hi, input_element=kind, output_element=code)
    p = Problem(shape, probe.descriptor, kind, lo, hi)
    fields = {"qmin": lo, "qmax": hi, "preference": preference}
    written: dict[str, Array] = {}

    def plan(op: str, **more: Any) -> plans.Plan[Any]:
        return plan_of(op.format(scope), shape, options, **fields, **more)

    q = written["q"] = codes_room(code, shape)
    plan("quantize_per_{}", input_element=kind, output_element=code).run(ForwardArgs(p.x, p.scale, p.zero, q))
    y = written["y"] = np.zeros(shape, p.dtype)
    plan("dequantize_per_{}", input_element=code, output_element=kind).run(ForwardArgs(q, p.scale, p.zero, y))
    f = written["fake"] = np.zeros(shape, p.dtype)
    plan("fake_quantize_per_{}", input_element=kind).run(ForwardArgs(p.x, p.scale, p.zero, f))
    for name, more in (("quantize", {"output_element": code}), ("fake_quantize", {})):
        dx = written[f"d {name}"] = np.zeros(shape, p.dtype)
        args = BackwardArgs(p.x, p.scale, p.zero, p.dy, dx)
        plan(f"{name}_per_{{}}_backward", input_element=kind, **more).run(args)
    dq = written["dq"] = np.zeros(shape, p.dtype)
    back = plan("dequantize_per_{}_backward", input_element=code, output_element=kind)
    back.run(DequantizeBackwardArgs(p.dy, p.scale, dq))
    learned = plan("fake_quantize_per_{}_backward", input_element=kind, learned=True)
    room = np.zeros(learned.workspace_size, np.uint8)
    out = [np.zeros(shape, p.dtype), np.full_like(p.scale, 99), np.full_like(p.scale, 99)]
    learned.run(BackwardArgs(p.x, p.scale, p.zero, p.dy, *out, workspace=room))
    written |= dict(zip(("dx", "ds", "dz"), out, strict=True))
    if p.x.size:
        for mode in ("symmetric", "asymmetric"):
            made = plan(f"dynamic_range_quantize_{mode}_per_{{}}", input_element=kind, output_element=code)
            room = np.zeros(made.workspace_size, np.uint8)
            got = [codes_room(code, shape), np.zeros_like(p.scale), np.full_like(p.zero, -99)]
            made.run(DynamicArgs(p.finite, *got, room))
            written |= {f"{mode} {k}": v for k, v in zip("qsz", got, strict=True)}
    return written


EMPTY = [
    ("tensor", (0,), {}), ("tensor", (3, 0), {}), ("channel", (0, 4), {"axis": 0}), ("channel", (4, 0), {"axis": 0}),
    ("channel", (0, 4, 5), {"axis": 1}), ("token", (0, 5), {}), ("token", (5, 0), {}),
    ("group", (0, 128), {"group_size": 32}), ("group", (4, 0), {"group_size": 32}),
    ("group", (128, 13, 0), {"group_size": 64, "axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "shape", "options"), EMPTY, ids=str)
@pytest.mark.parametrize("kind", FLOATS)
def test_plans_of_nothing_write_nothing_but_gradients_of_zero(scope: str, shape: Any, options: Any, kind: str) -> None:
    for code in CODES:
        got = filled(scope, shape, options, "fastest", kind, code)
        for name, want in filled(scope, shape, options, "reference", kind, code).items():
            same(got[name], want)
        assert not got["ds"].any()
        assert not got["dz"].any()
    made = plan_of(
        f"dynamic_range_quantize_symmetric_per_{scope}", shape, options, input_element=kind, output_element="s8"
    )
    compute = np.float64 if kind == "f64" else np.float32
    room, scale = np.zeros(made.workspace_size, np.uint8), np.zeros(made.descriptor.granularity.scale_shape, compute)
    with pytest.raises(lb.InvalidProblem, match="empty"):
        made.run(DynamicArgs(np.zeros(shape, FLOATS[kind]), np.zeros(shape, np.int8), scale, None, room))


@pytest.mark.parametrize(("scope", "shape", "options"), ALL, ids=str)
@pytest.mark.parametrize("kind", FLOATS)
def test_every_plan_equals_the_reference(isa: str, scope: str, shape: Any, options: Any, kind: str) -> None:
    for code in CODES:
        want = filled(scope, shape, options, "reference", kind, code)
        for threads in THREADS:
            lb.set_num_threads(threads)
            got = filled(scope, shape, options, "fastest", kind, code)
            for name in want:
                same(got[name], want[name])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("qmin", "qmax"), [(-128, 127), (0, 15), (-32768, 32767)])
def test_all_halves(isa: str, kind: str, qmin: int, qmax: int) -> None:
    x = np.arange(65536, dtype=np.uint16).view(FLOATS[kind])
    dy = np.ones_like(x)
    rng = np.random.default_rng(qmax)
    plan = plan_of("fake_quantize_per_tensor", x.shape, {}, qmin=qmin, qmax=qmax, input_element=kind)
    back = plan_of("fake_quantize_per_tensor_backward", x.shape, {}, qmin=qmin, qmax=qmax, input_element=kind)
    y = np.zeros_like(x)
    with np.errstate(all="ignore"):
        for scale in [0.03, 0.065, 1.0, 2.0**-20, *rng.uniform(1e-4, 1, 16)]:
            s, z = np.asarray(scale, np.float32), np.asarray(rng.integers(qmin, qmax + 1), np.int32)
            plan.run(ForwardArgs(x, s, z, y))
            same(y, reference.fake_quantize(x, s, z, qmin, qmax, plan._g))
            back.run(BackwardArgs(x, s, z, dy, y))
            same(y, reference.fake_quantize_backward(dy, x, s, z, qmin, qmax, plan._g))


@pytest.mark.parametrize("kind", FLOATS)
def test_the_law(isa: str, kind: str) -> None:
    """fake_quantize(x) == dequantize(quantize(x)) for all that is no NaN, and NaN stays NaN."""
    descriptor = plans.PerTensorDescriptor((50_000,))
    p = Problem((50_000,), descriptor, kind, -128, 127)
    p.scale[...], p.zero[...] = 0.05, 7
    got = lb.fake_quantize(p.x, p.scale, p.zero)
    params = lb.QuantizationParams("int8", scale=p.scale, zero_point=p.zero)
    want = lb.dequantize(lb.quantize(p.x, params=params), dtype=p.dtype)
    nan = np.isnan(p.x.astype(np.float64))
    assert nan.any()
    assert np.isnan(got[nan].astype(np.float64)).all()
    same(got[~nan], want[~nan])


def test_a_clipped_place_has_no_gradient() -> None:
    x, dy = np.float32([9.0, np.nan, np.inf, -np.inf, 0.1]), np.full(5, np.inf, np.float32)
    np.testing.assert_array_equal(lb.fake_quantize_backward(dy, x, 0.01), [0, 0, 0, 0, np.inf])
    np.testing.assert_array_equal(lb.quantize_backward(dy, x, 0.01), [0, 0, 0, 0, np.inf])


def test_in_place(isa: str) -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 1003)).astype(np.float32)
    want = lb.fake_quantize(x, 0.02), lb.quantize_backward(dy, x, 0.02)
    over_dy, over_x = dy.copy(), x.copy()
    lb.quantize_backward(over_dy, x, 0.02, out=over_dy)
    lb.fake_quantize(over_x, 0.02, out=over_x)
    np.testing.assert_array_equal(over_x, want[0])
    np.testing.assert_array_equal(over_dy, want[1])


@pytest.mark.parametrize("offset", [0, 16, 32, 256, 512, 1008])
def test_any_place_in_a_page(isa: str, offset: int) -> None:
    """Loops start at the end where results lie a little further in their page than what they read."""
    n, page = 70_001, 1024
    room = np.empty(2 * n + 6 * page, np.float32)
    first = -room.ctypes.data // 4 % page
    x, y = room[first : first + n], room[first + (n // page + 2) * page + offset :][:n]
    x[...] = np.random.default_rng(2).standard_normal(n)
    for threads in THREADS:
        lb.set_num_threads(threads)
        want = reference.fake_quantize(x, np.float32(0.02), np.int32(0), -128, 127, D((n,)).granularity)
        np.testing.assert_array_equal(lb.fake_quantize(x, 0.02, out=y), want)


def _shifted() -> tuple[Array, Array]:
    room = np.zeros(101, np.float32)
    return room[:-1], room[1:]


@pytest.mark.parametrize("swap", [False, True])
def test_a_result_over_part_of_an_operand_is_refused(swap: bool) -> None:
    x, out = reversed(_shifted()) if swap else _shifted()
    other = np.zeros(100, np.float32)
    with pytest.raises(InvalidProblem, match="out: shares memory with x; expected memory of its own, or all of x"):
        lb.fake_quantize(x, 0.5, out=out)
    with pytest.raises(InvalidProblem, match="out: shares memory with dy"):
        lb.fake_quantize_backward(x, other, 0.5, out=out)
    with pytest.raises(InvalidProblem, match="out: shares memory with x"):
        lb.fake_quantize_learned_backward(other, x, 0.5, out=out)
    with pytest.raises(InvalidProblem, match="out: shares memory with dy"):
        lb.dequantize_backward(x, 0.5, out=out)
    for preference in ("fastest", "reference"):
        forward = plan_of("fake_quantize_per_tensor", (100,), {}, preference=preference)
        with pytest.raises(InvalidProblem, match="output: shares memory with input"):
            forward.run(ForwardArgs(x, 0.5, 0, out))
        backward = plan_of("fake_quantize_per_tensor_backward", (100,), {}, preference=preference)
        with pytest.raises(InvalidProblem, match="d_input: shares memory with d_output"):
            backward.run(BackwardArgs(other, 0.5, 0, x, out))
    assert not x.any()


def test_codes_over_their_numbers_are_refused() -> None:
    x = np.zeros(100, np.float32)
    plan = plan_of("quantize_per_tensor", (100,), {}, output_element="s8")
    with pytest.raises(InvalidProblem, match=r"output: shares memory with input; expected memory of its own$"):
        plan.run(ForwardArgs(x, 0.5, 0, x.view(np.int8)[:100]))


def test_sums_do_not_depend_on_threads(isa: str) -> None:
    x, dy = np.random.default_rng(1).standard_normal((2, 300_001)).astype(np.float32)
    found = set()
    for threads in THREADS:
        lb.set_num_threads(threads)
        _, ds, dz = lb.fake_quantize_learned_backward(dy, x, 0.02)
        found.add((ds.tobytes(), dz.tobytes()))
    assert len(found) == 1


def run_sum(values: Array) -> float:
    """The sum of one run as docs/reference/contract.md words it, element by element."""
    total = 0.0
    for first in range(0, len(values), 4096):
        lanes = [0.0] * 8
        for i, v in enumerate(values[first : first + 4096]):
            lanes[i % 8] += float(v)
        a, b, c, d, e, f, g, h = lanes
        total += ((a + e) + (c + g)) + ((b + f) + (d + h))
    return total


def column_sum(values: Array) -> float:
    total = 0.0
    for first in range(0, len(values), 64):
        band = 0.0
        for v in values[first : first + 64]:
            band += float(v)
        total += band
    return total


def runs_of(table: Array, axis: int, block: int | None) -> list[float]:
    """Sums of [outer, axis, inner], one for each scale, by runs and columns."""
    outer, size, inner = table.shape
    found = []
    if block is not None:
        for o, first, i in itertools.product(range(outer), range(0, size, block), range(inner)):
            found.append((run_sum if inner == 1 else column_sum)(table[o, first : first + block, i]))
        return found
    for c in range(size):
        if inner == 1 and size > 1:
            found.append(column_sum(table[:, c, 0]))
        else:
            found.append(0.0)
            for o in range(outer):
                found[-1] += run_sum(table[o, c])
    return found


@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [
        ((3, 1, 5000), 1, None), ((7, 1, 9), 1, None), ((1, 9000), 0, None), ((300, 1), 1, None),
        ((2, 1, 40, 30), 1, None), ((3, 2, 5000), 1, None), ((300, 3), 1, None),
        ((3, 1, 50), 1, 4), ((90, 1), 1, 4), ((1, 9000), 1, 9000),
        ((2, 150, 3), 1, 100), ((9000,), 0, None),
    ],
)  # fmt: skip
def test_runs_end_with_their_outer_index_also_where_they_touch(
    isa: str, shape: tuple[int, ...], axis: int, block: int | None
) -> None:
    rng = np.random.default_rng(3)  # float64, whose sums are not narrowed: every order of adding shows
    x = np.full(shape, 1e9, np.float64)  # above the range: the terms are dy * qmax and dy * -s
    dy = rng.standard_normal(shape) * 10.0 ** rng.integers(-7, 7, shape)
    table = dy.reshape(math.prod(shape[:axis]), shape[axis], -1)
    want = np.asarray(runs_of(table * 127.0, axis, block)), np.asarray(runs_of(table * -0.5, axis, block))
    g = granularity_of(shape, axis, block)
    scale, zero = np.full(g.scale_shape, 0.5, np.float64), np.zeros(g.scale_shape, np.int32)
    found = lb.fake_quantize_learned_backward(dy, x, scale, zero, axis=axis, group_size=block)
    by_reference = reference.fake_quantize_learned_backward(dy, x, scale, zero, -128, 127, g)
    for got in (found, by_reference):
        for sums, expected in zip(got[1:], want, strict=True):
            np.testing.assert_array_equal(sums.reshape(-1), expected)


def test_what_runs_are_shows_in_the_sum() -> None:
    # One channel, two runs that touch: their sums are rounded apart, as 1 + 2^-53 + 2^-53 is.
    dy = np.zeros((2, 1, 8))
    dy[0, 0, :2], dy[1, 0, 1] = (1, 2.0**-53), 2.0**-53
    x = np.full(dy.shape, 1e9)
    _, ds, _ = lb.fake_quantize_learned_backward(dy, x, np.ones(1), np.zeros(1, np.int32), qmin=-1, qmax=1, axis=1)
    assert ds == 1.0
    _, ds, _ = lb.fake_quantize_learned_backward(dy, x, 1.0, 0, qmin=-1, qmax=1)
    assert ds == 1.0 + 2.0**-52


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 2, 5000), {"axis": 1}), ((3, 1, 5000), {"axis": 1}), ((2, 9001), {}),
        ((3, 9000, 2), {"axis": 1, "group_size": 5000}),
    ],
)  # fmt: skip
def test_the_mean_behind_binary_scales_is_one_run_in_c_order(shape: tuple[int, ...], options: dict[str, int]) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-7, 7, shape)
    g = granularity_of(shape, options.get("axis"), options.get("group_size"))
    table = np.abs(x).reshape(g.outer, g.axis, g.inner)
    if g.kind is Kind.TENSOR:
        runs = [table.reshape(-1)]
    elif g.kind is Kind.CHANNEL:
        runs = [table[:, c].reshape(-1) for c in range(g.axis)]
    else:
        at = itertools.product(range(g.outer), range(0, g.axis, g.block), range(g.inner))
        runs = [table[o, first : first + g.block, i] for o, first, i in at]
    want = np.array([run_sum(r) / len(r) for r in runs])
    np.testing.assert_array_equal(lb.quantize(x, "binary", **options).params.scale.reshape(-1), want)


# ---- what is refused ------------------------------------------------------------------------------------

D = plans.PerTensorDescriptor


@pytest.mark.parametrize(
    ("cls", "fields", "error", "words"),
    [
        ("QuantizePerTensorPlan", {"input_element": "s8", "output_element": "s8"}, Unsupported, "input_element: s8"),
        ("QuantizePerTensorPlan", {"input_element": "f32"}, Unsupported, "output_element: None"),
        ("QuantizePerTensorPlan", {"output_element": "f16"}, Unsupported, "output_element: f16"),
        ("DequantizePerTensorPlan", {"input_element": "f32", "output_element": "f32"}, Unsupported, "input_element"),
        ("FakeQuantizePerTensorPlan", {"output_element": "s8"}, Unsupported, "output_element: s8"),
        ("FakeQuantizePerTensorPlan", {"input_element": "f8"}, Unsupported, "f8"),
        ("FakeQuantizePerTensorPlan", {"shape": (-1,)}, InvalidProblem, r"shape: \(-1,\)"),
        ("FakeQuantizePerTensorPlan", {"qmin": 3, "qmax": 2}, InvalidProblem, "qmax: 2 is below qmin, 3"),
        ("FakeQuantizePerTensorPlan", {"qmax": 1 << 20}, InvalidProblem, "qmin, qmax"),
        ("FakeQuantizePerTensorPlan", {"qmax": 1.5}, InvalidProblem, "qmax: 1.5"),
        ("FakeQuantizePerTensorPlan", {"learned": True}, InvalidProblem, "learned"),
        ("QuantizePerTensorPlan", {"output_element": "s4", "qmax": 8}, InvalidProblem, r"\[-8, 7\]"),
    ],
)
def test_select_refuses(cls: str, fields: dict[str, Any], error: type[Exception], words: str) -> None:
    plan = getattr(plans, cls)
    with pytest.raises(error, match=words):
        plan.select(D(**{"shape": (4,), **fields}))


def test_select_refuses_scopes() -> None:
    for size in (0, -3):
        with pytest.raises(InvalidProblem, match=f"group_size: {size}"):
            plans.FakeQuantizePerGroupPlan.select(plans.PerGroupDescriptor((4, 4), group_size=size))
    with pytest.raises(InvalidProblem, match="axis: 2"):
        plans.FakeQuantizePerChannelPlan.select(plans.PerChannelDescriptor((4, 4), axis=2))
    with pytest.raises(InvalidProblem, match="descriptor: PerTensorDescriptor; expected PerGroupDescriptor"):
        plans.FakeQuantizePerGroupPlan.select(D((4,)))
    with pytest.raises(Unsupported, match="device: 'tpu'"):
        plans.FakeQuantizePerTensorPlan.select(D((4,)), device="tpu")
    with pytest.raises(InvalidProblem, match="preference"):
        plans.FakeQuantizePerTensorPlan.select(D((4,)), preference="slow")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"input": np.zeros(5, np.float32)}, InvalidProblem, r"input: shape \(5,\); expected \(4,\)"),
        ({"input": np.zeros(4)}, Unsupported, "input: float64; expected float32"),
        ({"input": [0.0] * 4}, InvalidProblem, "input: list"),
        ({"input": np.zeros(8, np.float32)[::2]}, InvalidProblem, "input: expected an aligned, C-contiguous"),
        ({"output": np.zeros((2, 2), np.float32)}, InvalidProblem, r"output: shape \(2, 2\)"),
        ({"output": np.frombuffer(bytes(16), np.float32)}, InvalidProblem, "output: expected a writable"),
        ({"scale": np.ones(2, np.float32)}, InvalidProblem, r"scale: shape \(2,\); expected \(\)"),
        ({"scale": np.ones((), np.float64)}, Unsupported, "scale: float64; expected float32"),
        ({"scale": 0.0}, InvalidProblem, r"scale: .*0.0.*; expected finite"),
        ({"scale": float("nan")}, InvalidProblem, "scale: .*nan"),
        ({"zero_point": 200}, InvalidProblem, r"zero_point: 200; expected in \[-128, 127\]"),
        ({"zero_point": 0.5}, InvalidProblem, "zero_point: 0.5; expected an integer"),
    ],
)
def test_run_refuses(change: dict[str, Any], error: type[Exception], words: str) -> None:
    plan = plans.FakeQuantizePerTensorPlan.select(D((4,)))
    y = np.full(4, 5, np.float32)
    args = ForwardArgs(**{"input": np.zeros(4, np.float32), "scale": 0.1, "zero_point": 0, "output": y, **change})
    with pytest.raises(error, match=words):
        plan.run(args)
    assert (y == 5).all()


def test_learned_needs_its_workspace() -> None:
    plan = plans.FakeQuantizePerTensorBackwardPlan.select(D((4,), learned=True))
    x, s = np.zeros(4, np.float32), np.zeros((), np.float32)
    args = BackwardArgs(x, 0.1, 0, x.copy(), x.copy(), s.copy(), s.copy())
    with pytest.raises(InvalidProblem, match="workspace: NoneType"):
        plan.can_implement(args)
    args.workspace = np.zeros(1, np.uint8)
    with pytest.raises(InvalidProblem, match="workspace: 1 bytes; expected"):
        plan.run(args)
    with pytest.raises(InvalidProblem, match="d_scale: None"):
        plan.run(BackwardArgs(x, 0.1, 0, x.copy(), x.copy()))


def test_dynamic_names_what_is_not_finite() -> None:
    plan = plans.DynamicRangeQuantizeSymmetricPerTokenPlan.select(
        plans.PerTokenDescriptor((2, 3), input_element="f32", output_element="s8")
    )
    x = np.float32([[1, 2, 3], [4, np.inf, 6]])
    args = DynamicArgs(x, np.zeros((2, 3), np.int8), np.zeros(2, np.float32))
    args.workspace = np.zeros(plan.workspace_size, np.uint8)
    with pytest.raises(InvalidProblem, match=r"input: inf at index \(1, 1\)"):
        plan.run(args)


# ---- what plans are -------------------------------------------------------------------------------------


def test_the_family_is_whole() -> None:
    scopes = ["tensor", "channel", "token", "group"]
    given = {f"{op}_per_{s}{b}" for op in ("quantize", "dequantize", "fake_quantize") for s in scopes
             for b in ("", "_backward")}  # fmt: skip
    found = {f"dynamic_range_quantize_{m}_per_{s}" for m in ("symmetric", "asymmetric") for s in scopes}
    assert set(PLANS) == given | found | {"matmul", "conv2d", "linear"}
    assert all(getattr(plans, cls.__name__) is cls for cls in PLANS.values())


def test_the_classes_of_the_table_are_ordinary_classes() -> None:
    assert len(PLANS) == len({cls.__doc__ for cls in PLANS.values()}) == 35
    for cls in PLANS.values():
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls.__qualname__ == cls.__name__ in plans.__all__
    assert plans.QuantizePerTokenPlan.__module__ == "lowbit.plans"
    assert plans.DequantizePerTokenBackwardPlan.__doc__ == "dq = dy * s; one scale per row of the last axis."


def test_the_stub_declares_what_the_table_makes() -> None:
    """The types that mypy sees, in family.pyi."""
    stub = Path(family.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    declared = re.findall(r"^class (\w+)\((\w+)(?:\[(\w+)\])?\): \.\.\.$", stub, re.M)
    made = [getattr(family, name) for name in family.__all__]
    assert [(name, base) for name, base, _ in declared] == [(c.__name__, c.__base__.__name__) for c in made]
    assert all(args in ("", cls.Args.__name__) for (_, _, args), cls in zip(declared, made, strict=True))


def test_a_plan_is_a_value() -> None:
    plan = plan_of("quantize_per_group", (4, 64), {"group_size": 32}, input_element="bf16", output_element="s4",
                   qmin=-8, qmax=7)  # fmt: skip
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan
        assert hash(other) == hash(plan)
        assert other.sku == plan.sku
    with pytest.raises(AttributeError, match="immutable"):
        plan.device = "cuda"
    with pytest.raises(AttributeError):
        plan.descriptor.qmin = 0  # type: ignore[misc]
    sku = plan.sku
    assert str(sku) == f"quantization/quantize_per_group/bf16-s4/{lb._core.active_isa()}/cpu"
    assert {sku: 1}[pickle.loads(pickle.dumps(sku))] == 1
    guarantee = plan.precision_guarantee
    assert (guarantee.math_precision, guarantee.deterministic, guarantee.bit_stable) == ("f32", True, True)
    learned = plan_of("fake_quantize_per_tensor_backward", (4,), {}, learned=True)
    assert learned.precision_guarantee.accumulator == "f64"
    assert learned.workspace_size > 0
    assert plan.descriptor.num_groups == 2  # type: ignore[attr-defined]


def test_many_threads_at_once() -> None:
    plan = plan_of("fake_quantize_per_tensor", (5000,), {})
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    want = lb.fake_quantize(x, 0.02)
    wrong = []

    def work() -> None:
        y = np.zeros_like(x)
        for _ in range(200):
            y[:] = 0
            plan.run(ForwardArgs(x, 0.02, 0, y))
            if not np.array_equal(y, want):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_run_allocates_no_arrays() -> None:
    n = 1 << 16
    x, y = np.ones(n, np.float32), np.zeros(n, np.float32)
    scale, zero = np.full((), 0.1, np.float32), np.zeros((), np.int32)
    forward = plan_of("fake_quantize_per_tensor", (n,), {})
    learned = plan_of("fake_quantize_per_tensor_backward", (n,), {}, learned=True)
    first = ForwardArgs(x, scale, zero, y)
    second = BackwardArgs(x, scale, zero, x, y, scale.copy(), scale.copy(), np.zeros(learned.workspace_size, np.uint8))
    for plan, args in ((forward, first), (learned, second)):
        plan.run(args)
        tracemalloc.start()
        plan.run(args)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4096


def test_torch_tensors_are_lent() -> None:
    torch = pytest.importorskip("torch")
    for kind, dtype in itertools.zip_longest(
        ("f32", "f64", "f16", "bf16"), ("float32", "float64", "float16", "bfloat16")
    ):
        x = torch.randn(64, dtype=getattr(torch, dtype))
        y = torch.empty_like(x)
        plan_of("fake_quantize_per_tensor", (64,), {}, input_element=kind).run(ForwardArgs(x, 0.1, 0, y))
        same(y.to(torch.float64).numpy(), lb.fake_quantize(x, 0.1).astype(np.float64))


def test_torch_tensors_without_cpu_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    plan = plan_of("fake_quantize_per_tensor", (4,), {})
    for x, error in ((torch.zeros(4, device="meta"), "expected CPU memory"), (torch.zeros(4).to_sparse(), "not lend")):
        with pytest.raises(lb.Unsupported, match=f"^input: .*{error}"):
            plan.run(ForwardArgs(x, 0.5, 0, np.empty(4, np.float32)))
        with pytest.raises(lb.Unsupported, match=f"^x: .*{error}"):
            lb.quantize(x)
