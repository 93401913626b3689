"""Register operators with torch: schema, kernels, shapes, gradient, vmap rule, and the function that calls one.

Every gradient is an operator too, so that torch.compile and torch.export see nothing but operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

import torch
from lowbit.numerics.errors import Unsupported
from lowbit.runtime.devices import device_module
from lowbit.torch.functional.channels_last import in_memory_order
from torch import Tensor, nn

_lib: Any = torch.library.Library("lowbit", "FRAGMENT")  # type: ignore[no-untyped-call]

# Bound here because every call uses them.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transforms, _tracing = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
_included = torch._C._dispatch_tls_is_dispatch_key_included

_PLAIN = (Tensor, nn.Parameter)
_BATCHED_GRADIENTS = torch._C._dispatch_key_parse("VmapMode")  # of torch.autograd.grad(..., is_grads_batched=True)


def is_direct(name: str, *tensors: Tensor) -> bool:
    """Whether a call may skip the dispatcher: no tracer, transform or mode would observe it.

    `name` is the first tensor's name in errors.
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
    # A function mode may be a default device, on which kernels must not allocate their results.
    return not (
        _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _included(_BATCHED_GRADIENTS)
        or _tracing() is not None
        or forward_ad._current_level >= 0
    )


@dataclass(frozen=True)
class Operator:
    """An operator `lowbit::name`.

    tensors: how many leading arguments may have a gradient. gradient(dy, *arguments) gives one result for each of
    them; without it, asking for a gradient raises. arrays: for an element-wise operator, how many leading tensors have
    the shape of its result; sums: it also reduces. diagonal: the derivative by the first tensor is diagonal and no
    other tensor has one, so that `gradient` maps tangents too; otherwise forward-mode differentiation raises.
    direct(*arguments): called instead of the operator where autograd needs a gradient, unless it gives None.
    guard(): called where something traces or transforms the call; it may raise.
    """

    schema: str
    tensors: int = 0
    gradient: Callable[..., tuple[Tensor | None, ...]] | None = None
    direct: Callable[..., Any] | None = None
    arrays: int = 0
    sums: bool = False
    diagonal: bool = True
    guard: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        return self.schema[: self.schema.index("(")]

    @functools.cached_property
    def axis_at(self) -> int:
        """The position of the axis among the arguments; the group size follows it."""
        return self.schema[: self.schema.index("int? axis")].count(",") if self.arrays else 0

    @functools.cached_property
    def overload(self) -> Any:
        """The operator as torch.ops has it."""
        return getattr(torch.ops.lowbit, self.name).default


def register(schema: str, kernel: Callable[..., Any], shapes: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Register an operator; give the function that calls it, or its kernel where nothing would observe the difference.

    shapes: gives the results' shapes and dtypes, for tracing. options: the fields of Operator. The autograd kernel does
    what torch.library.register_autograd does, at half of its cost per call.
    """
    o = Operator(schema, **options)
    on_cuda = _cuda_kernel(o.name)
    if o.arrays:
        kernel, on_cuda = (in_memory_order(k, o.arrays, o.axis_at, o.sums) for k in (kernel, on_cuda))
    _lib.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _lib.impl(o.name, kernel, "CPU")
    _lib.impl(o.name, on_cuda, "CUDA")
    torch.library.register_fake(f"lowbit::{o.name}", shapes, lib=_lib)
    torch.library.register_vmap(f"lowbit::{o.name}", _vmap_rule(o), lib=_lib)
    function = _autograd_function(o)
    if o.tensors:
        _lib.impl(o.name, _autograd_kernel(o, function), "Autograd", with_keyset=True)
    return _caller(o, kernel, function)


def _cuda_kernel(name: str) -> Callable[..., Any]:
    """The GPU kernel of an operator. Its first call imports Triton."""

    @functools.cache
    def kernel() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(device_module("cuda", "torch_kernels"), name)
        return found

    return lambda *arguments: kernel()(*arguments)


def _vmap_rule(o: Operator) -> Callable[..., Any]:
    """The operator under torch.vmap: one call where all elements share a scale, otherwise one call per sample."""

    def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        if "!" in o.schema:
            raise Unsupported(f"{o.name}: under torch.vmap; it writes into its arguments, which all samples share")
        if info.batch_size == 0:
            raise Unsupported(f"{o.name}: under torch.vmap; expected at least one sample")
        arrays, at = o.arrays, o.axis_at
        alike = all(d is not None for d in in_dims[:arrays]) and all(d is None for d in in_dims[arrays:])
        if arrays and alike and not o.sums and arguments[at] is None and arguments[at + 1] is None:
            whole = (a.movedim(d, 0) for a, d in zip(arguments[:arrays], in_dims, strict=False))
            return o.overload(*whole, *arguments[arrays:]), 0
        samples = [
            o.overload(*(a.select(d, i) if isinstance(d, int) else a for a, d in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(samples[0], Tensor):
            return torch.stack(samples), 0
        return tuple(torch.stack(part) for part in zip(*samples, strict=True)), (0,) * len(samples[0])

    return batched


def _autograd_function(o: Operator) -> Any:
    """A torch.autograd.Function whose forward takes what runs the operator, then the operator's arguments."""

    def forward(ctx: Any, run: Callable[..., Any], *arguments: Any) -> Any:
        ctx.save_for_backward(*arguments[: o.tensors])
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*arguments[: o.tensors])
        ctx.rest = arguments[o.tensors :]
        return run(*arguments)

    def backward(ctx: Any, *dy: Tensor) -> Any:
        if o.gradient is None:
            raise Unsupported(f"{o.name}: it has no gradient of its own (a second derivative was asked for)")
        return None, *o.gradient(*dy, *ctx.saved_tensors, *ctx.rest), *(None for _ in ctx.rest)

    def jvp(ctx: Any, _: None, tangent: Tensor, *others: Any) -> Any:
        if o.gradient is None or not o.diagonal:
            raise Unsupported(f"{o.name}: it has no forward-mode derivative; expected reverse mode (torch.func.vjp)")
        return o.gradient(tangent, *ctx.saved_tensors, *ctx.rest)[0]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "jvp": staticmethod(jvp)}
    return type(o.name, (torch.autograd.Function,), methods)


def _needs_gradient(tensors: tuple[Any, ...]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return False


def _has_tangent(t: Tensor) -> bool:
    return forward_ad.unpack_dual(t).tangent is not None  # type: ignore[no-untyped-call]


def _autograd_kernel(o: Operator, function: Any) -> Callable[..., Any]:
    """What the dispatcher calls for the Autograd key."""

    def below_autograd(keyset: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return o.overload.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def autograd(keyset: Any, *arguments: Any) -> Any:
        run, tensors = functools.partial(below_autograd, keyset), arguments[: o.tensors]
        has_tangents = forward_ad._current_level >= 0 and any(_has_tangent(t) for t in tensors)
        if not (has_tangents or _needs_gradient(tensors)):
            return run(*arguments)
        if not _transforms():
            return function.apply(run, *arguments)
        # The dispatcher is at one level of a stack of transforms; `run` reaches the levels below.
        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, function).apply(run, *arguments)

    return autograd


def _caller(o: Operator, kernel: Callable[..., Any], function: Any) -> Callable[..., Any]:
    """The function that users of the operator call."""
    first = o.schema[o.schema.index("(") :].split()[1].rstrip(",")
    given = o.schema[: o.schema.index("->")].count("Tensor")
    # Bound here because every call uses them.
    op, tensors, direct, guard = o.overload, o.tensors, o.direct, o.guard

    def call(*arguments: Any) -> Any:
        if not is_direct(first, *arguments[:given]):
            if guard is not None:
                guard()
            return op(*arguments)
        if not _needs_gradient(arguments[:tensors]):
            return kernel(*arguments)
        found = None if direct is None else direct(*arguments)
        return function.apply(kernel, *arguments) if found is None else found

    return call
