"""Plans with scales and zero points. `operation`, a row of `OPERATIONS`, says what each class computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE, affine_from_range
from lowbit.plans.arguments import (
    INT32,
    BackwardArgs,
    DequantizeBackwardArgs,
    DynamicArgs,
    ForwardArgs,
    array,
    load,
    output_parameters,
    parameters,
    store,
    widened,
    workspace,
)
from lowbit.plans.base import Plan, Preference
from lowbit.plans.descriptors import PerTensorDescriptor
from lowbit.plans.kinds import CODES, FLOATS, STORED, ElementKind, KernelSku, PrecisionGuarantee
from lowbit.plans.operations import Operation, quantize_formula
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

A = TypeVar("A")
_TOO_LARGE = "input: values too large: a scale would exceed the greatest there is"


class QuantizationPlan(Plan[A]):
    """The checks of descriptors, scales and zero points."""

    operation: ClassVar[Operation]

    __slots__ = ("_compute", "_g", "_native", "_no_zero", "_number", "_scales")

    descriptor: PerTensorDescriptor
    _g: Granularity
    _compute: np.dtype[Any]
    _number: ElementKind  # of the floats
    _scales: tuple[int, ...]
    _no_zero: Array
    _native: Any  # the native plan

    def __init__(self, descriptor: PerTensorDescriptor, device: str, preference: Preference) -> None:
        super().__init__(descriptor, device, preference)
        g, element, aux = descriptor.granularity, descriptor.input_element, descriptor.output_element
        number = element if element.is_float or aux is None else aux
        wide = ElementKind.F64 if number is ElementKind.F64 else ElementKind.F32
        total = ElementKind.F64 if descriptor.learned else wide
        arch = "numpy" if preference == "reference" else core.active_isa()
        backend = "reference" if preference == "reference" else device
        no_zero = np.zeros(g.scale_shape, np.int32)
        no_zero.flags.writeable = False
        guarantee = PrecisionGuarantee(wide, total)
        sku = KernelSku("quantization", self.op, element, aux, arch, backend, guarantee)
        self._set(_g=g, _compute=STORED[wide], _number=number, _scales=g.scale_shape)
        self._set(_no_zero=no_zero, sku=sku)
        self._set(_native=self._native_plan())

    def _native_plan(self) -> Any:
        raise NotImplementedError

    @classmethod
    def _check(cls, descriptor: PerTensorDescriptor) -> None:
        cls._check_elements(descriptor)
        for size in descriptor.shape:
            if size < 0:
                raise InvalidProblem(f"shape: {descriptor.shape}; expected sizes of at least 0")
        if descriptor.qmax < descriptor.qmin:
            raise InvalidProblem(f"qmax: {descriptor.qmax} is below qmin, {descriptor.qmin}")
        lowest, highest = cls._code_range(descriptor)
        if descriptor.qmin < lowest or descriptor.qmax > highest:
            raise InvalidProblem(
                f"qmin, qmax: [{descriptor.qmin}, {descriptor.qmax}]; expected within [{lowest}, {highest}]"
            )
        if descriptor.learned and not cls.operation.learns:
            raise InvalidProblem(f"learned: True; only FakeQuantize backward plans learn scales, not {cls.__name__}")

    @classmethod
    def _check_elements(cls, d: PerTensorDescriptor) -> None:
        row = cls.operation
        _expect_kind(cls, "input_element", d.input_element, row.takes_float)
        if row.gives_float is not None:
            _expect_kind(cls, "output_element", d.output_element, row.gives_float)
        elif d.output_element is not None:
            raise Unsupported(f"output_element: {d.output_element}; {cls.__name__} gives what it takes")

    @classmethod
    def _code_range(cls, d: PerTensorDescriptor) -> tuple[int, int]:
        for kind in (d.output_element, d.input_element):
            if kind is not None and not kind.is_float:
                return CODES[kind][2:]
        return cpu.LOWEST_CODE, cpu.HIGHEST_CODE

    @property
    def _code(self) -> ElementKind:
        """Of the codes; only where there are any."""
        d = self.descriptor
        return d.input_element if d.output_element is None or not d.input_element.is_float else d.output_element

    @property
    def workspace_size(self) -> int:
        """Bytes of `args.workspace`; 0: none is needed."""
        return 0

    def _scale(self, scale: Any) -> Array:
        if isinstance(scale, float) and not self._scales:
            return np.array(scale, self._compute)
        ready = type(scale) is np.ndarray and scale.dtype is self._compute and scale.shape == self._scales
        if ready and scale.flags.c_contiguous and scale.flags.aligned:
            return scale  # type: ignore[no-any-return]
        return parameters("scale", widened(scale, self._compute), self._compute, self._scales)

    def _zero(self, zero: Any) -> Array:
        if zero is None or (type(zero) is int and zero == 0):
            return self._no_zero
        if type(zero) is int and not self._scales and -(2**31) <= zero < 2**31:
            return np.array(zero, INT32)
        ready = type(zero) is np.ndarray and zero.dtype is INT32 and zero.shape == self._scales
        if ready and zero.flags.c_contiguous and zero.flags.aligned:
            return zero  # type: ignore[no-any-return]
        return parameters("zero_point", zero, INT32, self._scales)

    def _require_values(self, scale: Array, zero: Array) -> None:
        """Raises for a scale or zero point that kernels refuse."""
        bad = ~(np.isfinite(scale) & (scale >= MIN_SCALE) & (scale <= MAX_SCALE))
        if bad.any():
            self._require_good(int(bad.argmax()), scale, zero)
        bad = (zero < self.descriptor.qmin) | (zero > self.descriptor.qmax)
        if bad.any() and self.operation.has_zero_point:
            self._require_good(-2 - int(bad.argmax()), scale, zero)

    def _require_good(self, status: int, scale: Array, zero: Array) -> None:
        """Raises the error that a kernel's status means."""
        if status != -1:
            raise cpu.bad_parameter(status, scale, zero, self.descriptor.qmin, self.descriptor.qmax)


class AffinePlan(QuantizationPlan[A]):
    """A plan for given scales: quantize, dequantize, fake-quantize, and their gradients. Gradients look at the forward
    input again, as its mask is not kept."""

    __slots__ = ("_direct",)

    _direct: Callable[[Any], int] | None  # one native call for args of plain arrays; -1: it was done

    def __init__(self, descriptor: PerTensorDescriptor, device: str, preference: Preference) -> None:
        super().__init__(descriptor, device, preference)
        direct = None
        # Native plans cannot tell bfloat16 from other types of 16 bits.
        if (
            device == "cpu"
            and preference == "fastest"
            and self.operation.native
            and self._number is not ElementKind.BF16
        ):
            run, no_zero = getattr(self._native, self.operation.native), self._no_zero
            direct = {
                ForwardArgs: lambda a: run(a.input, a.output, a.scale, a.zero_point),
                BackwardArgs: lambda a: run(a.d_output, a.input, a.d_input, a.scale, a.zero_point),
                DequantizeBackwardArgs: lambda a: run(a.d_output, a.d_input, a.scale, no_zero),
            }[self.operation.args]
        self._set(_direct=direct)

    def _native_plan(self) -> core.QuantizePlan | core.DequantizePlan | core.FakeQuantizePlan:
        d, element = self.descriptor, FLOATS[self._number]
        if self.operation.native is None:
            kind: Any = core.QuantizePlan if self.operation.takes_float else core.DequantizePlan
            return elementwise.codes_plan(kind, element, CODES[self._code][0], d.shape, self._g)  # type: ignore[no-any-return]
        bounds = (d.qmin, d.qmax) if self.operation.has_zero_point else (0, 0)
        return elementwise.fake_quantize_plan(element, d.shape, self._g, *bounds)

    def _kinds(self) -> tuple[ElementKind, ElementKind]:
        """Of what the operation reads, and of what it writes."""
        d = self.descriptor
        return (
            (self._number,) * 2 if self.operation.is_backward else (d.input_element, d.output_element or self._number)
        )

    def _buffers(self, args: Any) -> tuple[list[Array], Array, Array, Array]:
        """The arrays that are read, the one that is written, scales and zero points."""
        row, shape = self.operation, self.descriptor.shape
        kind, out_kind = self._kinds()
        reads = [array(name, getattr(args, name), kind, shape) for name in row.reads]
        out = array(row.writes, getattr(args, row.writes), out_kind, shape, writable=True)
        cpu.require_apart(row.writes, out, row.in_place, **dict(zip(row.reads, reads, strict=True)))
        scale, zero = self._scale(args.scale), self._zero(args.zero_point if row.has_zero_point else None)
        if self.preference == "reference":  # kernels look at the values themselves
            self._require_values(scale, zero)
        return reads, out, scale, zero

    def can_implement(self, args: A) -> None:
        _, out, scale, zero = self._buffers(args)
        cpu.require_apart(self.operation.writes, out, False, scale=scale, zero_point=zero)
        self._require_values(scale, zero)

    def run(self, args: A) -> None:
        if self._direct is not None and self._direct(args) == -1:
            return
        reads, out, scale, zero = self._buffers(args)
        row, d = self.operation, self.descriptor
        if self.preference == "reference":
            kind, out_kind = self._kinds()
            assert row.formula is not None
            loaded = [load(a, kind, d.shape) for a in reads]
            store(row.formula(*loaded, scale, zero, d.qmin, d.qmax, self._g), out, out_kind)
            return
        cpu.require_apart(row.writes, out, False, scale=scale, zero_point=zero)
        if row.native is None:
            mapping = core.Affine(CODES[self._code][0], scale, zero, d.qmin, d.qmax)
            self._require_good(mapping.first_invalid, scale, zero)
            elementwise.require_run(self._native.run(*reads, out, mapping))
        else:
            self._require_good(getattr(self._native, row.native)(*reads, out, scale, zero), scale, zero)


class LearnedPlan(AffinePlan[BackwardArgs]):
    """The gradient of fake-quantize; where `learned`, those of scales and zero points too."""

    __slots__ = ()

    @property
    def workspace_size(self) -> int:
        return self._native.workspace_bytes if self.descriptor.learned else 0

    def _learned_buffers(self, args: BackwardArgs) -> tuple[Array, Array, Array]:
        return (
            output_parameters("d_scale", args.d_scale, self._compute, self._scales),
            output_parameters("d_zero_point", args.d_zero_point, self._compute, self._scales),
            workspace(args.workspace, self.workspace_size),
        )

    def can_implement(self, args: BackwardArgs) -> None:
        super().can_implement(args)
        if self.descriptor.learned:
            (dy, x), dx, scale, zero = self._buffers(args)
            before: dict[str, Array | None] = {
                "input": x,
                "d_output": dy,
                "d_input": dx,
                "scale": scale,
                "zero_point": zero,
            }
            ds, dz, room = self._learned_buffers(args)
            _require_all_apart(before, d_scale=ds, d_zero_point=dz, workspace=room)

    def run(self, args: BackwardArgs) -> None:
        if not self.descriptor.learned:
            return super().run(args)
        (dy, x), dx, scale, zero = self._buffers(args)
        ds, dz, room = self._learned_buffers(args)
        d, kind = self.descriptor, self._number
        if self.preference == "reference":
            dy, x = (load(a, kind, d.shape) for a in (dy, x))
            found = reference.fake_quantize_learned_backward(dy, x, scale, zero, d.qmin, d.qmax, self._g)
            for target, value in zip((load(dx, kind, d.shape), ds, dz), found, strict=True):
                target[...] = value
            return
        cpu.require_apart("d_input", dx, False, scale=scale, zero_point=zero)
        made = core.LearnedGradients(ds, dz, room)
        self._require_good(self._native.learned_backward(dy, x, dx, scale, zero, made), scale, zero)


class DynamicPlan(QuantizationPlan[DynamicArgs]):
    """Scales (and zero points) from the data's own range, then its codes. NaN and Inf in the data are an error that
    names the first; the output is then undefined."""

    __slots__ = ()

    def _native_plan(self) -> core.DynamicQuantizePlan:
        d = self.descriptor
        divisor = max(1, d.qmax) if self.operation.is_symmetric else 0
        element, code = FLOATS[d.input_element], CODES[self._code][0]
        return elementwise.dynamic_plan(element, code, d.shape, self._g, (d.qmin, d.qmax), divisor)

    @property
    def workspace_size(self) -> int:
        return self._native.workspace_bytes  # type: ignore[no-any-return]

    def _buffers(self, args: DynamicArgs) -> tuple[Array, Array, Array, Array | None, Array]:
        d = self.descriptor
        zero = None
        if not self.operation.is_symmetric or args.zero_point is not None:
            zero = output_parameters("zero_point", args.zero_point, INT32, self._scales)
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        return (
            array("input", args.input, d.input_element, d.shape),
            array("output", args.output, self._code, d.shape, writable=True),
            output_parameters("scale", args.scale, self._compute, self._scales),
            zero,
            workspace(args.workspace, self.workspace_size),
        )

    def can_implement(self, args: DynamicArgs) -> None:
        """Raises if `run` would; it looks at the data."""
        x, out, scale, zero, room = self._buffers(args)
        _require_all_apart({"input": x}, output=out, scale=scale, zero_point=zero, workspace=room)
        lo, hi, nans = elementwise.value_range(cpu.FloatArray(x, FLOATS[self.descriptor.input_element]), self._g)
        if np.any(nans) or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            _refuse(x, self.descriptor.input_element)
        self._affine(lo, hi)

    def _affine(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Scales and zero points that cover finite ranges."""
        d = self.descriptor
        try:
            return affine_from_range(lo, hi, d.qmin, d.qmax, symmetric=bool(self.operation.is_symmetric))
        except InvalidProblem:
            raise InvalidProblem(_TOO_LARGE) from None

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d = self.descriptor
        if self.preference == "reference":
            return self._run_reference(x, out, scale, zero)
        found = self._native.run(x, out, scale, zero, room)
        if found is None:
            _require_all_apart({"input": x}, output=out, scale=scale, zero_point=zero, workspace=room)
        if found != (0, 0):
            _refuse(x, d.input_element)

    def _run_reference(self, x: Array, out: Array, scale: Array, zero: Array | None) -> None:
        d, g = self.descriptor, self._g
        wide = reference.widen(load(x, d.input_element, d.shape))
        if not np.isfinite(wide).all():
            _refuse(x, d.input_element)
        scale[...], z = self._affine(*reference.range_by_scale(wide, g))
        if zero is not None:
            zero[...] = z
        store(quantize_formula(wide, scale, z, d.qmin, d.qmax, g), out, self._code)


def _require_all_apart(before: dict[str, Array | None], **arrays: Array | None) -> None:
    """Refuses arrays that share memory with one before them."""
    for name, a in arrays.items():
        if a is not None:
            cpu.require_apart(name, a, False, **before)
        before[name] = a


def _refuse(x: Array, kind: ElementKind) -> NoReturn:
    """Raises for the first NaN or Inf; without one, the values are too large."""
    cpu.refuse_nonfinite(cpu.FloatArray(x, FLOATS[kind]), "input")
    raise InvalidProblem(_TOO_LARGE)


def _expect_kind(cls: type[QuantizationPlan[Any]], name: str, kind: ElementKind | None, is_float: bool) -> None:
    if kind is None or kind.is_float is not is_float:
        expected = ", ".join(k.value for k in ElementKind if k.is_float is is_float)
        raise Unsupported(f"{name}: {kind}; {cls.__name__} expects one of {expected}")
