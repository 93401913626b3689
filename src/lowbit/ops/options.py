"""The keyword options that every backend's `qmatmul` and `qconv2d` take, as types."""

from __future__ import annotations

from typing import Any, TypedDict

from lowbit.numerics.params import QuantizationParams


class EpilogueOptions(TypedDict, total=False):
    """What follows the accumulation: floats of `out_dtype`, or codes of `out_params`, after the activation."""

    out_params: QuantizationParams | None
    out_dtype: Any
    activation: str | None
    clamp: tuple[float, float] | None


class MatMulOptions(EpilogueOptions, total=False):
    bias: Any


class ConvOptions(EpilogueOptions, total=False):
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    layout: str
