"""What all plans have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import Immutable
from lowbit.plans.kinds import KernelSku, PrecisionGuarantee
from lowbit.runtime.devices import device_module

Preference = Literal["fastest", "reference"]
A = TypeVar("A")
P = TypeVar("P", bound="Plan[Any]")
PLANS: dict[str, type[Plan[Any]]] = {}  # every plan by its op


class Plan(Immutable, Generic[A]):
    """What all plans have in common. Made by `select`, not by the constructor."""

    Descriptor: ClassVar[type]
    Args: ClassVar[type]
    op: ClassVar[str]

    __slots__ = ("descriptor", "device", "preference", "sku")

    descriptor: Any
    device: str
    preference: Preference
    sku: KernelSku

    def __init_subclass__(cls) -> None:
        if "op" in vars(cls):
            PLANS[cls.op] = cls

    def __init__(self, descriptor: Any, device: str, preference: Preference) -> None:
        self._set(descriptor=descriptor, device=device, preference=preference)

    @classmethod
    def select(cls: type[P], descriptor: Any, device: str = "cpu", preference: Preference = "fastest") -> P:
        """A plan for the problem, or an error that says which field is wrong (InvalidProblem) or not served here
        (Unsupported). device: "cpu", or "cuda" and "cuda:1" for GPUs. preference: "fastest", or "reference" for NumPy
        alone."""
        if type(descriptor) is not cls.Descriptor:
            raise InvalidProblem(f"descriptor: {type(descriptor).__name__}; expected {cls.Descriptor.__name__}")
        if preference not in ("fastest", "reference"):
            raise InvalidProblem(f"preference: {preference!r}; expected 'fastest' or 'reference'")
        chosen = cls if device == "cpu" else device_module(device, "plans").gpu_plan(cls)
        cls._check(descriptor)
        plan: P = chosen(descriptor, device, preference)
        return plan

    @classmethod
    def _check(cls, descriptor: Any) -> None:
        """Raises for a problem no plan of this class serves."""

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        return self.sku.precision_guarantee

    @property
    def workspace_size(self) -> int:
        raise NotImplementedError

    def can_implement(self, args: A) -> None:
        """Raises if `run` would: a shape, an element kind, a place in memory or a value that does not fit. Values on a
        GPU are not looked at, neither here nor there."""
        raise NotImplementedError

    def run(self, args: A) -> None:
        """Does the work, into the arrays that args hold."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).select, (self.descriptor, self.device, self.preference)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.descriptor!r}, device={self.device!r})"
