"""Problems: shapes, scopes of a scale, codes, element kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity, granularity_of, per_token
from lowbit.plans.kinds import ElementKind, kind_of


@dataclass(frozen=True)
class PerTensorDescriptor:
    """One scale for an array of any shape (an int is a number of elements)."""

    shape: tuple[int, ...]
    qmin: int = -128
    qmax: int = 127
    input_element: ElementKind = ElementKind.F32
    output_element: ElementKind | None = None  # of codes, or of the numbers made from them
    learned: bool = False  # FakeQuantize backward: also the gradients of scales and zero points

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", tuple(whole("shape", n) for n in shape))
        for name in ("qmin", "qmax"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        object.__setattr__(self, "input_element", kind_of("input_element", self.input_element))
        if self.output_element is not None:
            object.__setattr__(self, "output_element", kind_of("output_element", self.output_element))

    @property
    def granularity(self) -> Granularity:
        return granularity_of(self.shape, None, None)


@dataclass(frozen=True)
class PerChannelDescriptor(PerTensorDescriptor):
    """One scale for each index of `axis`: shape (channels,)."""

    axis: int = 0

    @property
    def granularity(self) -> Granularity:
        return granularity_of(self.shape, whole("axis", self.axis), None)


@dataclass(frozen=True)
class PerTokenDescriptor(PerTensorDescriptor):
    """One scale for each row of the last axis: shape `shape[:-1]`."""

    @property
    def granularity(self) -> Granularity:
        return per_token(self.shape)


@dataclass(frozen=True)
class PerGroupDescriptor(PerTensorDescriptor):
    """One scale for `group_size` consecutive elements along `axis`; the last group may be short."""

    group_size: int = 128
    axis: int = -1

    @property
    def granularity(self) -> Granularity:
        if whole("group_size", self.group_size) <= 0:
            raise InvalidProblem(f"group_size: {self.group_size}; expected more than 0")
        return granularity_of(self.shape, whole("axis", self.axis), self.group_size)

    @property
    def num_groups(self) -> int:
        g = self.granularity
        return -(-g.axis // g.block)


def whole(name: str, value: Any) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidProblem(f"{name}: {value!r}; expected an integer")
    return int(value)
