"""How a kernel passes over images: strides, padding, sizes and layouts, checked before any work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit.numerics.dtypes import is_integer
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

MAX_TAPS = 33024  # of a depthwise kernel whose sums always fit an int32


def require_layout(name: str, layout: str) -> None:
    if layout not in ("NCHW", "NHWC"):
        raise InvalidProblem(f"{name}: {layout!r}; expected 'NCHW' or 'NHWC'")


class ConvGeometry(NamedTuple):
    """How a kernel passes over an image."""

    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    groups: int
    layout: str

    @classmethod
    def of(cls, stride: Any, padding: Any, dilation: Any, groups: Any, layout: str) -> ConvGeometry:
        """Raises for whatever cannot be, naming the argument."""
        require_layout("layout", layout)
        sides = counts("padding", padding, 0, (2, 4))
        if not _is_count(groups) or groups < 1:
            raise InvalidProblem(f"groups: {groups!r}; expected at least 1")
        steps, gaps = counts("stride", stride, 1, (2,)), counts("dilation", dilation, 1, (2,))
        return cls(steps, sides if len(sides) == 4 else sides * 2, gaps, int(groups), layout)

    def output(self, image: tuple[int, ...], kernel: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the result, for an image of this height and width."""
        top, left, bottom, right = self.padding
        found = []
        for size, pads, k, s, d in zip(
            image, (top + bottom, left + right), kernel, self.stride, self.dilation, strict=True
        ):
            reach = d * (k - 1) + 1
            if k < 1 or size + pads < reach:
                raise InvalidProblem(
                    f"x: {image[0]} by {image[1]} with padding {self.padding} is smaller than the kernel, "
                    f"{kernel[0]} by {kernel[1]} with dilation {self.dilation}"
                )
            found.append((size + pads - reach) // s + 1)
        return found[0], found[1]

    def nhwc(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """The sizes of images in this layout, channels last."""
        n, *rest = shape
        height, width, channels = rest if self.layout == "NHWC" else (*rest[1:], rest[0])
        return n, height, width, channels

    def output_nhwc(self, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, int, int, int]:
        """The shape of the result for x and w of these shapes, channels last."""
        return x[0], *self.output(self.nhwc(x)[1:3], (w[2], w[3])), w[0]

    def output_shape(
        self, x: tuple[int, ...], w: tuple[int, ...], layout: str | None = None
    ) -> tuple[int, int, int, int]:
        """The same in `layout`, or in the images' own."""
        n, height, width, channels = self.output_nhwc(x, w)
        last = (layout or self.layout) == "NHWC"
        return (n, height, width, channels) if last else (n, channels, height, width)


def is_depthwise(w: tuple[int, ...], groups: int) -> bool:
    """Whether each channel has one filter of its own, and few enough taps for the kernels that serve just that."""
    out, per_group, kh, kw = w
    return per_group == 1 and out == groups and out > 0 and 0 < kh * kw <= MAX_TAPS


def check_kernel_shape(shape: tuple[int, ...], groups: Any) -> None:
    if len(shape) != 4:
        raise InvalidProblem(f"w: shape {shape}; expected (out, in / groups, height, width)")
    if not _is_count(groups) or groups < 1 or shape[0] % groups:
        raise InvalidProblem(f"groups: {groups!r}; expected a divisor of w's {shape[0]} outputs")


def check_shapes(x: tuple[int, ...], w: tuple[int, ...], g: ConvGeometry) -> None:
    if len(x) != 4:
        raise InvalidProblem(f"x: shape {x}; expected four dimensions, {g.layout}")
    check_kernel_shape(w, g.groups)
    channels = g.nhwc(x)[3]
    if channels != w[1] * g.groups:
        raise InvalidProblem(f"x: {channels} channels; w has {w[1]} in each of {g.groups} groups")


def to_nhwc(x: Array, g: ConvGeometry) -> Array:
    """Images as the kernels read them, contiguous."""
    if g.layout == "NHWC":
        return np.ascontiguousarray(x)
    n, c, h, w = x.shape
    turned = np.empty((n, h, w, c), x.dtype)
    core.transpose(np.ascontiguousarray(x).reshape(n, c, h * w), turned)
    return turned


def from_nhwc(y: Array, g: ConvGeometry, out: Array | None = None) -> Array:
    """Images of the kernels' order in g's layout, in `out` where that is another one and it is given."""
    if g.layout == "NHWC":
        return y
    n, h, w, c = y.shape
    turned = np.empty((n, c, h, w), y.dtype) if out is None else out
    bits = np.dtype(f"u{y.itemsize}")  # bfloat16 lends no buffer
    core.transpose(y.view(bits).reshape(n, h * w, c), turned.view(bits))
    return turned


def _is_count(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, np.generic) and is_integer(value.dtype))


def counts(name: str, value: Any, least: int, lengths: tuple[int, ...]) -> tuple[Any, ...]:
    """One number twice, or a tuple of one of these lengths; none below `least`."""
    given = (value, value) if _is_count(value) else value
    if not isinstance(given, tuple | list) or len(given) not in lengths or not all(map(_is_count, given)):
        expected = " or ".join(map(str, lengths))
        raise InvalidProblem(f"{name}: {value!r}; expected an integer, or {expected} of them")
    if min(given) < least:
        raise InvalidProblem(f"{name}: {value!r}; expected at least {least}")
    return tuple(int(v) for v in given)
