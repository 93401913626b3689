"""Problems of integer compute, and what their plans are run on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.ops.conv import ConvGeometry
from lowbit.ops.epilogue import EpilogueOptions
from lowbit.plans.descriptors import whole
from lowbit.plans.kinds import ElementKind, kind_of
from lowbit.plans.operands import on_axis, same_params
from lowbit.runtime import arrays as cpu


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
        for name in ("m", "n", "k"):
            _set(self, name, _size(name, getattr(self, name)))
        for name in ("a", "b"):
            _set(self, name, _params(name, getattr(self, name), 2))
        _outcome(self)


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
        for name in ("x_shape", "w_shape"):
            _set(self, name, _shape(name, getattr(self, name)))
        for name in ("x", "w"):
            _set(self, name, _params(name, getattr(self, name), 4))
        for name, value in self.geometry._asdict().items():
            _set(self, name, value)
        _outcome(self)

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
        for name in ("rows", "in_features", "out_features"):
            _set(self, name, _size(name, getattr(self, name)))
        _set(self, "weight", _params("weight", self.weight, 2))
        for name in ("input_params", "out_params"):
            if getattr(self, name) is not None:
                _set(self, name, _params(name, getattr(self, name), 0).for_compute(np.float32))
        _set(self, "input_element", kind_of("input_element", self.input_element))


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
    """The descriptor's options of the epilogue."""
    return {"out_params": d.out_params, "out_dtype": d.out_dtype, "activation": d.activation, "clamp": d.clamp}


def _set(descriptor: Any, name: str, value: Any) -> None:
    object.__setattr__(descriptor, name, value)


def _size(name: str, value: Any) -> int:
    found = whole(name, value)
    if found < 0:
        raise InvalidProblem(f"{name}: {found}; expected at least 0")
    return found


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise InvalidProblem(f"{name}: {value!r}; expected a tuple of sizes")
    return tuple(_size(name, n) for n in value)


def _params(name: str, value: Any, ndim: int) -> QuantizationParams:
    if not isinstance(value, QuantizationParams):
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected QuantizationParams")
    return on_axis(value, ndim)


def _outcome(d: MatMulDescriptor | Conv2dDescriptor) -> None:
    if d.out_params is not None:
        _set(d, "out_params", _params("out_params", d.out_params, 0).for_compute(np.float32))
    with contextlib.suppress(Unsupported):  # `select` says what is wrong with it
        _set(d, "out_dtype", cpu.float_dtype(d.out_dtype).name)
    if d.clamp is not None:
        try:
            least, most = (float(v) for v in d.clamp)
        except (TypeError, ValueError):
            raise InvalidProblem(f"clamp: {d.clamp!r}; expected two numbers, least and greatest") from None
        _set(d, "clamp", (least, most))


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
