"""Problems: shapes, scopes of a scale, codes, element kinds; and what plans of integer compute are run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity, granularity_of, per_token
from lowbit.numerics.params import QuantizationParams
from lowbit.ops.conv import ConvGeometry
from lowbit.ops.epilogue import EpilogueOptions, bounds_of
from lowbit.plans.arguments import on_axis, same_params
from lowbit.plans.kinds import ElementKind, kind_of
from lowbit.runtime import arrays as cpu


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
        _set(self, lambda name, _: tuple(whole(name, n) for n in shape), "shape")
        _set(self, whole, "qmin", "qmax")
        _set(self, kind_of, "input_element")
        if self.output_element is not None:
            _set(self, kind_of, "output_element")

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


@dataclass(frozen=True)
class MatMulDescriptor:
    """a [m, k] by b [k, n], codes of these params, to floats or to codes of out_params; options as in `qmatmul`.

    prepacked: b will always be a PackedMatrix, and no workspace is needed to make one.
    """

    m: int
    n: int
    k: int
    a: QuantizationParams
    b: QuantizationParams
    out_params: QuantizationParams | None = None
    out_dtype: str = "float32"
    activation: str | None = None
    clamp: tuple[float, float] | None = None
    prepacked: bool = False

    def __post_init__(self) -> None:
        _set(self, _size, "m", "n", "k")
        _set(self, _params(2), "a", "b")
        _set_outcome(self)


@dataclass(frozen=True)
class Conv2dDescriptor:
    """x by w, codes of these shapes and params; options as in `qconv2d`.

    prepacked: w will always be a PackedConv, and no workspace is needed to make one.
    """

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    x: QuantizationParams
    w: QuantizationParams
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    layout: str = "NCHW"
    out_params: QuantizationParams | None = None
    out_dtype: str = "float32"
    activation: str | None = None
    clamp: tuple[float, float] | None = None
    prepacked: bool = False

    def __post_init__(self) -> None:
        _set(self, _shape, "x_shape", "w_shape")
        _set(self, _params(4), "x", "w")
        geometry = self.geometry._asdict()
        _set(self, lambda name, _: geometry[name], *geometry)
        _set_outcome(self)

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry.of(self.stride, self.padding, self.dilation, self.groups, self.layout)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.geometry.output_shape(self.x_shape, self.w_shape)


@dataclass(frozen=True)
class LinearDescriptor:
    """`QuantizedLinear` on x [rows, in_features]: weights [out_features, in_features] of these params, and what the
    layer was made with. input_element: f32, f16 or bf16, which the result has too, unless it is codes of out_params."""

    rows: int
    in_features: int
    out_features: int
    weight: QuantizationParams
    activation_dtype: str = "int8"
    input_params: QuantizationParams | None = None
    out_params: QuantizationParams | None = None
    input_element: ElementKind = ElementKind.F32

    def __post_init__(self) -> None:
        _set(self, _size, "rows", "in_features", "out_features")
        _set(self, _params(2), "weight")
        _set(self, _given_params, "input_params", "out_params")
        _set(self, kind_of, "input_element")


@dataclass
class MatMulArgs:
    """output: an array, or a QuantizedTensor of the descriptor's out_params. bias: as in `qmatmul`."""

    a: Any
    b: Any  # QuantizedTensor or PackedMatrix
    output: Any
    bias: Any = None


@dataclass
class Conv2dArgs:
    """output: an array in the descriptor's layout, or a QuantizedTensor of its out_params."""

    x: Any
    w: Any  # QuantizedTensor or PackedConv
    output: Any
    bias: Any = None


@dataclass
class LinearArgs:
    """layer: a QuantizedLinear as the descriptor says; it has its own bias."""

    x: Any
    layer: Any
    output: Any


def epilogue_options(d: MatMulDescriptor | Conv2dDescriptor) -> EpilogueOptions:
    return {"out_params": d.out_params, "out_dtype": d.out_dtype, "activation": d.activation, "clamp": d.clamp}


def _set(descriptor: Any, checked: Callable[[str, Any], Any], *names: str) -> None:
    """Replaces fields by what `checked(name, value)` makes of them."""
    for name in names:
        object.__setattr__(descriptor, name, checked(name, getattr(descriptor, name)))


def whole(name: str, value: Any) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidProblem(f"{name}: {value!r}; expected an integer")
    return int(value)


def _size(name: str, value: Any) -> int:
    found = whole(name, value)
    if found < 0:
        raise InvalidProblem(f"{name}: {found}; expected at least 0")
    return found


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise InvalidProblem(f"{name}: {value!r}; expected a tuple of sizes")
    return tuple(_size(name, n) for n in value)


def _params(ndim: int) -> Callable[[str, Any], QuantizationParams]:
    def checked(name: str, value: Any) -> QuantizationParams:
        if not isinstance(value, QuantizationParams):
            raise InvalidProblem(f"{name}: {type(value).__name__}; expected QuantizationParams")
        return on_axis(value, ndim)

    return checked


def _given_params(name: str, value: Any) -> QuantizationParams | None:
    return None if value is None else _params(0)(name, value).for_compute(np.float32)


def _set_outcome(d: MatMulDescriptor | Conv2dDescriptor) -> None:
    _set(d, _given_params, "out_params")
    with contextlib.suppress(Unsupported):  # `select` says what is wrong with it
        _set(d, lambda _, dtype: cpu.float_dtype(dtype).name, "out_dtype")
    if d.clamp is not None:
        _set(d, bounds_of, "clamp")


def same_layer(layer: Any, kind: type[Any], d: LinearDescriptor) -> None:
    """Raises unless a layer, of the CPU or of a GPU, is what a plan was described for."""
    if not isinstance(layer, kind):
        raise InvalidProblem(f"layer: {type(layer).__name__}; expected a {kind.__name__}")
    for name in ("in_features", "out_features", "activation_dtype"):
        if getattr(layer, name) != getattr(d, name):
            raise InvalidProblem(f"layer: {name} {getattr(layer, name)!r}; expected {getattr(d, name)!r}")
    same_params("layer: weight", layer.params, d.weight, 2)
    for name in ("input_params", "out_params"):
        found = getattr(layer, name)
        same_params(f"layer: {name}", found and found.for_compute("float32"), getattr(d, name), 0)
