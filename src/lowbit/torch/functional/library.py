"""The operators of the `lowbit` namespace: schemas, the shapes that tracing needs, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lowbit.runtime.torch_types import compute_dtype, granularity
from lowbit.torch.functional import kernels
from lowbit.torch.functional.channels_last import channels_innermost, empty_like, is_channels_last
from lowbit.torch.functional.registration import register
from torch import Tensor

_CODES = "Tensor codes, Tensor scale, Tensor zero_point, int? axis, int? group_size"
_AFFINE = "Tensor scale, Tensor zero_point, int qmin, int qmax, int? axis, int? group_size"
_RANGE = "int? axis, int? group_size, str name, bool ignore"

OPERATORS: dict[str, Callable[..., Any]] = {}


def _operator(schema: str, shapes: Callable[..., Any] = lambda x, *_: empty_like(x), **options: Any) -> Any:
    """Register an operator whose kernel has its name. By default the result is like the first tensor."""
    name = schema[: schema.index("(")]
    OPERATORS[name] = register(schema, getattr(kernels, name), shapes, **options)
    return OPERATORS[name]


def _linear(schema: str, tensors: int, **options: Any) -> Any:
    """Register an operator that is linear in its first tensor, by which its gradient is the operator itself."""
    name = schema[: schema.index("(")]

    def gradient(g: Tensor, dy: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
        return OPERATORS[name](g, *rest), *[None] * (tensors - 1)

    return _operator(schema, tensors=tensors, gradient=gradient, **options)


class _FakeQuantizeMasked(torch.autograd.Function):
    """fake_quantize that saves one bit per element for its gradient, where the operator saves x."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        y, bits = kernels.fake_quantize_masked(*arguments)
        ctx.save_for_backward(bits)
        ctx.channels_last = is_channels_last(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (bits,) = ctx.saved_tensors
        # A view, which second derivatives and batched gradients pass through.
        dx = keep_where(channels_innermost(dy), bits).movedim(-1, 1) if ctx.channels_last else keep_where(dy, bits)
        return dx, None, None, None, None, None, None


def _by_mask(x: Tensor, *rest: Any) -> Any:
    *_, axis, block = rest
    return _FakeQuantizeMasked.apply(x, *rest) if kernels.mask_fits(x, axis, block) else None  # type: ignore[no-untyped-call]


def _learned_gradient(dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    dx, ds, dz = fake_quantize_learned_backward(dy, x, s, z, *rest)
    return dx, ds, dz if z.is_floating_point() else None


def _learned_shapes(dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    shape = _scale_shape(x, *rest[2:4])
    of_zero = z.dtype if z.is_floating_point() else compute_dtype(x)
    return empty_like(x), s.new_empty(shape), s.new_empty(shape, dtype=of_zero)


def _range_shapes(
    x: Tensor, qmin: int, qmax: int, symmetric: bool, axis: int | None, block: int | None, *_: Any
) -> tuple[Tensor, Tensor]:
    shape = _scale_shape(x, axis, block)
    return x.new_empty(shape, dtype=compute_dtype(x)), x.new_empty(shape, dtype=torch.int32)


def _scale_shape(x: Tensor, axis: int | None, block: int | None) -> tuple[Any, ...]:
    return granularity(x.shape, axis, block).scale_shape


def _like_in_dtype(x: Tensor, *rest: Any) -> Tensor:
    return empty_like(x, rest[-1])


fake_quantize: Callable[..., Tensor] = _operator(
    f"fake_quantize(Tensor x, {_AFFINE}) -> Tensor",
    tensors=3,
    gradient=lambda dy, *rest: (fake_quantize_backward(dy, *rest), None, None),
    direct=_by_mask,
    arrays=1,
)
fake_quantize_backward: Callable[..., Any] = _linear(
    f"fake_quantize_backward(Tensor dy, Tensor x, {_AFFINE}) -> Tensor", 4, arrays=2
)
keep_where = _linear(
    "keep_where(Tensor dy, Tensor bits) -> Tensor",
    2,
    shapes=lambda dy, _: torch.empty_like(dy, memory_format=torch.contiguous_format),
)
fake_quantize_learned: Callable[..., Tensor] = _operator(
    f"fake_quantize_learned(Tensor x, {_AFFINE}, float gradient_scale) -> Tensor",
    tensors=3,
    gradient=_learned_gradient,
    arrays=1,
    diagonal=False,
)
fake_quantize_learned_backward = _operator(
    f"fake_quantize_learned_backward(Tensor dy, Tensor x, {_AFFINE}, float gradient_scale) -> (Tensor, Tensor, Tensor)",
    _learned_shapes,
    tensors=4,
    arrays=2,
    sums=True,
)
quantize = _operator(f"quantize(Tensor x, {_AFFINE}, ScalarType dtype) -> Tensor", _like_in_dtype, arrays=1)
quantize_ste = _operator(
    f"quantize_ste(Tensor x, {_AFFINE}) -> Tensor",
    tensors=3,
    gradient=lambda dy, *rest: (quantize_ste_backward(dy, *rest), None, None),
    arrays=1,
)
quantize_ste_backward: Callable[..., Any] = _linear(
    f"quantize_ste_backward(Tensor dy, Tensor x, {_AFFINE}) -> Tensor", 4, arrays=2
)
dequantize = _operator(f"dequantize({_CODES}, ScalarType dtype) -> Tensor", _like_in_dtype, arrays=1)
dequantize_ste = _operator(
    f"dequantize_ste({_CODES}) -> Tensor",
    tensors=3,
    gradient=lambda dy, codes, s, z, *rest: (dequantize_ste_backward(dy, s, *rest), None, None),
    arrays=1,
)
dequantize_ste_backward: Callable[..., Any] = _linear(
    "dequantize_ste_backward(Tensor dy, Tensor scale, int? axis, int? group_size) -> Tensor", 2, arrays=1
)
range_params: Callable[..., tuple[Tensor, Tensor]] = _operator(
    f"range_params(Tensor x, int qmin, int qmax, bool symmetric, {_RANGE}) -> (Tensor, Tensor)", _range_shapes
)
affine_params: Callable[..., tuple[Tensor, Tensor]] = _operator(
    "affine_params(Tensor lo, Tensor hi, int qmin, int qmax, bool symmetric) -> (Tensor, Tensor)",
    lambda lo, *_: (empty_like(lo), empty_like(lo).to(torch.int32)),
)
observe_ = _operator(
    f"observe_(Tensor x, Tensor(a!) lo, Tensor(b!) hi, Tensor(c!) left_out, float? momentum, {_RANGE}) -> ()",
    lambda *_: None,
)
