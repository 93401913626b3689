"""The torch operators on CUDA as a machine without a GPU can test them: registrations, tracing with fake CUDA tensors,
and what is said where no GPU is. An ordinary process: kernels are not interpreted, and none runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import lowbit as lb
import lowbit.torch as lt
import torch
from lowbit import plans
from lowbit.gpu.ops import GpuQuantizationOps
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.runtime import devices as presence
from lowbit.runtime.devices import gpu_features
from lowbit.runtime.hardware import Gpu, HardwareFeatures, hardware
from lowbit.system.specialized import Dp4aQuantizationOps, TensorCoreQuantizationOps
from lowbit.torch.functional import library

if "TRITON_INTERPRET" in os.environ:
    raise RuntimeError("these tests need a process without TRITON_INTERPRET")

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
OPERATORS = sorted(library.OPERATORS)
SHARED = {"tensor": (None, None), "channel": (0, None), "block": (1, 4)}


def arguments(op: str, axis: int | None, block: int | None, **options: Any) -> tuple[Any, ...]:
    """Sound arguments of an operator, wherever the tensors are."""
    x, dy = torch.randn(4, 8, **options), torch.randn(4, 8, **options)
    shape = library._scale_shape(x, axis, block)
    s, z = torch.full(shape, 0.1, **options), torch.zeros(shape, dtype=torch.int32, **options)
    where, codes = (axis, block), torch.zeros(4, 8, dtype=torch.int8, **options)
    affine = (s, z, -8, 7, *where)
    found: dict[str, tuple[Any, ...]] = {
        "fake_quantize": (x, *affine), "fake_quantize_backward": (dy, x, *affine),
        "keep_where": (dy, torch.zeros(4, dtype=torch.uint8, **options)),
        "fake_quantize_learned": (x, *affine, 1.0), "fake_quantize_learned_backward": (dy, x, *affine, 1.0),
        "quantize": (x, *affine, torch.int8), "quantize_ste": (x, *affine),
        "quantize_ste_backward": (dy, x, *affine), "dequantize": (codes, s, z, *where, torch.float32),
        "dequantize_ste": (x, s, z, *where), "dequantize_ste_backward": (dy, s, *where),
        "range_params": (x, -8, 7, True, *where, "x", False), "affine_params": (-s, s, -8, 7, False),
        "observe_": (x, s.clone(), s.clone(), torch.zeros((), dtype=torch.int64, **options), 0.1, *where, "x", True),
    }  # fmt: skip
    return found[op]


@pytest.mark.parametrize("op", OPERATORS)
def test_the_dispatcher_has_a_kernel_for_cuda(op: str) -> None:
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"lowbit::{op}", key)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"lowbit::{op}", "XPU")


@pytest.mark.parametrize("where", SHARED)
@pytest.mark.parametrize("op", OPERATORS)
def test_fake_cuda_tensors_have_the_shapes_of_real_ones(op: str, where: str) -> None:
    """As opcheck's test_faketensor compares them, with CUDA's fake results beside the CPU's real ones."""
    real = getattr(library, op)(*arguments(op, *SHARED[where]))
    with FakeTensorMode():
        fake = getattr(torch.ops.lowbit, op)(*arguments(op, *SHARED[where], device="cuda"))
    pair = [v if isinstance(v, tuple) else (v,) for v in (real, fake)]
    for a, b in zip(*pair, strict=True):
        if a is None:
            assert b is None
            continue
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert b.device == torch.device("cuda:0")


CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")


@pytest.mark.parametrize("op", [o for o in OPERATORS if o != "affine_params"])
def test_opcheck(op: str) -> None:
    """On the CPU: opcheck runs the kernel, and only then knows what fakes must look like."""
    given = arguments(op, 1, 4)
    torch.library.opcheck(getattr(torch.ops.lowbit, op).default, given, test_utils=CHECKS)


@pytest.mark.parametrize("op", OPERATORS)
def test_opcheck_of_the_cuda_side(op: str) -> None:
    """All of opcheck with CUDA's fake tensors. What it compares is fake on both sides, so that it sees schemas,
    registrations and traces; that the fakes look like real results is for the test above."""
    with FakeTensorMode():
        given = arguments(op, 1, 4, device="cuda")
        torch.library.opcheck(getattr(torch.ops.lowbit, op).default, given)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Factories alone: a torch without CUDA cannot copy to it, not even pretend to.
        self.weight = torch.nn.Parameter(torch.empty(4, 8, device="cuda"))
        self.scale = torch.nn.Parameter(torch.full((), 0.1, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = lt.fake_quantize(self.weight, self.scale.detach().expand(4), axis=0, qmin=-8, qmax=7)
        x = lt.fake_quantize_learned(x, self.scale)
        return lt.dequantize_ste(lt.quantize_ste(torch.nn.functional.linear(x, weight), 0.1), 0.1)


def test_every_operator_traces_on_cuda() -> None:
    """Gradients are operators too. Autograd itself needs CUDA's streams, which this torch may not have."""

    def step(x: torch.Tensor) -> list[Any]:
        given = {op: arguments(op, 1, 4, device="cuda") for op in OPERATORS}
        return [getattr(torch.ops.lowbit, op)(*a) for op, a in given.items()] + [x]

    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = make_fx(step)(torch.empty(2, device="cuda"))
    called = {n.target for n in graph.graph.nodes if n.op == "call_function"}
    assert {getattr(torch.ops.lowbit, op).default for op in OPERATORS} <= called


def test_torch_compile_traces_a_model_on_cuda() -> None:
    """The whole model in one graph, up to the compiler, which would need the device."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append((graph, {i.device.type for i in inputs if isinstance(i, torch.Tensor)}))
        return graph.forward

    with FakeTensorMode(), torch.no_grad():
        net, x = Net(), torch.empty(2, 8, device="cuda")
        y = torch.compile(net, fullgraph=True, backend=backend)(x)
    ((graph, devices),) = seen
    called = {n.target for n in graph.graph.nodes if n.op == "call_function"}
    for op in ("fake_quantize", "fake_quantize_learned", "quantize_ste", "dequantize_ste"):
        assert getattr(torch.ops.lowbit, op).default in called
    assert devices == {"cuda"}
    assert y.device.type == "cuda"
    assert y.shape == (2, 4)


# ---- without a GPU --------------------------------------------------------------------------------------------------

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
REASON = r"no CUDA device: torch (has no CUDA build|finds none)"


@pytest.mark.parametrize("n", [0, 1, 9, 64])
def test_bits_keep_on_a_gpu_what_they_keep_on_the_cpu(n: int) -> None:
    """It is made of operators of torch, which run anywhere."""
    from lowbit.gpu import torch_kernels as kernels_gpu
    from lowbit.torch.functional import kernels

    dy, bits = torch.randn(n), torch.randint(0, 256, ((n + 7) // 8,), dtype=torch.uint8)
    assert torch.equal(kernels_gpu.keep_where(dy, bits), kernels.keep_where(dy, bits))


@WITHOUT_GPU
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_say_what_is_missing(op: str) -> None:
    with pytest.raises(Unsupported, match=REASON):
        getattr(torch.ops.lowbit, op).default.redispatch(CUDA, *arguments(op, None, None))


@WITHOUT_GPU
@pytest.mark.parametrize("op", plans.PLANS)
def test_plans_say_what_is_missing(op: str) -> None:
    cls = plans.PLANS[op]
    p = lb.QuantizationParams("int8", scale=0.5)
    problems: dict[str, tuple[Any, ...]] = {
        "matmul": (2, 2, 2, p, p), "conv2d": ((1, 1, 3, 3), (1, 1, 2, 2), p, p), "linear": (1, 2, 2, p),
    }  # fmt: skip
    with pytest.raises(Unsupported, match=f"device: 'cuda:1': {REASON}"):
        cls.select(cls.Descriptor(*problems.get(op, ((4, 8),))), device="cuda:1")


@WITHOUT_GPU
def test_interfaces_say_what_is_missing() -> None:
    q = lb.quantize([[1.0, 2.0]])
    for call in (
        lambda: q.to("cuda"),
        lambda: GpuQuantizationOps(),
        lambda: lb.create_quantization_system("cuda"),
    ):
        with pytest.raises(Unsupported, match=f"device: 'cuda': {REASON}"):
            call()
    with pytest.raises(Unsupported, match="device: 'mps'; expected 'cpu', 'cuda'"):
        q.to("mps")
    assert q.to("cpu") is q


@WITHOUT_GPU
def test_the_device_for_tests_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWBIT_GPU_INTERPRETER", "1")
    with pytest.raises(Unsupported, match=REASON):
        presence.find_device("cuda")


@WITHOUT_GPU
def test_gpu_check_without_a_gpu_is_a_line() -> None:
    code = "import sys; sys.argv = ['lowbit', 'gpu-check']; from lowbit.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"lowbit gpu-check: {presence.why_not()}\n"


def test_without_triton_or_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "is_interpreted", lambda: True)
    for name, words in (("triton", "triton is not installed: pip install"), ("torch", "torch is not installed")):
        monkeypatch.setattr("importlib.util.find_spec", lambda given, name=name: None if given == name else object())
        assert words in presence.why_not()


def test_operators_and_plans_import_no_triton() -> None:
    code = "import sys, lowbit, lowbit.plans, lowbit.torch; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- devices that are not here --------------------------------------------------------------------------------------


class Properties:
    gcnArchName = "gfx942:sramecc+:xnack-"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A torch that finds two devices, the second of them current."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: ((7, 0), (12, 0))[index])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties())
    return monkeypatch


def test_devices_are_torchs(two_gpus: pytest.MonkeyPatch) -> None:
    assert presence.find_device("cuda") == presence.GpuDevice("cuda:1", "cuda", "sm_120")
    with pytest.raises(Unsupported, match="device: 'cuda:0': sm_70; expected sm_75 or later"):
        presence.find_device("cuda:0")
    with pytest.raises(InvalidProblem, match="device: 'cuda:2'; torch finds 2"):
        presence.find_device("cuda:2")
    two_gpus.setattr(torch.version, "hip", "7.0")
    assert presence.find_device("cuda:0") == presence.GpuDevice("cuda:0", "hip", "gfx942")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_plans_name_their_device(two_gpus: pytest.MonkeyPatch, device: str) -> None:
    plan = plans.QuantizePerTensorPlan.select(plans.PerTensorDescriptor((4,), output_element="s8"), device=device)
    assert str(plan.sku) == "quantization/quantize_per_tensor/f32-s8/sm_120/cuda"
    assert plan.device == device
    with pytest.raises(Unsupported, match="input: on cpu; expected cuda:1"):
        plan.can_implement(plans.ForwardArgs(torch.ones(4), 1.0, 0, torch.ones(4)))


@pytest.mark.parametrize(("architecture", "dot4", "unit", "has", "lacks"), [
    ("sm_60", "", "", "", "s8"), ("sm_61", "dp4a", "", "", "s8"), ("sm_70", "dp4a", "Tensor Cores", "f16", "s8"),
    ("sm_72", "dp4a", "Tensor Cores", "s8", "s4"), ("sm_75", "dp4a", "Tensor Cores", "s8 s4 b1", "bf16"),
    ("sm_86", "dp4a", "Tensor Cores", "s8 s4 bf16", "f8"), ("sm_89", "dp4a", "Tensor Cores", "s8 s4 f8", "f4"),
    ("sm_90a", "dp4a", "Tensor Cores", "s8 f8", "s4"), ("sm_100", "dp4a", "Tensor Cores", "s8 f8 f4", "s4"),
    ("sm_120", "dp4a", "Tensor Cores", "s8 f8 f4", "s4"), ("gfx906", "v_dot4_i32_i8", "", "", "s8"),
    ("gfx90a", "v_dot4_i32_i8", "MFMA", "s8", "f8"), ("gfx942:xnack-", "v_dot4_i32_i8", "MFMA", "s8 f8", "s4"),
    ("gfx1100", "v_dot4_i32_iu8", "WMMA", "s8 s4", "f8"), ("gfx9999", "", "", "", "s8"),
])  # fmt: skip
def test_features_follow_from_the_architecture(architecture: str, dot4: str, unit: str, has: str, lacks: str) -> None:
    found = gpu_features(architecture)
    assert (found.dot4, found.matrix_unit) == (dot4, unit)
    assert all(found.multiplies(f) for f in has.split())
    assert not found.multiplies(lacks)


def test_no_architecture_is_guessed() -> None:
    with pytest.raises(InvalidProblem, match="architecture: 'volta'"):
        gpu_features("volta")


def machine(*gpus: Gpu) -> HardwareFeatures:
    class Machine(HardwareFeatures):
        @property
        def gpus(self) -> tuple[Gpu, ...]:
            return gpus

    here = hardware()
    return Machine(**{name: getattr(here, name) for name in HardwareFeatures.__dataclass_fields__})


TURING, AMPERE = Gpu("T4", (7, 5), 16 << 30, 40), Gpu("A100", (8, 0), 40 << 30, 108)
PASCAL, AMD = Gpu("P100", (6, 0), 16 << 30, 56), Gpu("MI300X", (9, 4), 192 << 30, 304, "gfx942")


@pytest.mark.parametrize(("ops", "gpus", "words"), [
    (Dp4aQuantizationOps, (), "no CUDA device"), (Dp4aQuantizationOps, (PASCAL,), "sm_60 has no dp4a"),
    (TensorCoreQuantizationOps, (PASCAL,), "sm_60 has no matrix unit for int8"),
    (TensorCoreQuantizationOps, (TURING,), "sm_75 has them, but Triton compiles no int8 products for it: DP4A serves"),
])  # fmt: skip
def test_instructions_say_what_a_gpu_lacks(ops: Any, gpus: tuple[Gpu, ...], words: str) -> None:
    found = ops(machine(*gpus))
    assert words in found.why_not()
    assert not found.is_available
    q = lb.quantize([[1.0, 2.0]])
    with pytest.raises(Unsupported, match=words):
        found.qmatmul(q, q)


@WITHOUT_GPU
@pytest.mark.parametrize("ops", [Dp4aQuantizationOps, TensorCoreQuantizationOps])
@pytest.mark.parametrize("gpu", [AMPERE, AMD], ids=lambda g: g.name)
def test_instructions_of_a_gpu_that_torch_cannot_reach(ops: Any, gpu: Gpu) -> None:
    """The driver shows it; this torch was not built for it."""
    with pytest.raises(Unsupported, match=REASON):
        ops(machine(PASCAL, gpu)).qconv2d(lb.quantize([1.0]), lb.quantize([1.0]))


def test_a_gpu_with_the_instruction_is_enough(two_gpus: pytest.MonkeyPatch) -> None:
    assert Dp4aQuantizationOps(machine(PASCAL, TURING)).is_available
    assert TensorCoreQuantizationOps(machine(TURING, AMPERE)).is_available
