"""The `lowbit` namespace of torch operators: schemas, shapes for tracing, and gradients.

Every gradient is an operator too, so that torch.compile and torch.export see nothing but operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

import torch
from lowbit.numerics.errors import Unsupported
from lowbit.runtime.devices import device_module
from lowbit.torch.functional import kernels
from lowbit.torch.functional.channels_last import as_it_lies, empty_like, in_memory_order, is_channels_last
from lowbit.torch.functional.kernels import compute_dtype, granularity
from torch import Tensor, nn

# The operators.
__all__ = [
    "affine_params", "dequantize", "dequantize_ste", "dequantize_ste_backward", "fake_quantize",
    "fake_quantize_backward", "fake_quantize_learned", "fake_quantize_learned_backward", "keep_where", "observe_",
    "quantize", "quantize_ste", "quantize_ste_backward", "range_params",
]  # fmt: skip

_lib: Any = torch.library.Library("lowbit", "FRAGMENT")  # type: ignore[no-untyped-call]
_AFFINE = "Tensor scale, Tensor zero_point, int qmin, int qmax, int? axis, int? group_size"

# ---- what tracing needs to know: shapes and types -------------------------------------------------------------------


def _scale_shape(x: Tensor, axis: int | None, block: int | None) -> tuple[Any, ...]:
    return granularity(x.shape, axis, block).scale_shape


def _fake_learned_backward(
    dy: Tensor, x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None, by: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape = _scale_shape(x, axis, block)
    of_zero = z.dtype if z.is_floating_point() else compute_dtype(x)
    return empty_like(x), s.new_empty(shape), s.new_empty(shape, dtype=of_zero)


def _fake_range_params(
    x: Tensor, qmin: int, qmax: int, symmetric: bool, axis: int | None, block: int | None, name: str, ignore: bool
) -> tuple[Tensor, Tensor]:
    shape = _scale_shape(x, axis, block)
    return x.new_empty(shape, dtype=compute_dtype(x)), x.new_empty(shape, dtype=torch.int32)


# ---- registration ---------------------------------------------------------------------------------------------------


# Bound here, as every call asks them.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transforms, _tracing = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
_included = torch._C._dispatch_tls_is_dispatch_key_included

_PLAIN = (Tensor, nn.Parameter)
_BATCHED_GRADIENTS = torch._C._dispatch_key_parse("VmapMode")  # of torch.autograd.grad(..., is_grads_batched=True)


def is_direct(name: str, *tensors: Tensor) -> bool:
    """Whether a call may go straight to the kernel: nothing traces it, transforms it, or watches what is dispatched.

    `name` is what errors call the first tensor.
    """
    if torch.compiler.is_compiling():
        return False
    x = tensors[0]
    if not x.is_cpu:
        if x.device.type not in ("meta", "cuda"):
            raise Unsupported(f"{name}: on {x.device}; expected memory of the CPU or of a CUDA device")
        return False
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    # A mode of torch functions may be a default device, on which kernels must not allocate their results.
    return not (
        _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _included(_BATCHED_GRADIENTS)
        or _tracing() is not None
        or forward_ad._current_level >= 0
    )


def _has_tangent(t: Tensor) -> bool:
    return forward_ad.unpack_dual(t).tangent is not None  # type: ignore[no-untyped-call]


def _for_cuda(name: str) -> Callable[..., Any]:
    """The GPU kernel of an operator. Triton and all that needs it are imported at the first call."""

    @functools.cache
    def found() -> Callable[..., Any]:
        kernel: Callable[..., Any] = getattr(device_module("cuda", "torch_kernels"), name)
        return kernel

    return lambda *arguments: found()(*arguments)


def _define(
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    tensors: int = 0,
    gradient: Callable[..., tuple[Tensor | None, ...]] | None = None,
    direct: Callable[..., Any] | None = None,
    arrays: int = 0,
    sums: bool = False,
    diagonal: bool = True,
    guard: Callable[[], None] | None = None,
) -> Callable[..., Any]:
    """An operator `lowbit::name`, and the function that calls it, or its kernel where nobody would see the difference.

    arrays: of an element-wise operator, how many leading tensors have the shape of its result; sums: it also adds up.
    gradient(dy, *arguments) gives one result for each of the leading `tensors`; None where those have none, which is
    said if it is asked for. It is registered as torch.library.register_autograd would, at half of its cost a call.
    diagonal: the derivative by the first tensor is diagonal and no other tensor has one, so that `gradient` maps
    tangents too; otherwise forward-mode differentiation is refused.
    direct(*arguments): what to do instead where no operator is called and autograd will want a gradient, unless None.
    guard(): called where something traces or transforms the call; it raises where that cannot be served.
    """
    name, first = schema[: schema.index("(")], schema[schema.index("(") :].split()[1].rstrip(",")
    given = schema[: schema.index("->")].count("Tensor")
    _lib.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    on_cuda = _for_cuda(name)
    axis_at = schema[: schema.index("int? axis")].count(",") if arrays else 0
    if arrays:
        kernel, on_cuda = (in_memory_order(k, arrays, axis_at, sums) for k in (kernel, on_cuda))
    _lib.impl(name, kernel, "CPU")
    _lib.impl(name, on_cuda, "CUDA")
    torch.library.register_fake(f"lowbit::{name}", shapes, lib=_lib)
    op = getattr(torch.ops.lowbit, name).default

    def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """The operator under torch.vmap: one call where all elements share a scale, otherwise one for each sample."""
        if "!" in schema:
            raise Unsupported(f"{name}: under torch.vmap; it writes into its arguments, which all samples share")
        if info.batch_size == 0:
            raise Unsupported(f"{name}: under torch.vmap; expected at least one sample")
        alike = all(d is not None for d in in_dims[:arrays]) and all(d is None for d in in_dims[arrays:])
        if arrays and alike and not sums and arguments[axis_at] is None and arguments[axis_at + 1] is None:
            whole = (a.movedim(d, 0) for a, d in zip(arguments[:arrays], in_dims, strict=False))
            return op(*whole, *arguments[arrays:]), 0
        samples = [
            op(*(a.select(d, i) if isinstance(d, int) else a for a, d in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(samples[0], Tensor):
            return torch.stack(samples), 0
        return tuple(torch.stack(part) for part in zip(*samples, strict=True)), (0,) * len(samples[0])

    torch.library.register_vmap(f"lowbit::{name}", batched, lib=_lib)

    def below_autograd(keyset: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def backward(ctx: Any, *dy: Tensor) -> Any:
        if gradient is None:
            raise Unsupported(f"{name}: it has no gradient of its own (a second derivative was asked for)")
        return None, *gradient(*dy, *ctx.saved_tensors, *ctx.rest), *(None for _ in ctx.rest)

    def jvp(ctx: Any, _: None, tangent: Tensor, *others: Any) -> Any:
        if gradient is None or not diagonal:
            raise Unsupported(f"{name}: it has no forward-mode derivative; expected reverse mode (torch.func.vjp)")
        return gradient(tangent, *ctx.saved_tensors, *ctx.rest)[0]

    def forward(ctx: Any, run: Callable[..., Any], *arguments: Any) -> Any:
        ctx.save_for_backward(*arguments[:tensors])
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*arguments[:tensors])
        ctx.rest = arguments[tensors:]
        return run(*arguments)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "jvp": staticmethod(jvp)}
    function: Any = type(name, (torch.autograd.Function,), methods)

    def learns(arguments: tuple[Any, ...]) -> bool:
        if torch.is_grad_enabled():
            for t in arguments[:tensors]:
                if t.requires_grad:
                    return True
        return False

    def autograd(keyset: Any, *arguments: Any) -> Any:
        run = functools.partial(below_autograd, keyset)
        moves = forward_ad._current_level >= 0 and any(_has_tangent(a) for a in arguments[:tensors])
        if not (moves or learns(arguments)):
            return run(*arguments)
        if not _transforms():
            return function.apply(run, *arguments)
        # The dispatcher has arrived at one level of transforms: what is below is reached through `run`.
        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, function).apply(run, *arguments)

    if tensors:
        _lib.impl(name, autograd, "Autograd", with_keyset=True)

    def call(*arguments: Any) -> Any:
        if not is_direct(first, *arguments[:given]):
            if guard is not None:
                guard()
            return op(*arguments)
        if not learns(arguments):
            return kernel(*arguments)
        found = None if direct is None else direct(*arguments)
        return function.apply(kernel, *arguments) if found is None else found

    return call


class _FakeQuantizeMasked(torch.autograd.Function):
    """fake_quantize that keeps a bit an element for its gradient, where the operator keeps x: 32 times as much."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        y, bits = kernels.fake_quantize_masked(*arguments)
        ctx.save_for_backward(bits)
        ctx.channels_last = is_channels_last(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (bits,) = ctx.saved_tensors
        # A view, which a second derivative and batched gradients pass through.
        dx = keep_where(as_it_lies(dy), bits).movedim(-1, 1) if ctx.channels_last else keep_where(dy, bits)
        return dx, None, None, None, None, None, None


def _by_mask(x: Tensor, *rest: Any) -> Any:
    *_, axis, block = rest
    return _FakeQuantizeMasked.apply(x, *rest) if kernels.mask_fits(x, axis, block) else None  # type: ignore[no-untyped-call]


def _learned_gradient(dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *a: Any) -> tuple[Tensor | None, ...]:
    dx, ds, dz = fake_quantize_learned_backward(dy, x, s, z, *a)
    return dx, ds, dz if z.is_floating_point() else None


# dx = m ? dy : 0 is linear in dy, so that its gradient by dy is itself; likewise dy / s and dy * s.
fake_quantize = _define(
    f"fake_quantize(Tensor x, {_AFFINE}) -> Tensor", kernels.fake_quantize, lambda x, *_: empty_like(x),
    3, lambda dy, *a: (fake_quantize_backward(dy, *a), None, None), _by_mask, arrays=1,
)  # fmt: skip
keep_where: Callable[..., Any] = _define(
    "keep_where(Tensor dy, Tensor bits) -> Tensor", kernels.keep_where,
    lambda dy, _: torch.empty_like(dy, memory_format=torch.contiguous_format),
    2, lambda g, dy, bits: (keep_where(g, bits), None),
)  # fmt: skip
fake_quantize_backward: Callable[..., Any] = _define(
    f"fake_quantize_backward(Tensor dy, Tensor x, {_AFFINE}) -> Tensor",
    kernels.fake_quantize_backward, lambda dy, x, *_: empty_like(x),
    4, lambda g, dy, *a: (fake_quantize_backward(g, *a), None, None, None), arrays=2,
)  # fmt: skip
fake_quantize_learned = _define(
    f"fake_quantize_learned(Tensor x, {_AFFINE}, float gradient_scale) -> Tensor",
    kernels.fake_quantize_learned, lambda x, *_: empty_like(x), 3, _learned_gradient, arrays=1, diagonal=False,
)  # fmt: skip
fake_quantize_learned_backward = _define(
    f"fake_quantize_learned_backward(Tensor dy, Tensor x, {_AFFINE}, float gradient_scale) -> (Tensor, Tensor, Tensor)",
    kernels.fake_quantize_learned_backward, _fake_learned_backward, 4, arrays=2, sums=True,
)  # fmt: skip
quantize = _define(
    f"quantize(Tensor x, {_AFFINE}, ScalarType dtype) -> Tensor",
    kernels.quantize, lambda x, *rest: empty_like(x, rest[-1]), arrays=1,
)  # fmt: skip
quantize_ste = _define(
    f"quantize_ste(Tensor x, {_AFFINE}) -> Tensor", kernels.quantize_ste, lambda x, *_: empty_like(x),
    3, lambda dy, *a: (quantize_ste_backward(dy, *a), None, None), arrays=1,
)  # fmt: skip
quantize_ste_backward: Callable[..., Any] = _define(
    f"quantize_ste_backward(Tensor dy, Tensor x, {_AFFINE}) -> Tensor",
    kernels.quantize_ste_backward, lambda dy, x, *_: empty_like(x),
    4, lambda g, dy, *a: (quantize_ste_backward(g, *a), None, None, None), arrays=2,
)  # fmt: skip
dequantize = _define(
    "dequantize(Tensor codes, Tensor scale, Tensor zero_point, int? axis, int? group_size, ScalarType dtype) -> Tensor",
    kernels.dequantize, lambda q, *rest: empty_like(q, rest[-1]), arrays=1,
)  # fmt: skip
dequantize_ste = _define(
    "dequantize_ste(Tensor codes, Tensor scale, Tensor zero_point, int? axis, int? group_size) -> Tensor",
    kernels.dequantize_ste, lambda q, *_: empty_like(q),
    3, lambda dy, q, s, z, *a: (dequantize_ste_backward(dy, s, *a), None, None), arrays=1,
)  # fmt: skip
dequantize_ste_backward: Callable[..., Any] = _define(
    "dequantize_ste_backward(Tensor dy, Tensor scale, int? axis, int? group_size) -> Tensor",
    kernels.dequantize_ste_backward, lambda dy, *_: empty_like(dy),
    2, lambda g, dy, *a: (dequantize_ste_backward(g, *a), None), arrays=1,
)  # fmt: skip
range_params = _define(
    "range_params(Tensor x, int qmin, int qmax, bool symmetric, int? axis, int? group_size, str name, bool ignore) "
    "-> (Tensor, Tensor)",
    kernels.range_params, _fake_range_params,
)  # fmt: skip
affine_params = _define(
    "affine_params(Tensor lo, Tensor hi, int qmin, int qmax, bool symmetric) -> (Tensor, Tensor)",
    kernels.affine_params, lambda lo, *_: (empty_like(lo), empty_like(lo).to(torch.int32)),
)  # fmt: skip
observe_ = _define(
    "observe_(Tensor x, Tensor(a!) lo, Tensor(b!) hi, Tensor(c!) left_out, float? momentum, int? axis, "
    "int? group_size, str name, bool ignore) -> ()",
    kernels.observe_, lambda *_: None,
)  # fmt: skip
