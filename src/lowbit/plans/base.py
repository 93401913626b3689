"""What all plans have in common."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lowbit import _core
from lowbit.errors import InvalidProblem, Unsupported
from lowbit.granularity import Granularity
from lowbit.kernels import cpu
from lowbit.plans.arguments import INT32, parameters
from lowbit.plans.descriptors import (
    PerChannelDescriptor,
    PerGroupDescriptor,
    PerTensorDescriptor,
    PerTokenDescriptor,
)
from lowbit.plans.kinds import CODES, FLOATS, STORED, ElementKind, KernelSku, PrecisionGuarantee

__all__ = ["PLANS", "Plan"]

Array = npt.NDArray[Any]
Preference = Literal["fastest", "reference"]
A = TypeVar("A")
PLANS: dict[str, type[Plan[Any]]] = {}  # every plan by its op
_DESCRIPTORS: dict[str, type[PerTensorDescriptor]] = {
    "Tensor": PerTensorDescriptor,
    "Channel": PerChannelDescriptor,
    "Token": PerTokenDescriptor,
    "Group": PerGroupDescriptor,
}


class Plan(Generic[A]):
    """What all plans have in common. Made by `select`, not by the constructor."""

    Descriptor: ClassVar[type[PerTensorDescriptor]]  # this and `op` follow from the name of the class
    Args: ClassVar[type]
    op: ClassVar[str]
    _takes: ClassVar[tuple[bool, bool | None]]  # whether input and output are floats; None: there is no output kind

    __slots__ = (
        "_compute",
        "_g",
        "_layout",
        "_no_zero",
        "_problem",
        "_scales",
        "descriptor",
        "device",
        "preference",
        "sku",
    )

    descriptor: PerTensorDescriptor
    device: str
    preference: Preference
    sku: KernelSku
    _g: Granularity
    _layout: _core.Layout
    _compute: np.dtype[Any]
    _scales: tuple[int, ...]
    _no_zero: Array
    _problem: _core.Problem

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):
            cls.op = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Plan")).lower()
            scope = re.sub(".*Per|BackwardPlan|Plan", "", cls.__name__)
            cls.Descriptor = _DESCRIPTORS[scope]
            PLANS[cls.op] = cls

    def __init__(self, descriptor: PerTensorDescriptor, device: str, preference: Preference) -> None:
        set_ = object.__setattr__
        g = descriptor.granularity
        element = descriptor.input_element
        number = element if element.is_float else descriptor.output_element
        wide = ElementKind.F64 if number is ElementKind.F64 else ElementKind.F32
        total = ElementKind.F64 if self._sums(descriptor) else wide
        arch = "numpy" if preference == "reference" else _core.active_isa()
        backend = "reference" if preference == "reference" else device
        set_(self, "descriptor", descriptor)
        set_(self, "device", device)
        set_(self, "preference", preference)
        set_(self, "_g", g)
        set_(self, "_layout", cpu.layout_of(g))
        set_(self, "_compute", STORED[wide])
        kind = FLOATS[number or ElementKind.F32]
        bounds = (0, 0) if self.op.startswith("dequantize") and self._backward() else (descriptor.qmin, descriptor.qmax)
        shapes = (list(descriptor.shape), list(g.scale_shape))
        set_(self, "_problem", _core.Problem(self._layout, kind, *shapes, *bounds))
        set_(self, "_scales", g.scale_shape)
        set_(self, "_no_zero", np.zeros(g.scale_shape, np.int32))
        self._no_zero.flags.writeable = False
        guarantee = PrecisionGuarantee(wide, total)
        sku = KernelSku("quantization", self.op, element, descriptor.output_element, arch, backend, guarantee)
        set_(self, "sku", sku)

    @classmethod
    def select(
        cls, descriptor: PerTensorDescriptor, device: str = "cpu", preference: Preference = "fastest"
    ) -> Plan[A]:
        """A plan for the problem, or an error that says which field is wrong (InvalidProblem) or not served here
        (Unsupported). preference: "fastest", or "reference" for NumPy alone."""
        if type(descriptor) is not cls.Descriptor:
            raise InvalidProblem(f"descriptor: {type(descriptor).__name__}; expected {cls.Descriptor.__name__}")
        if preference not in ("fastest", "reference"):
            raise InvalidProblem(f"preference: {preference!r}; expected 'fastest' or 'reference'")
        if device != "cpu":
            raise Unsupported(f"device: {device!r}; expected 'cpu'")
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
        if (descriptor.learned and not cls.op.startswith("fake_quantize")) or (
            descriptor.learned and not cls._backward()
        ):
            raise InvalidProblem(f"learned: True; only FakeQuantize backward plans learn scales, not {cls.__name__}")
        return cls(descriptor, device, preference)

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

    @classmethod
    def _sums(cls, d: PerTensorDescriptor) -> bool:
        return d.learned

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        return self.sku.precision_guarantee

    @property
    def workspace_size(self) -> int:
        """Bytes of `args.workspace`; 0: none is needed."""
        return 0

    def can_implement(self, args: A) -> None:
        """Raises if `run` would: a shape, an element kind or a place in memory that does not fit."""
        self._buffers(args)

    def run(self, args: A) -> None:
        """Does the work, into the arrays that args hold."""
        raise NotImplementedError

    def _buffers(self, args: A) -> tuple[Any, ...]:
        raise NotImplementedError

    def _scale(self, scale: Any) -> Array:
        ready = type(scale) is np.ndarray and scale.dtype is self._compute and scale.shape == self._scales
        if ready and scale.flags.c_contiguous:
            return scale  # type: ignore[no-any-return]
        return parameters("scale", scale, self._compute, self._scales)

    def _zero(self, zero: Any) -> Array:
        if zero is None or (type(zero) is int and zero == 0):
            return self._no_zero
        if type(zero) is np.ndarray and zero.dtype is INT32 and zero.shape == self._scales and zero.flags.c_contiguous:
            return zero
        return parameters("zero_point", zero, INT32, self._scales)

    def _finish(self, status: int, scale: Array, zero: Array) -> None:
        if status != -1:
            raise cpu.bad_parameter(status, scale, zero, self.descriptor.qmin, self.descriptor.qmax)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return _select, (type(self), self.descriptor, self.device, self.preference)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.descriptor!r}, device={self.device!r})"


def _select(cls: type[Plan[Any]], descriptor: PerTensorDescriptor, device: str, preference: Preference) -> Plan[Any]:
    return cls.select(descriptor, device, preference)


def _expect_kind(cls: type[Plan[Any]], name: str, kind: ElementKind | None, is_float: bool) -> None:
    if kind is None or kind.is_float is not is_float:
        expected = ", ".join(k.value for k in ElementKind if k.is_float is is_float)
        raise Unsupported(f"{name}: {kind}; {cls.__name__} expects one of {expected}")
