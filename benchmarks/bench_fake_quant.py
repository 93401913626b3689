"""Fake quantization and its gradients: arrays, autograd, learned scales, and the call of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import lowbit as lb
from benchmarks.peers import TORCH, Peers, numpy_codes, torch_with
from benchmarks.shapes import CACHED, MATRIX, SCALE, SPLIT, ZERO_POINT, aligned, normal
from benchmarks.timing import Case, Contender, Target, of_lowbit
from lowbit import plans

Array = Any
PLANNED = 256
_CODES = (-128, 127)


def cases(peers: Peers) -> Iterator[Case]:
    yield _forward(peers, "fake_quantize, 2^18", CACHED)
    yield _forward(peers, "fake_quantize, 2^20", SPLIT)
    yield _autograd(peers)
    for axis in (0, 1):
        yield _channels(peers, axis)
    yield _learned(peers)
    for name, n in (("2^18", CACHED), ("2^20", SPLIT)):
        yield _half_width(f"fake_quantize from f16 and bf16, {name}", n)
    yield _plan(peers)


def _lowbit(x: Array, name: str = "lowbit", **fields: Any) -> Contender:
    out = aligned(x.shape, x.dtype)
    return of_lowbit(lambda: lb.fake_quantize(x, SCALE, ZERO_POINT, out=out), name, answer=lambda y: y, **fields)


def _torch_per_tensor(peers: Peers, x: Array) -> Contender:
    def build(torch: Any) -> Callable[[], Any]:
        tensor = torch.from_numpy(x)
        return lambda: torch.fake_quantize_per_tensor_affine(tensor, SCALE, ZERO_POINT, *_CODES)

    return peers.torch(build, answer=lambda y: y.numpy())


def _forward(peers: Peers, name: str, n: int) -> Case:
    x = normal(n)
    contenders = [_lowbit(x), _torch_per_tensor(peers, x)]
    expected = (numpy_codes(x, SCALE, ZERO_POINT) - np.float32(ZERO_POINT)) * np.float32(SCALE)
    targets = [Target("lowbit", TORCH, 15, "torch")]
    return Case(name, 8 * n, contenders, targets, expected, tolerance=1.01 * SCALE)


def _step(torch: Any, forward: Callable[..., Any], x: Array, *learned: Any) -> Callable[[], Any]:
    """Forward and backward through autograd."""
    tensor = torch.from_numpy(x).clone().requires_grad_()
    dy = torch.from_numpy(normal(x.shape))

    def step() -> Any:
        for leaf in (tensor, *learned):
            leaf.grad = None
        y = forward(tensor)
        y.backward(dy)
        return tensor.grad

    return step


def _autograd(peers: Peers) -> Case:
    x = normal(SPLIT)

    def ours() -> Callable[[], Any]:
        torch = torch_with(peers.threads)
        import lowbit.torch as lt

        return _step(torch, lambda t: lt.fake_quantize(t, SCALE, ZERO_POINT), x)

    def theirs(torch: Any) -> Callable[[], Any]:
        return _step(torch, lambda t: torch.fake_quantize_per_tensor_affine(t, SCALE, ZERO_POINT, *_CODES), x)

    contenders = [Contender("lowbit", ours, kind="lowbit"), peers.torch(theirs)]
    targets = [Target("lowbit", TORCH, 10, "torch")]
    return Case("forward + backward by autograd, 2^20", 20 * SPLIT, contenders, targets)


def _learned(peers: Peers) -> Case:
    x = normal(SPLIT)

    def leaves(torch: Any) -> tuple[Any, Any]:
        return torch.tensor([SCALE], requires_grad=True), torch.tensor([float(ZERO_POINT)], requires_grad=True)

    def ours() -> Callable[[], Any]:
        torch = torch_with(peers.threads)
        import lowbit.torch as lt

        s, z = (v.detach().reshape(()).requires_grad_() for v in leaves(torch))
        return _step(torch, lambda t: lt.fake_quantize_learned(t, s, z), x, s, z)

    def theirs(torch: Any) -> Callable[[], Any]:
        s, z = leaves(torch)
        op = torch._fake_quantize_learnable_per_tensor_affine
        return _step(torch, lambda t: op(t, s, z, *_CODES), x, s, z)

    contenders = [Contender("lowbit", ours, kind="lowbit"), peers.torch(theirs)]
    targets = [Target("lowbit", TORCH, 10, "torch")]
    return Case("learned scale, forward + backward, 2^20", 20 * SPLIT, contenders, targets)


def _channels(peers: Peers, axis: int) -> Case:
    x = normal(MATRIX)
    scales = np.random.default_rng(1).uniform(0.01, 0.03, MATRIX[axis]).astype(np.float32)
    zeros, out = np.zeros(MATRIX[axis], np.int32), aligned(MATRIX, np.float32)

    def build(torch: Any) -> Callable[[], Any]:
        tensor, s, z = (torch.from_numpy(a) for a in (x, scales, zeros))
        return lambda: torch.fake_quantize_per_channel_affine(tensor, s, z, axis, *_CODES)

    contenders = [
        of_lowbit(lambda: lb.fake_quantize(x, scales, zeros, axis=axis, out=out)),
        peers.torch(build),
    ]
    name = f"fake_quantize per channel, 4096×4096, axis {axis}"
    return Case(name, 8 * x.size, contenders, [Target("lowbit", TORCH, 15, "torch")])


def _half_width(name: str, n: int) -> Case:
    import ml_dtypes

    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
    contenders = [_lowbit(normal(n, dtype), f"lowbit, {kind}") for kind, dtype in kinds.items()]
    contenders.append(_lowbit(normal(n), "lowbit, f32", nbytes=8 * n))
    targets = [Target(f"lowbit, {kind}", "lowbit, f32", 1.0, "f32") for kind in kinds]
    return Case(name, 4 * n, contenders, targets)


def _plan(peers: Peers) -> Case:
    x, y = normal(PLANNED), aligned(PLANNED, np.float32)
    plan = plans.FakeQuantizePerTensorPlan.select(plans.PerTensorDescriptor((PLANNED,)))
    args = plans.ForwardArgs(x, SCALE, ZERO_POINT, y)
    contenders = [of_lowbit(lambda: plan.run(args)), _torch_per_tensor(peers, x)]
    targets = [Target("lowbit", TORCH, 1.0, "torch")]
    return Case("plan.run on 256 elements", 8 * PLANNED, contenders, targets)
