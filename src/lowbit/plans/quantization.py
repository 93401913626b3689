"""What plans of scales and zero points have in common."""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.plans.arguments import INT32, parameters, widened
from lowbit.plans.base import Plan, Preference
from lowbit.plans.descriptors import (
    PerChannelDescriptor,
    PerGroupDescriptor,
    PerTensorDescriptor,
    PerTokenDescriptor,
)
from lowbit.plans.kinds import CODES, FLOATS, STORED, ElementKind, KernelSku, PrecisionGuarantee
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import core

__all__ = ["QuantizationPlan"]

Array = npt.NDArray[Any]
A = TypeVar("A")
_DESCRIPTORS: dict[str, type[PerTensorDescriptor]] = {
    "Tensor": PerTensorDescriptor,
    "Channel": PerChannelDescriptor,
    "Token": PerTokenDescriptor,
    "Group": PerGroupDescriptor,
}


class QuantizationPlan(Plan[A]):
    """Quantize, dequantize, fake-quantize and their gradients: `Descriptor` and `op` follow from the class's name."""

    _takes: ClassVar[tuple[bool, bool | None]]  # whether input and output are floats; None: there is no output kind

    __slots__ = ("_compute", "_g", "_layout", "_no_zero", "_problem", "_scales")

    descriptor: PerTensorDescriptor
    _g: Granularity
    _layout: core.Granularity
    _compute: np.dtype[Any]
    _scales: tuple[int, ...]
    _no_zero: Array
    _problem: core.Problem

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):
            cls.op = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Plan")).lower()
            scope = re.sub(".*Per|BackwardPlan|Plan", "", cls.__name__)
            cls.Descriptor = _DESCRIPTORS[scope]
        super().__init_subclass__()

    def __init__(self, descriptor: PerTensorDescriptor, device: str, preference: Preference) -> None:
        super().__init__(descriptor, device, preference)
        g = descriptor.granularity
        element = descriptor.input_element
        number = element if element.is_float else descriptor.output_element
        wide = ElementKind.F64 if number is ElementKind.F64 else ElementKind.F32
        total = ElementKind.F64 if descriptor.learned else wide
        arch = "numpy" if preference == "reference" else core.active_isa()
        backend = "reference" if preference == "reference" else device
        layout, no_zero = cpu.layout_of(g), np.zeros(g.scale_shape, np.int32)
        no_zero.flags.writeable = False
        kind = FLOATS[number or ElementKind.F32]
        bounds = (0, 0) if self.op.startswith("dequantize") and self._backward() else (descriptor.qmin, descriptor.qmax)
        problem = core.Problem(layout, kind, list(descriptor.shape), list(g.scale_shape), *bounds)
        guarantee = PrecisionGuarantee(wide, total)
        sku = KernelSku("quantization", self.op, element, descriptor.output_element, arch, backend, guarantee)
        self._set(_g=g, _layout=layout, _compute=STORED[wide], _scales=g.scale_shape, _no_zero=no_zero)
        self._set(_problem=problem, sku=sku)

    @classmethod
    def _check(cls, descriptor: PerTensorDescriptor) -> None:
        cls._check_elements(descriptor)
        for size in descriptor.shape:
            if size < 0:
                raise InvalidProblem(f"shape: {descriptor.shape}; expected sizes of at least 0")
        if descriptor.qmax < descriptor.qmin:
            raise InvalidProblem(f"qmax: {descriptor.qmax} is below qmin, {descriptor.qmin}")
        lowest, highest = cls._codes_there_are(descriptor)
        if descriptor.qmin < lowest or descriptor.qmax > highest:
            raise InvalidProblem(
                f"qmin, qmax: [{descriptor.qmin}, {descriptor.qmax}]; expected within [{lowest}, {highest}]"
            )
        if descriptor.learned and not (cls.op.startswith("fake_quantize") and cls._backward()):
            raise InvalidProblem(f"learned: True; only FakeQuantize backward plans learn scales, not {cls.__name__}")

    @classmethod
    def _check_elements(cls, d: PerTensorDescriptor) -> None:
        takes_float, gives_float = cls._takes
        _expect_kind(cls, "input_element", d.input_element, takes_float)
        if gives_float is None:
            if d.output_element is not None:
                raise Unsupported(f"output_element: {d.output_element}; {cls.__name__} gives what it takes")
        else:
            _expect_kind(cls, "output_element", d.output_element, gives_float)

    @classmethod
    def _codes_there_are(cls, d: PerTensorDescriptor) -> tuple[int, int]:
        for kind in (d.output_element, d.input_element):
            if kind is not None and not kind.is_float:
                return CODES[kind][2:]
        return cpu.LOWEST_CODE, cpu.HIGHEST_CODE

    @classmethod
    def _backward(cls) -> bool:
        return cls.op.endswith("_backward")

    @property
    def workspace_size(self) -> int:
        """Bytes of `args.workspace`; 0: none is needed."""
        return 0

    def can_implement(self, args: A) -> None:
        self._buffers(args)
        given: Any = args
        self._require_values(self._scale(given.scale), self._zero(getattr(given, "zero_point", None)))

    def _buffers(self, args: A) -> tuple[Any, ...]:
        raise NotImplementedError

    def _scale(self, scale: Any) -> Array:
        ready = type(scale) is np.ndarray and scale.dtype is self._compute and scale.shape == self._scales
        if ready and scale.flags.c_contiguous and scale.flags.aligned:
            return scale  # type: ignore[no-any-return]
        return parameters("scale", widened(scale, self._compute), self._compute, self._scales)

    def _zero(self, zero: Any) -> Array:
        if zero is None or (type(zero) is int and zero == 0):
            return self._no_zero
        ready = type(zero) is np.ndarray and zero.dtype is INT32 and zero.shape == self._scales
        if ready and zero.flags.c_contiguous and zero.flags.aligned:
            return zero  # type: ignore[no-any-return]
        return parameters("zero_point", zero, INT32, self._scales)

    def _parameters(self, scale: Any, zero: Any) -> tuple[Array, Array]:
        """Scales and zero points. Kernels look at their values; for the reference they are looked at here."""
        found = self._scale(scale), self._zero(zero)
        if self.preference == "reference":
            self._require_values(*found)
        return found

    def _require_values(self, scale: Array, zero: Array) -> None:
        """Raises for a scale or zero point that kernels refuse."""
        bad = ~(np.isfinite(scale) & (scale >= MIN_SCALE) & (scale <= MAX_SCALE))
        if bad.any():
            self._finish(int(bad.argmax()), scale, zero)
        bad = (zero < self.descriptor.qmin) | (zero > self.descriptor.qmax)
        if bad.any() and not (self.op.startswith("dequantize") and self._backward()):  # which has no zero point
            self._finish(-2 - int(bad.argmax()), scale, zero)

    def _finish(self, status: int, scale: Array, zero: Array) -> None:
        if status != -1:
            raise cpu.bad_parameter(status, scale, zero, self.descriptor.qmin, self.descriptor.qmax)


def _expect_kind(cls: type[QuantizationPlan[Any]], name: str, kind: ElementKind | None, is_float: bool) -> None:
    if kind is None or kind.is_float is not is_float:
        expected = ", ".join(k.value for k in ElementKind if k.is_float is is_float)
        raise Unsupported(f"{name}: {kind}; {cls.__name__} expects one of {expected}")
