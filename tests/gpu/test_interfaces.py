"""What calls the GPU kernels, in the interpreter: plans, tensors, operations, layers, torch operators, gpu-check.

LOWBIT_GPU_INTERPRETER=1 makes a device "cuda" of the interpreter. Everything is compared with the same call on the CPU.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import torch
from gpu import interpreter_shim

interpreter_shim.install()

import lowbit as lb  # noqa: E402
from gpu.hurting import TORCH, array, same, tensor  # noqa: E402
from lowbit import plans  # noqa: E402
from lowbit.gpu import launch, self_check  # noqa: E402
from lowbit.gpu.linear import GpuLinear  # noqa: E402
from lowbit.gpu.ops import GpuQuantizationOps, pack, pack_conv  # noqa: E402
from lowbit.gpu.tensors import GpuQuantizedTensor  # noqa: E402
from lowbit.numerics.errors import InvalidProblem, Unsupported  # noqa: E402
from lowbit.runtime.devices import find_device  # noqa: E402
from lowbit.system.specialized import Dp4aQuantizationOps, TensorCoreQuantizationOps  # noqa: E402
from lowbit.torch.functional import library  # noqa: E402

F32 = np.float32
SCOPES = {
    "Tensor": lambda **d: plans.PerTensorDescriptor((6, 20), **d),
    "Channel": lambda **d: plans.PerChannelDescriptor((6, 20), axis=0, **d),
    "Token": lambda **d: plans.PerTokenDescriptor((2, 3, 20), **d),
    "Group": lambda **d: plans.PerGroupDescriptor((6, 20), group_size=8, **d),
}
FLOATS = {"f32": F32, "f64": np.float64, "f16": np.float16}


@pytest.fixture(autouse=True)
def interpreter_as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWBIT_GPU_INTERPRETER", "1")


def random(*shape: int, seed: int = 0, dtype: Any = F32) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


class Problem:
    """Arrays for a descriptor, on both sides."""

    def __init__(self, d: Any, kind: str) -> None:
        shape, g = d.granularity.scale_shape, d.granularity
        wide = np.float64 if kind == "f64" else F32
        rng = np.random.default_rng(3)
        self.x, self.dy = (random(*d.shape, seed=s, dtype=FLOATS[kind]) for s in (1, 2))
        self.scale = np.asarray(rng.uniform(0.01, 0.1, shape)).astype(wide)
        self.zero = np.asarray(rng.integers(d.qmin, d.qmax + 1, shape)).astype(np.int32)
        self.g = g


def both(cls: Any, d: Any) -> Iterator[Any]:
    yield cls.select(d)
    yield cls.select(d, device="cuda")


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("scope", SCOPES)
def test_affine_plans(scope: str, kind: str) -> None:
    for code, (qmin, qmax) in {"s8": (-128, 127), "u4": (0, 15)}.items():
        d = SCOPES[scope](input_element=kind, output_element=code, qmin=qmin, qmax=qmax)
        p = Problem(d, kind)
        cpu, gpu = both(getattr(plans, f"QuantizePer{scope}Plan"), d)
        stored = (p.x.size // 2,) if code == "u4" else p.x.shape
        codes = np.empty(stored, np.uint8 if code == "u4" else np.int8)
        there = tensor(codes)
        cpu.run(cpu.Args(p.x, p.scale, p.zero, codes))
        gpu.run(gpu.Args(tensor(p.x), tensor(p.scale), tensor(p.zero), there))
        same(there, codes)
        d = SCOPES[scope](input_element=code, output_element=kind, qmin=qmin, qmax=qmax)
        cpu, gpu = both(getattr(plans, f"DequantizePer{scope}Plan"), d)
        y, found = np.empty_like(p.x), tensor(p.x)
        cpu.run(cpu.Args(codes, p.scale, p.zero, y))
        gpu.run(gpu.Args(there, tensor(p.scale), tensor(p.zero), found))
        same(found, y)
        cpu, gpu = both(getattr(plans, f"DequantizePer{scope}BackwardPlan"), d)
        cpu.run(cpu.Args(p.dy, p.scale, y))
        gpu.run(gpu.Args(tensor(p.dy), tensor(p.scale), found))
        same(found, y)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("scope", SCOPES)
def test_fake_quantize_plans(scope: str, kind: str) -> None:
    d = SCOPES[scope](input_element=kind)
    p = Problem(d, kind)
    there = [tensor(v) for v in (p.x, p.scale, p.zero)]
    y, found = np.empty_like(p.x), tensor(p.x)
    cpu, gpu = both(getattr(plans, f"FakeQuantizePer{scope}Plan"), d)
    cpu.run(cpu.Args(p.x, p.scale, p.zero, y))
    gpu.run(gpu.Args(*there, found))
    same(found, y)
    for name, learned in (("FakeQuantize", False), ("FakeQuantize", True), ("Quantize", False)):
        more = {"output_element": "s8"} if name == "Quantize" else {"learned": learned}
        cpu, gpu = both(getattr(plans, f"{name}Per{scope}BackwardPlan"), SCOPES[scope](input_element=kind, **more))
        ds, dz = np.empty_like(p.scale), np.empty_like(p.scale)
        sums = (tensor(ds), tensor(dz)) if learned else (None, None)
        rooms = [np.empty(cpu.workspace_size, np.uint8), torch.empty(gpu.workspace_size, dtype=torch.uint8)]
        cpu.run(cpu.Args(p.x, p.scale, p.zero, p.dy, y, ds, dz, rooms[0] if learned else None))
        gpu.run(gpu.Args(*there, tensor(p.dy), found, *sums, rooms[1]))
        same(found, y)
        if learned:
            same(sums[0], ds)
            same(sums[1], dz)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mapping", ["Symmetric", "Asymmetric"])
def test_dynamic_plans(scope: str, mapping: str) -> None:
    d = SCOPES[scope](input_element="f16", output_element="s8")
    p = Problem(d, "f16")
    cpu, gpu = both(getattr(plans, f"DynamicRangeQuantize{mapping}Per{scope}Plan"), d)
    codes, scale, zero = np.empty(p.x.shape, np.int8), np.empty_like(p.scale), np.empty_like(p.zero)
    there = [tensor(v) for v in (codes, scale, zero)]
    cpu.run(cpu.Args(p.x, codes, scale, zero, np.empty(cpu.workspace_size, np.uint8)))
    gpu.run(gpu.Args(tensor(p.x), *there, torch.empty(gpu.workspace_size, dtype=torch.uint8)))
    for found, want in zip(there, (codes, scale, zero), strict=True):
        same(found, want)


def test_plans_on_gpus_are_plans() -> None:
    d = plans.PerTensorDescriptor((4,), output_element="s8")
    plan = plans.QuantizePerTensorPlan.select(d, device="cuda")
    assert isinstance(plan, plans.QuantizePerTensorPlan)
    assert str(plan.sku) == "quantization/quantize_per_tensor/f32-s8/interpreter/interpreter"
    assert plan.precision_guarantee == plans.QuantizePerTensorPlan.select(d).precision_guarantee
    assert pickle.loads(pickle.dumps(plan)) == plan != plans.QuantizePerTensorPlan.select(d)
    assert plans.PLANS["quantize_per_tensor"] is plans.QuantizePerTensorPlan
    assert repr(plan).endswith("device='cuda')")
    with pytest.raises(AttributeError, match="immutable"):
        plan.device = "cpu"
    with pytest.raises(Unsupported, match="the reference runs on the CPU"):
        plans.QuantizePerTensorPlan.select(d, device="cuda", preference="reference")
    with pytest.raises(InvalidProblem, match="qmax: -129 is below"):
        plans.QuantizePerTensorPlan.select(plans.PerTensorDescriptor((4,), output_element="s8", qmax=-129), "cuda")


class Operators(TorchDispatchMode):
    """Which of torch's operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(op.overloadpacket.__name__)
        return op(*args, **(kwargs or {}))


def test_running_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the arguments and the launches are views alone. (The interpreter's own copies are not counted.)"""
    launched: list[Any] = []
    monkeypatch.setattr(launch, "launch", lambda kernel, *_, **__: launched.append(kernel))
    shape, kind = (20000,), {"input_element": "f32"}
    x, y, codes, one = torch.ones(shape), torch.ones(shape), torch.empty(shape, dtype=torch.int8), torch.ones(())
    zero, room = torch.zeros((), dtype=torch.int32), torch.empty(1 << 16, dtype=torch.uint8)
    d, q = plans.PerTensorDescriptor(shape, **kind), plans.PerTensorDescriptor(shape, **kind, output_element="s8")
    back = plans.PerTensorDescriptor(shape, input_element="s8", output_element="f32")
    learned = plans.PerTensorDescriptor(shape, **kind, learned=True)
    runs: list[tuple[Any, Any, Any]] = [
        (plans.QuantizePerTensorPlan, q, plans.ForwardArgs(x, one, zero, codes)),
        (plans.DequantizePerTensorPlan, back, plans.ForwardArgs(codes, one, zero, y)),
        (plans.FakeQuantizePerTensorPlan, d, plans.ForwardArgs(x, one, zero, y)),
        (plans.FakeQuantizePerTensorBackwardPlan, d, plans.BackwardArgs(x, one, zero, y, y)),
        (plans.QuantizePerTensorBackwardPlan, q, plans.BackwardArgs(x, one, zero, y, y)),
        (plans.DequantizePerTensorBackwardPlan, back, plans.DequantizeBackwardArgs(x, one, y)),
        (plans.FakeQuantizePerTensorBackwardPlan, learned, plans.BackwardArgs(x, one, zero, y, y, one, one, room)),
        (plans.DynamicRangeQuantizeAsymmetricPerTensorPlan, q, plans.DynamicArgs(x, codes, one, zero, room)),
    ]  # fmt: skip
    for cls, descriptor, args in runs:
        plan, before = cls.select(descriptor, "cuda"), len(launched)
        with Operators() as operators:
            plan.run(args)
        assert operators.seen <= {"detach", "slice", "view"}, cls.__name__
        assert len(launched) > before


def test_a_number_is_a_scale() -> None:
    plan = plans.FakeQuantizePerTensorPlan.select(plans.PerTensorDescriptor((4,), qmin=-8, qmax=7), "cuda")
    y = torch.empty(4)
    plan.run(plans.ForwardArgs(torch.tensor([0.1, 0.26, 9.0, -9.0]), 0.5, 0, y))
    assert y.tolist() == [0.0, 0.5, 3.5, -4.0]


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_scales_may_be_16_bit_floats(kind: str, narrow: torch.dtype) -> None:
    d = plans.PerChannelDescriptor((6, 20), axis=0, input_element=kind, output_element="s8")
    plan = plans.QuantizePerChannelPlan.select(d, "cuda")
    x = torch.from_numpy(random(6, 20, dtype=FLOATS[kind]))
    scale = torch.from_numpy(np.random.default_rng(0).uniform(0.01, 0.1, 6)).to(narrow)
    found, want = (torch.zeros((6, 20), dtype=torch.int8) for _ in range(2))
    for given, out in ((scale, found), (scale.to(torch.float64 if kind == "f64" else torch.float32), want)):
        args = plans.ForwardArgs(x, given, None, out)
        plan.can_implement(args)
        plan.run(args)
    assert torch.equal(found, want)


@pytest.mark.parametrize(
    "bias", [np.ones(4, F32), "text", torch.ones(5, dtype=torch.bool), np.full(5, 2**40)], ids=repr
)
def test_products_refuse_a_bias_before_they_run(bias: Any) -> None:
    a, b = lb.quantize(random(3, 8)), lb.quantize(random(8, 5))
    plan = plans.MatMulPlan.select(plans.MatMulDescriptor(3, 5, 8, a.params, b.params), "cuda")
    args = plans.MatMulArgs(a.to("cuda"), b.to("cuda"), torch.empty(3, 5), bias)
    for call in (plan.can_implement, plan.run):
        with pytest.raises((InvalidProblem, Unsupported), match=r"^bias: "):
            call(args)


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"input": np.ones(4, F32)}, InvalidProblem, "input: ndarray; expected a torch tensor on cuda:0"),
    ({"input": torch.ones(4, dtype=torch.float64)}, Unsupported, "input: torch.float64; expected torch.float32"),
    ({"input": torch.ones(5)}, InvalidProblem, r"input: shape \(5,\); expected \(4,\)"),
    ({"input": torch.ones(8)[::2]}, InvalidProblem, "input: expected a contiguous"),
    ({"input": torch.ones(4, device="meta")}, Unsupported, "input: on meta; expected cuda:0"),
    ({"output": torch.ones(4)}, Unsupported, "output: torch.float32; expected torch.int8"),
    ({"scale": -1.0}, InvalidProblem, "scale: "),
    ({"scale": torch.ones(2)}, InvalidProblem, r"scale: shape \(2,\); expected \(\)"),
    ({"zero_point": 128}, InvalidProblem, "zero_point: 128"),
    ({"zero_point": 0.5}, InvalidProblem, "zero_point: 0.5"),
])  # fmt: skip
def test_plans_check_their_arguments(change: dict[str, Any], error: type[Exception], words: str) -> None:
    plan = plans.QuantizePerTensorPlan.select(plans.PerTensorDescriptor((4,), output_element="s8"), "cuda")
    sound = {"input": torch.ones(4), "scale": 1.0, "zero_point": 0, "output": torch.empty(4, dtype=torch.int8)}
    plan.can_implement(plans.ForwardArgs(**sound))
    for call in (plan.can_implement, plan.run):
        with pytest.raises(error, match=words):
            call(plans.ForwardArgs(**{**sound, **change}))


def test_a_workspace_is_checked() -> None:
    d = plans.PerTensorDescriptor((20000,), output_element="s8")
    plan = plans.DynamicRangeQuantizeSymmetricPerTensorPlan.select(d, "cuda")
    assert plan.workspace_size > 0
    given = (torch.ones(20000), torch.empty(20000, dtype=torch.int8), torch.empty(()))
    with pytest.raises(InvalidProblem, match="workspace: NoneType"):
        plan.can_implement(plans.DynamicArgs(*given))
    with pytest.raises(InvalidProblem, match="workspace: 1 bytes"):
        plan.can_implement(plans.DynamicArgs(*given, workspace=torch.empty(1, dtype=torch.uint8)))


# ---- tensors, operations, layers ------------------------------------------------------------------------------------

KINDS = [
    {"dtype": "int8"}, {"dtype": "uint8", "scheme": "asymmetric"}, {"dtype": "int4", "axis": 0},
    {"dtype": "uint4", "scheme": "asymmetric", "axis": 1, "group_size": 4}, {"dtype": "int16", "axis": 1},
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=lambda o: "-".join(map(str, o.values())))
def test_tensors_go_and_come_back(options: dict[str, Any]) -> None:
    x = random(5, 7)
    q = lb.quantize(x, **options)
    there = q.to("cuda")
    assert isinstance(there, GpuQuantizedTensor)
    assert there.shape == q.shape
    assert there.to("cpu") == q == q.to("cpu")
    assert there.to("cuda") is there
    same(there.dequantize(), q.dequantize())
    same(there.dequantize(torch.float16), q.dequantize(dtype=np.float16))
    same(there.unpack(), q.unpack())
    again = GpuQuantizationOps().quantize(x, q.params)
    assert again.to("cpu") == q
    wide, p = random(5, 7, dtype=np.float64), lb.QuantizationParams("int8", scale=0.031)
    assert GpuQuantizationOps().quantize(wide, p).to("cpu") == lb.quantize(wide, params=p)
    there.data.zero_()
    assert (q.data != 0).any(), "a copy"


@pytest.mark.parametrize(
    "q", [lb.quantize(random(4), "binary"), lb.quantize(random(4), "int2")], ids=["binary", "int2"]
)
def test_tensors_without_kernels_stay(q: Any) -> None:
    with pytest.raises(Unsupported, match="GPU kernels have linear codes of"):
        q.to("cuda")


def test_operations_are_the_protocols() -> None:
    ops = GpuQuantizationOps()
    assert isinstance(ops, lb.QuantizationOps)
    assert str(ops.device) == "cuda:0"
    assert ops.hardware_features == lb.hardware()
    a = lb.quantize(random(3, 8), "uint8", scheme="asymmetric")
    assert ops.qrelu(a).to("cpu") == lb.qrelu(a)
    with pytest.raises(Unsupported, match="qrelu: "):
        ops.qrelu(lb.quantize(random(4), "int4"))
    with pytest.raises(InvalidProblem, match="q: ndarray"):
        ops.dequantize(random(3))


SUMS = [*KINDS, {"dtype": "uint16", "scheme": "asymmetric"}, {"dtype": "int8", "scheme": "asymmetric"}]


@pytest.mark.parametrize("options", SUMS, ids=lambda o: "-".join(map(str, o.values())))
def test_sums(options: dict[str, Any]) -> None:
    ops = GpuQuantizationOps()
    for dtype in (F32, np.float64):
        a, b = lb.quantize(random(5, 7, dtype=dtype), **options), lb.quantize(random(5, 7, seed=1, dtype=dtype))
        row = lb.quantize(random(7, seed=2, dtype=dtype), "uint8", scheme="asymmetric")
        for out in (None, a.params, lb.QuantizationParams("uint8", "asymmetric", scale=0.031, zero_point=100)):
            for left, right in ((a, b), (b, a), (a, a), (a, row)):
                if out is a.params and left is b:
                    continue
                found = ops.qadd(left.to("cuda"), right, out_params=out)
                assert found.to("cpu") == lb.qadd(left, right, out_params=out)


def test_sums_refuse_what_cannot_be_added() -> None:
    ops, a = GpuQuantizationOps(), lb.quantize(random(5, 7))
    with pytest.raises(InvalidProblem, match=r"^a, b: shapes .* do not broadcast"):
        ops.qadd(a, lb.quantize(random(5)))
    with pytest.raises(Unsupported, match=r"^out_params: binary"):
        ops.qadd(a, a, out_params=lb.QuantizationParams("binary"))


def test_ranges_of_samples() -> None:
    ops, slow = GpuQuantizationOps(), lb.ReferenceQuantizationOps()
    for dtype in (F32, np.float64, np.float16):
        samples = [random(3, 5, dtype=dtype), np.empty(0, dtype), random(7, seed=1, dtype=dtype)]
        for code, scheme in (("int8", "linear"), ("uint8", "linear"), ("int4", "asymmetric")):
            found = ops.calibrate(samples, code, scheme=scheme)
            assert found == lb.CpuQuantizationOps().calibrate(samples, code, scheme=scheme)
            assert found == slow.calibrate(samples, code, scheme=scheme)
    assert ops.calibrate(torch.tensor([1.0, -2.54])) == lb.calibrate(F32([1.0, -2.54]), method="min_max")
    for bad, message in (([], "none"), (F32([1, np.nan]), "NaN"), (F32([1, np.inf]), "Inf"), (3, "int; expected")):
        with pytest.raises(InvalidProblem, match=rf"^samples.*{message}"):
            ops.calibrate(bad)
    with pytest.raises(Unsupported, match=r"^dtype: binary"):
        ops.calibrate(samples, "binary")


OUTCOMES = [
    {}, {"activation": "relu", "out_dtype": "float16"}, {"clamp": (-0.5, 0.5)},
    {"out_params": lb.QuantizationParams("uint8", scale=F32(0.05), zero_point=100), "activation": "relu"},
]  # fmt: skip


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("path", [None, "dp4a"])
def test_products(outcome: dict[str, Any], path: str | None) -> None:
    a = lb.quantize(random(3, 8), "uint8", scheme="asymmetric", axis=0)
    for b in (lb.quantize(random(8, 5), axis=1), lb.quantize(random(8, 5), "int4")):
        for bias in (None, random(5), np.arange(5)):
            want = lb.qmatmul(a, b, bias=bias, **outcome)
            found = GpuQuantizationOps(path=path).qmatmul(a.to("cuda"), b.to("cuda"), bias=bias, **outcome)
            if isinstance(want, lb.QuantizedTensor):
                assert found.to("cpu") == want
            else:
                same(found, want)


@pytest.mark.parametrize("options", [{"padding": 1, "stride": 2}, {"groups": 2, "layout": "NHWC"}], ids=str)
def test_convolutions(options: dict[str, Any]) -> None:
    shape = (1, 5, 6, 4) if options.get("layout") == "NHWC" else (1, 4, 5, 6)
    x = lb.quantize(random(*shape), "uint8", scheme="asymmetric")
    w = lb.quantize(random(6, 4 // options.get("groups", 1), 3, 3), axis=0)
    found = GpuQuantizationOps().qconv2d(x, w, random(6), **options)
    same(found, lb.qconv2d(x, w, random(6), **options))


def test_no_other_path_is_taken_silently() -> None:
    a = lb.quantize(random(2, 8))
    for b in (lb.quantize(random(8, 3), "int4", axis=0, group_size=4), lb.quantize(random(8, 3), "int16")):
        with pytest.raises(Unsupported, match=r"path '(groups|integer16)'"):
            GpuQuantizationOps().qmatmul(a, b)
    with pytest.raises(Unsupported, match="products of matrices"):
        GpuQuantizationOps().qmatmul(a, lb.quantize(random(2, 8, 3)))


def test_instructions() -> None:
    a, b = lb.quantize(random(3, 8)), lb.quantize(random(8, 4), "uint8", scheme="asymmetric")
    x, w = lb.quantize(random(1, 4, 3, 3)), lb.quantize(random(2, 4, 2, 2))
    for ops in (Dp4aQuantizationOps(), TensorCoreQuantizationOps()):
        assert ops.is_available, ops.why_not()
        np.testing.assert_array_equal(ops.qmatmul(a, b), lb.qmatmul(a, b))
        np.testing.assert_array_equal(ops.qconv2d(x, w), lb.qconv2d(x, w))
        assert isinstance(ops.qmatmul(a.to("cuda"), b.to("cuda")), torch.Tensor)
        with pytest.raises(Unsupported, match=r"int4; .* takes int8, uint8"):
            ops.qmatmul(lb.quantize(random(3, 8), "int4"), b)


def test_the_desk_stands_on_the_device() -> None:
    system = lb.create_quantization_system("cuda")
    assert system.has_acceleration
    x = random(3, 4)
    p = lb.quantize(x).params
    q = system.quantize(x, p)
    assert isinstance(q, GpuQuantizedTensor)
    same(system.dequantize(q), lb.quantize(x).dequantize())
    b = lb.quantize(random(4, 2))
    same(system.qmatmul(q, b), lb.qmatmul(lb.quantize(x), b))
    with pytest.raises(Unsupported, match="it takes params"):
        system.quantize(x)


def test_product_plans() -> None:
    a, b = lb.quantize(random(3, 8), axis=0), lb.quantize(random(8, 5), "uint8", scheme="asymmetric", axis=1)
    for out_params in (None, lb.QuantizationParams("int8", scale=F32(0.1))):
        d = plans.MatMulDescriptor(3, 5, 8, a.params, b.params, out_params=out_params)
        cpu, gpu = both(plans.MatMulPlan, d)
        y = np.empty((3, 5), F32 if out_params is None else np.int8)
        cpu.run(plans.MatMulArgs(a, b, y, random(5)))
        there = a.to("cuda"), b.to("cuda")
        for right in (there[1], pack(there[1])):
            found = tensor(np.empty_like(y))
            gpu.run(plans.MatMulArgs(there[0], right, found, random(5)))
            same(found, y)
        assert str(gpu.sku) == "compute/matmul_integer/s8-u8/interpreter/interpreter"
        assert gpu.precision_guarantee.bit_stable
        assert gpu.workspace_size >= y.nbytes
    with pytest.raises(InvalidProblem, match="a: QuantizedTensor; expected a GpuQuantizedTensor"):
        gpu.run(plans.MatMulArgs(a, there[1], found))
    other = lb.quantize(random(3, 8)).to("cuda")
    with pytest.raises(InvalidProblem, match="as the descriptor says"):
        gpu.run(plans.MatMulArgs(other, there[1], found))
    wide = lb.quantize(random(8, 5), "int16").params
    with pytest.raises(Unsupported, match="path 'integer16'"):
        plans.MatMulPlan.select(plans.MatMulDescriptor(3, 5, 8, a.params, wide), "cuda")


@pytest.mark.parametrize("groups", [1, 4])
def test_convolution_plans(groups: int) -> None:
    x, w = lb.quantize(random(2, 4, 5, 5)), lb.quantize(random(4, 4 // groups, 3, 3), axis=0)
    d = plans.Conv2dDescriptor(x.shape, w.shape, x.params, w.params, padding=1, groups=groups)
    cpu, gpu = both(plans.Conv2dPlan, d)
    y = np.empty(d.output_shape, F32)
    cpu.run(plans.Conv2dArgs(x, w, y))
    for kernel in (w.to("cuda"), pack_conv(w.to("cuda"))):
        found = torch.empty(d.output_shape)
        gpu.run(plans.Conv2dArgs(x.to("cuda"), kernel, found))
        same(found, y)
    assert gpu.path == cpu.path == ("depthwise" if groups == 4 else "integer")
    assert gpu.sku.op == f"conv2d_{gpu.path}"


@pytest.mark.parametrize("options", [
    {}, {"activation_dtype": "uint8"}, {"dtype": "int4"},
    {"input_params": lb.QuantizationParams("int8", scale=F32(0.02))},
    {"out_params": lb.QuantizationParams("int8", scale=F32(0.1))},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_linear_layers(options: dict[str, Any], kind: str) -> None:
    layer = lb.QuantizedLinear(random(5, 12), random(5), **options)
    x = random(3, 12, dtype=FLOATS[kind])
    want = layer(x)
    there = GpuLinear(layer)
    found = there(tensor(x))
    given = {name: getattr(layer, name) for name in ("activation_dtype", "input_params", "out_params")}
    d = plans.LinearDescriptor(3, 12, 5, layer.params, **given, input_element=kind)
    plan = plans.LinearPlan.select(d, "cuda")
    assert plan.precision_guarantee.bit_stable
    if isinstance(want, lb.QuantizedTensor):
        assert found.to("cpu") == want
        out = torch.empty((3, 5), dtype=torch.int8)
        want = want.data
    else:
        same(found, want)
        out = torch.empty((3, 5), dtype=TORCH[kind])
    plan.run(plans.LinearArgs(tensor(x), there, out))
    same(out, want)
    with pytest.raises(InvalidProblem, match="layer: QuantizedLinear; expected a GpuLinear"):
        plan.run(plans.LinearArgs(tensor(x), layer, out))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("block", [None, 8])
def test_int4_weights_on_floats(kind: str, block: int | None) -> None:
    weight = lb.quantize(random(5, 21), "uint4", scheme="asymmetric", axis=0 if block is None else 1, group_size=block)
    layer = lb.QuantizedLinear(weight, random(5), activation_dtype="float")
    x = random(3, 21, dtype=FLOATS[kind])
    found = GpuLinear(layer)(tensor(x)).double().numpy()
    wide = weight.dequantize().astype(np.float64)
    exact = x.astype(np.float64) @ wide.T + random(5)
    size = np.abs(x.astype(np.float64)) @ np.abs(wide).T + np.abs(random(5))
    narrow = 2**-11 if kind == "f16" else 0
    assert (np.abs(found - exact) <= 8 * 2**-23 * size + narrow * np.abs(exact)).all()
    d = plans.LinearDescriptor(3, 21, 5, layer.params, activation_dtype="float", input_element=kind)
    guarantee = plans.LinearPlan.select(d, "cuda").precision_guarantee
    assert guarantee.deterministic
    assert not guarantee.bit_stable
    with pytest.raises(Unsupported, match="GPU kernels have 'integer', and 'float' for weights of 4 bits"):
        GpuLinear(lb.QuantizedLinear(random(5, 12), activation_dtype="float"))


# ---- torch operators: the kernels that the dispatcher has for CUDA, on the interpreter's memory --------------------

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def on_cuda(name: str, *arguments: Any) -> Any:
    return getattr(torch.ops.lowbit, name).default.redispatch(CUDA, *arguments)


def equal(found: Any, want: Any) -> None:
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, want)), strict=True):
        same(a, array(b))


SHARED = {"tensor": (None, None), "channel": (0, None), "last": (1, None), "block": (1, 8)}


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", SHARED)
def test_operators(name: str, kind: str) -> None:
    axis, block = SHARED[name]
    x, dy = (torch.from_numpy(random(6, 20, seed=s)).to(TORCH[kind]) for s in (1, 2))
    shape = library._scale_shape(x, axis, block)
    wide = torch.float64 if kind == "f64" else torch.float32
    s = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.05 + 0.01).to(wide)
    z = torch.randint(-8, 8, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    where = (axis, block)
    codes = library.quantize(x, s, z, -8, 7, *where, torch.int8)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "fake_quantize": [(x, s, z, -8, 7, *where), (x, s.mean(), z.reshape(-1)[0], -8, 7, *where)],
        "fake_quantize_backward": [(dy, x, s, z, -8, 7, *where)],
        "keep_where": [(dy, torch.arange(15, dtype=torch.uint8) * 17)],
        "fake_quantize_learned": [(x, -s, z.float() + 0.5, -8, 7, *where, 1.0)],
        "fake_quantize_learned_backward": [
            (dy, x, s, z.float() + 0.5, -8, 7, *where, 0.3), (dy, x, s, z, -8, 7, *where, 1.0)],
        "quantize": [(x, s, z, -8, 7, *where, torch.int8), (x, s, z, -8, 7, *where, torch.int16)],
        "quantize_ste": [(x, s, z, -8, 7, *where)],
        "quantize_ste_backward": [(dy, x, s, z, -8, 7, *where)],
        "dequantize": [(codes, s.float(), z, *where, x.dtype)],
        "dequantize_ste": [(codes.to(x.dtype), s, z, *where)],
        "dequantize_ste_backward": [(dy, s, *where)],
        "range_params": [(x, -8, 7, sym, *where, "x", ignore) for sym in (True, False) for ignore in (True, False)],
        "affine_params": [(-s, 2 * s, 0, 255, sym) for sym in (True, False)],
    }  # fmt: skip
    assert {*calls, "observe_"} == set(library.OPERATORS)
    for op, arguments in calls.items():
        for given in arguments:
            equal(on_cuda(op, *given), getattr(library, op)(*given))


def test_observing() -> None:
    batches = [torch.from_numpy(random(4, 6, seed=s)) for s in range(3)]
    batches.insert(1, torch.full((4, 6), torch.inf))
    for momentum in (None, 0.1):
        sides = [[torch.full((4,), torch.inf), torch.full((4,), -torch.inf), torch.zeros((), dtype=torch.int64)]
                 for _ in range(2)]  # fmt: skip
        for x in batches:
            library.observe_(x, *sides[0], momentum, 0, None, "x", True)
            on_cuda("observe_", x, *sides[1], momentum, 0, None, "x", True)
        equal(tuple(sides[1]), tuple(sides[0]))
        assert sides[1][2] == 1
    with pytest.raises(InvalidProblem, match=r"seen: inf at index \(0, 0\)"):
        on_cuda("observe_", batches[1], *sides[1], None, 0, None, "seen", False)
    with pytest.raises(InvalidProblem, match="seen: empty"):
        on_cuda("range_params", torch.empty(0), -8, 7, True, None, None, "seen", False)


ZERO = torch.zeros((), dtype=torch.int32)


@pytest.mark.parametrize(("arguments", "words"), [
    ((torch.ones(4, dtype=torch.int32), torch.ones(()), ZERO, -8, 7), "x: torch.int32"),
    ((torch.ones(4), torch.ones(3), ZERO, -8, 7), r"scale: shape \(3,\)"),
    ((torch.ones(4), torch.ones(()), torch.zeros(()), -8, 7), "zero_point: torch.float32"),
    ((torch.ones(4), torch.ones(()), ZERO, 8, 7), r"qmin, qmax: \[8, 7\]"),
])  # fmt: skip
def test_what_operators_refuse(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises((InvalidProblem, Unsupported), match=words):
        on_cuda("fake_quantize", *arguments, None, None)


# ---- gpu-check ------------------------------------------------------------------------------------------------------


def quick_checks() -> list[Any]:
    """One of each family and kind here; the others are tested file by file, and all of them in deep tests."""
    chosen, seen = [], set()
    for check in self_check.all_checks(find_device("cuda"), large=False):
        family = tuple(check.name.split(", ")[:2])
        chosen.append(pytest.param(check, id=check.name, marks=[pytest.mark.deep] if family in seen else []))
        seen.add(family)
    return chosen


def test_checks_can_fail() -> None:
    x = torch.tensor([1.0, torch.nan, 0.0])
    assert self_check.wrong_bits(x, x.numpy()) == (3, 0)
    assert self_check.wrong_bits(x, np.float32([1, np.nan, -0.0])) == (3, 1)
    assert self_check.wrong_bits(x, np.float32([2, 1, 0])) == (3, 2)
    assert self_check.wrong_bits(x, x.double().numpy()) == (3, 3)
    failing = self_check.Check("raises", lambda device: iter(map(int, "x")))  # type: ignore[arg-type]
    assert "ValueError" in self_check.result_of(failing, find_device("cuda")).error
    assert not self_check.Result("nothing", 0, 0).is_right


def test_gpu_check_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from lowbit.cli.app import _app

    monkeypatch.delenv("LOWBIT_GPU_INTERPRETER")
    path = tmp_path / "report.json"
    arguments = ["gpu-check", "--interpreter", "--only", "f32, tensor", "--json", str(path)]
    done = CliRunner().invoke(_app(), arguments)
    assert done.exit_code == 0, done.output
    assert "4 of 4 comparisons right" in done.output
    assert "GPU kernels are experimental" in done.output
    report = json.loads(path.read_text())
    assert report["backend"] == "interpreter"
    assert "no speed means anything" in report["device"]
    assert report["right"] == len(report["comparisons"]) == 4
    assert {s["unit"] for s in report["speeds"]} == {"GB/s", "GOPS"}
    assert all(s["seconds"] > 0 for s in report["speeds"])

    def broken(*_: Any) -> Any:
        return 3, 1

    monkeypatch.setattr(self_check, "wrong_bits", broken)
    done = CliRunner().invoke(_app(), [*arguments, "--no-speeds"])
    assert done.exit_code == 1
    assert "WRONG codes and back, f32, tensor" in done.output.replace("\n", " ")


# The list needs the interpreter as a device before any test has run.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("LOWBIT_GPU_INTERPRETER", "1")
    CHECKS = quick_checks()


@pytest.mark.parametrize("check", CHECKS)
def test_self_check(check: Any) -> None:
    result = self_check.result_of(check, find_device("cuda"))
    assert result.is_right, result
