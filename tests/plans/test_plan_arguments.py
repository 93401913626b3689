"""What plans are run on: `can_implement` raises whenever `run` would, and scales may be 16-bit floats."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowbit as lb
import torch
from every_kind import SIDE, kinds, tensor
from lowbit import plans
from lowbit.plans import PLANS, BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs

pytestmark = pytest.mark.filterwarnings("ignore:x. has negative values")  # which symmetric unsigned codes clip

F32 = np.float32
FLOATS = {"f32": F32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
CODES = {"s8": (-128, 127), "u8": (0, 255), "s16": (-32768, 32767), "u16": (0, 65535), "s4": (-8, 7), "u4": (0, 15)}
STORED = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s4": np.uint8, "u4": np.uint8}
SCOPES: dict[str, list[tuple[tuple[int, ...], dict[str, Any]]]] = {
    "tensor": [((), {}), ((0,), {}), ((7,), {}), ((3, 5), {})],
    "channel": [((5, 3), {"axis": 0}), ((3, 5), {"axis": -1}), ((0, 4), {"axis": 1})],
    "token": [((5, 3), {}), ((2, 3, 4), {}), ((0, 3), {})],
    "group": [((4, 8), {"group_size": 4}), ((6, 7), {"group_size": 3, "axis": 0}), ((3, 0), {"group_size": 2})],
}
AFFINE = sorted(op for op in PLANS if op.rpartition("_per_")[2].split("_")[0] in SCOPES)
SCALES = [0.05, 1.0, 0.0, -1.0, np.nan, np.inf, 2.0**-126, 1e34, 3e38]
ZEROS = [0, 1, -1, 3, 200, 40000, -40000]


def elements(op: str, draw: Any) -> dict[str, Any]:
    """The element kinds of a descriptor, and the codes' range."""
    floats, codes = draw(st.sampled_from(sorted(FLOATS))), draw(st.sampled_from(sorted(CODES)))
    lo, hi = CODES[codes]
    if op.startswith("fake_quantize"):
        return {"input_element": floats, "qmin": lo, "qmax": hi}
    pair = (codes, floats) if op.startswith("dequantize") else (floats, codes)
    return {"input_element": pair[0], "output_element": pair[1], "qmin": lo, "qmax": hi}


def room(kind: str, shape: tuple[int, ...]) -> Any:
    if kind in FLOATS:
        return np.zeros(shape, FLOATS[kind])
    n = int(np.prod(shape, dtype=np.int64))
    return np.zeros((n + 1) // 2, np.uint8) if kind in ("s4", "u4") else np.zeros(shape, STORED[kind])


def valid(plan: Any, draw: Any) -> Any:
    """Arguments that fit the plan, but for values of scales, zero points and data, which may be anything."""
    d, scales = plan.descriptor, plan.descriptor.granularity.scale_shape
    number = d.input_element if d.input_element in FLOATS else d.output_element
    compute = np.float64 if number == "f64" else F32
    scale = np.full(scales, 0.05, compute)
    zero = np.full(scales, min(max(0, d.qmin), d.qmax), np.int32)
    if scale.size and draw(st.integers(0, 3)) == 0:
        scale.reshape(-1)[-1] = draw(st.sampled_from(SCALES))
    if zero.size and draw(st.integers(0, 3)) == 0:
        zero.reshape(-1)[-1] = draw(st.sampled_from(ZEROS))
    x, y = room(d.input_element.value, d.shape), room((d.output_element or d.input_element).value, d.shape)
    if x.dtype.kind in "fV" and x.size and draw(st.integers(0, 3)) == 0:
        x.reshape(-1)[-1] = draw(st.sampled_from([np.nan, -np.inf, 6e4, 1.0]))
    if draw(st.integers(0, 7)) == 0:
        y = x
    work = np.zeros(plan.workspace_size, np.uint8)
    if plan.Args is DynamicArgs:
        return DynamicArgs(x, y, scale, draw(st.sampled_from([zero, None])), work)
    if plan.Args is DequantizeBackwardArgs:
        return DequantizeBackwardArgs(y, scale, room(d.output_element.value, d.shape))
    if plan.Args is BackwardArgs:
        return BackwardArgs(x, scale, zero, np.ones_like(x), np.zeros_like(x), scale.copy(), scale.copy(), work)
    return ForwardArgs(x, scale, draw(st.sampled_from([zero, None, 0, 1])), y)


def spoiled(args: Any, draw: Any) -> Any:
    """The same with one field that may not fit."""
    name = draw(st.sampled_from(sorted(vars(args))))
    value = getattr(args, name)
    if not isinstance(value, np.ndarray):
        setattr(args, name, draw(st.sampled_from([None, 3, "text", [1.0]])))
        return args
    frozen = value.copy()
    frozen.flags.writeable = False
    wider = np.zeros((*value.shape, 2), value.dtype)
    misaligned = np.zeros(value.nbytes + 1, np.uint8)[1:].view(value.dtype).reshape(value.shape)
    choices: list[Any] = [
        None, 0.5, 3, "text", [1.0], frozen, wider[..., 0], wider, misaligned, value[..., None], value.reshape(-1)[:0],
        *(np.ones(value.shape, kind) for kind in (np.float16, np.int8, ml_dtypes.bfloat16, ">f4", np.float64)),
    ]  # fmt: skip
    if value.dtype in (np.float32, np.float64, np.float16):
        choices += [torch.from_numpy(value.copy()), torch.from_numpy(value.copy()).to(torch.bfloat16)]
    setattr(args, name, draw(st.sampled_from(choices)))
    return args


def raised(call: Any, args: Any) -> Exception | None:
    try:
        call(args)
    except (lb.InvalidProblem, lb.Unsupported) as error:
        return error
    return None


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_can_implement_raises_whenever_run_would(data: Any) -> None:
    op, draw = data.draw(st.sampled_from(AFFINE)), data.draw
    shape, options = draw(st.sampled_from(SCOPES[op.rpartition("_per_")[2].split("_")[0]]))
    fields = elements(op, draw)
    if op.startswith("fake_quantize") and op.endswith("_backward"):
        fields["learned"] = draw(st.booleans())
    cls = PLANS[op]
    preference = draw(st.sampled_from(["fastest", "reference"]))
    plan = cls.select(cls.Descriptor(shape=shape, **options, **fields), preference=preference)
    args = valid(plan, draw)
    for _ in range(draw(st.integers(0, 2))):
        args = spoiled(args, draw)
    before = raised(plan.can_implement, args)
    after = raised(plan.run, args)
    assert after is None or before is not None, f"run: {after}"
    if after is not None:
        assert type(after) is type(before)


@pytest.mark.parametrize("op", AFFINE)
@pytest.mark.parametrize("preference", ["fastest", "reference"])
def test_values_that_kernels_refuse_are_refused_before(op: str, preference: Any) -> None:
    scope = op.rpartition("_per_")[2].split("_")[0]
    shape, options = SCOPES[scope][-2]
    fields: Any = {"input_element": "f32", "output_element": "s8"}
    if op.startswith("fake"):
        fields = {"input_element": "f32"}
    elif op.startswith("dequantize"):
        fields = {"input_element": "s8", "output_element": "f32"}
    cls = PLANS[op]
    plan = cls.select(cls.Descriptor(shape=shape, **options, **fields), preference=preference)
    scales = plan.descriptor.granularity.scale_shape

    def arguments(scale: float, zero: int, x: float) -> Any:
        s, z = np.full(scales, scale, F32), np.full(scales, zero, np.int32)
        floats, codes = np.full(shape, x, F32), np.zeros(shape, np.int8)
        work = np.zeros(plan.workspace_size, np.uint8)
        if plan.Args is DynamicArgs:
            return DynamicArgs(floats, codes, s, z, work)
        if plan.Args is DequantizeBackwardArgs:
            return DequantizeBackwardArgs(floats, s, floats.copy())
        if plan.Args is BackwardArgs:
            return BackwardArgs(floats, s, z, floats.copy(), floats.copy())
        pair = (codes, floats) if op.startswith("dequantize") else (floats, floats.copy() if "fake" in op else codes)
        return ForwardArgs(pair[0], s, z, pair[1])

    plan.can_implement(arguments(0.5, 3, 1.0))
    plan.run(arguments(0.5, 3, 1.0))
    bad = [(0.0, 0, 1.0), (np.nan, 0, 1.0), (1e37, 0, 1.0), (0.5, 200, 1.0)]
    words = "scale|zero_point"
    if plan.Args is DynamicArgs:
        bad, words = [(1.0, 0, np.nan), (1.0, 0, np.inf), (1.0, 0, 3.3e38)], "^input: "
    if plan.Args is DequantizeBackwardArgs:
        bad = bad[:3]
    for values in bad:
        for call in (plan.can_implement, plan.run):
            with pytest.raises(lb.InvalidProblem, match=words):
                call(arguments(*values))


def test_linear_plans_look_for_what_layers_refuse() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 8)).astype(F32)
    for dtype, activation, block in (
        ("int8", "int8", None),
        ("int8", "uint8", None),
        ("int4", "int8", 4),
        ("int8", "float", None),
    ):
        layer = lb.QuantizedLinear(weight, dtype=dtype, activation_dtype=activation, group_size=block)
        d = plans.LinearDescriptor(3, 8, 4, layer.params, activation_dtype=activation)
        for preference in ("fastest", "reference"):
            plan = plans.LinearPlan.select(d, preference=preference)  # type: ignore[arg-type]
            for bad in (1.0, np.nan, np.inf, 3.3e38):
                x = np.full((3, 8), bad, F32)
                args = plans.LinearArgs(x, layer, np.empty((3, 4), F32))
                before, after = raised(plan.can_implement, args), raised(plan.run, args)
                assert (before is None) == (after is None) == (bad == 1.0 or plan.path == "float")


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16, torch.float16, torch.bfloat16], ids=str)
def test_scales_may_be_16_bit_floats(kind: str, narrow: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 8)).astype(FLOATS[kind])
    exact = torch.from_numpy(rng.uniform(0.01, 0.1, 6)).to(narrow if isinstance(narrow, torch.dtype) else torch.float32)
    given = exact if isinstance(narrow, torch.dtype) else exact.numpy().astype(narrow)
    wide = (exact.double().numpy() if isinstance(narrow, torch.dtype) else given.astype(np.float64)).astype(
        np.float64 if kind == "f64" else F32
    )
    for op, fields in (
        ("quantize_per_channel", {"output_element": "s8"}), ("fake_quantize_per_channel", {}),
        ("fake_quantize_per_channel_backward", {}), ("quantize_per_channel_backward", {"output_element": "s8"}),
    ):  # fmt: skip
        for preference in ("fastest", "reference"):
            cls = PLANS[op]
            plan = cls.select(cls.Descriptor(shape=(6, 8), axis=0, input_element=kind, **fields), preference=preference)  # type: ignore[arg-type]
            found = []
            for scale in (given, wide):
                y = np.zeros((6, 8), np.int8 if op == "quantize_per_channel" else FLOATS[kind])
                args: Any = ForwardArgs(x, scale, None, y)
                if op.endswith("_backward"):
                    args = BackwardArgs(x, scale, None, np.ones_like(x), y)
                plan.can_implement(args)
                plan.run(args)
                found.append(y)
            np.testing.assert_array_equal(found[0].view(np.uint8), found[1].view(np.uint8))


def test_scales_that_are_written_keep_their_type() -> None:
    """They would otherwise be written into a copy."""
    cls = plans.DynamicRangeQuantizeSymmetricPerTensorPlan
    plan = cls.select(plans.PerTensorDescriptor((4,), input_element="f32", output_element="s8"))
    work = np.zeros(plan.workspace_size, np.uint8)
    for scale in (np.zeros((), np.float16), np.zeros((), ml_dtypes.bfloat16), torch.zeros((), dtype=torch.bfloat16)):
        with pytest.raises(lb.Unsupported, match=r"^scale: .*16"):
            plan.run(DynamicArgs(np.ones(4, F32), np.zeros(4, np.int8), scale, None, work))


MATRICES, IMAGES = kinds(2), kinds(4)
BIASES: list[Any] = [
    None, None, np.ones(SIDE, F32), np.arange(SIDE), np.ones(SIDE + 1, F32), 3, "text", [1.0, 2.0, 3.0],
    np.ones(SIDE, bool), np.full(SIDE, 2**40), np.ones(SIDE, np.float16), np.array([None] * SIDE),
]  # fmt: skip
OUTCOMES: list[dict[str, Any]] = [
    {}, {"out_dtype": "float16"}, {"activation": "relu"}, {"clamp": (-1, 1)},
    {"out_params": lb.QuantizationParams("int8")},
    {"out_params": lb.QuantizationParams("uint8", "asymmetric", 0.5, 3), "activation": "relu"},
]  # fmt: skip


def outputs(shape: tuple[int, ...], outcome: dict[str, Any], operands: list[Any]) -> list[Any]:
    p = outcome.get("out_params")
    dtype = p.dtype.storage_dtype if p is not None else np.dtype(outcome.get("out_dtype", "float32"))
    good, frozen = np.zeros(shape, dtype), np.zeros(shape, dtype)
    frozen.flags.writeable = False
    shared = [q.data for q in operands if isinstance(q, lb.QuantizedTensor)]
    wrapped = [] if p is None else [lb.QuantizedTensor(np.zeros(shape, dtype), p)]
    other = lb.quantize(np.ones(shape, F32), "int8")
    return [good, good, frozen, good.astype(np.float64), good[..., :1], good.T, None, "text", other, *shared, *wrapped]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_can_implement_of_products_raises_whenever_run_would(data: Any) -> None:
    draw = data.draw
    is_conv = draw(st.booleans())
    every, ndim = (IMAGES, 4) if is_conv else (MATRICES, 2)
    plain = "int8 symmetric axis=None block=None"
    names = [draw(st.sampled_from([plain, plain, *every])) for _ in range(2)]
    left, right = (tensor(i, every[name], ndim) for i, name in enumerate(names))
    outcome = draw(st.sampled_from(OUTCOMES))
    cls: Any = plans.Conv2dPlan if is_conv else plans.MatMulPlan
    try:
        if is_conv:
            d: Any = plans.Conv2dDescriptor(left.shape, right.shape, left.params, right.params, padding=1, **outcome)
        else:
            d = plans.MatMulDescriptor(SIDE, SIDE, SIDE, left.params, right.params, **outcome)
        plan = cls.select(d, preference=draw(st.sampled_from(["fastest", "reference"])))
    except (lb.InvalidProblem, lb.Unsupported):
        return
    operands: list[Any] = [left, right]
    if draw(st.integers(0, 3)) == 0:
        other = tensor(5, every[draw(st.sampled_from(sorted(every)))], ndim)
        operands[draw(st.integers(0, 1))] = draw(st.sampled_from([other, other.data, None, left]))
    if draw(st.booleans()):
        with contextlib.suppress(lb.Unsupported):
            operands[1] = lb.prepack_conv2d(right) if is_conv else lb.prepack(right)
    shape = d.output_shape if is_conv else (SIDE, SIDE)
    output, bias = draw(st.sampled_from(outputs(shape, outcome, operands))), draw(st.sampled_from(BIASES))
    args = cls.Args(*operands, output, bias)
    before = raised(plan.can_implement, args)
    after = raised(plan.run, args)
    assert (before is None) == (after is None), f"can_implement: {before}; run: {after}"
