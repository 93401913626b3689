"""What a layer's weights are multiplied with, as rows: those of a matrix product, and the patches of a convolution.

    y[t, o] = sum over i of rows[t, i] * weight[o, i]

Of a grouped layer rows are [t, g, i], and each group has outputs of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats.onnx.weight_uses import WeightUse, attribute

Array = npt.NDArray[Any]

_NBYTES = 32 << 20  # of the patches that are made at once
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly


@dataclass(frozen=True)
class Product:
    """The rows of a matrix product x w, where w may be a stack of matrices [*stack, inputs, outputs]."""

    width: int
    stack: tuple[int, ...] = ()
    is_turned: bool = False  # x is [inputs, rows]

    @property
    def groups(self) -> int:
        return math.prod(self.stack)

    def rows(self, x: Array) -> Iterator[Array]:
        """Blocks of [rows, inputs], or of [rows, groups, inputs] for a stack."""
        x = x.T if self.is_turned else np.atleast_2d(x)
        if self.groups == 1:
            yield x.reshape(-1, self.width)
            return
        lead = np.broadcast_shapes(x.shape[:-2], self.stack)
        wide = np.broadcast_to(x, (*lead, *x.shape[-2:]))
        sizes = (1,) * (len(lead) - len(self.stack)) + self.stack  # an axis of size 1 is one matrix for many
        within = [i for i, size in enumerate(sizes) if size > 1]
        others = [i for i in range(wide.ndim - 1) if i not in within]
        yield wide.transpose(*others, *within, wide.ndim - 1).reshape(-1, self.groups, self.width)


@dataclass(frozen=True)
class Patches:
    """The patches of a convolution: for each of its outputs, the inputs that a filter is multiplied with, in the order
    of the filter [inputs / groups, *kernel]. positions: how many outputs of an image or sequence at most; the same ones
    for all of a size, spread evenly."""

    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]  # before each axis, then behind each
    auto_pad: str
    groups: int
    positions: int

    @property
    def width(self) -> int:
        return self.channels // self.groups * math.prod(self.kernel)

    def rows(self, x: Array) -> Iterator[Array]:
        """Blocks of [rows, inputs of a filter], or of [rows, groups, inputs of a filter]."""
        before, behind = self._padding(x.shape[2:])
        reach = self._reach()
        sizes = [n + a + b - r for n, a, b, r in zip(x.shape[2:], before, behind, reach, strict=True)]
        outputs = tuple((size - 1) // s + 1 for size, s in zip(sizes, self.strides, strict=True))
        if min(outputs) < 1 or not len(x):
            return
        taken = self._positions(outputs)
        at_once = max(1, _NBYTES // (len(taken[0]) * self.groups * self.width * x.itemsize))
        axes = tuple(range(2, x.ndim))
        steps = tuple(slice(None, None, d) for d in self.dilations)
        starts = tuple(at * s for at, s in zip(taken, self.strides, strict=True))
        index: Any = (slice(None), slice(None), *starts, *steps)
        for first in range(0, len(x), at_once):
            part = np.pad(x[first : first + at_once], ((0, 0), (0, 0), *zip(before, behind, strict=True)))
            windows = np.lib.stride_tricks.sliding_window_view(part, [r + 1 for r in reach], axis=axes)
            found = windows[index]  # [images, channels, positions, *kernel]
            rows = np.moveaxis(found, 2, 1)
            yield rows.reshape(-1, self.width) if self.groups == 1 else rows.reshape(-1, self.groups, self.width)

    def _reach(self) -> tuple[int, ...]:
        """From the first element of a patch to its last, along each axis."""
        return tuple((k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True))

    def _padding(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Zeros before and behind each axis."""
        count = len(self.kernel)
        if self.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            pads = self.pads if self.auto_pad == "NOTSET" else (0,) * (2 * count)
            return pads[:count], pads[count:]
        whole = [
            max(0, (-(-n // s) - 1) * s + r + 1 - n) for n, s, r in zip(sizes, self.strides, self._reach(), strict=True)
        ]
        smaller, larger = tuple(n // 2 for n in whole), tuple(n - n // 2 for n in whole)
        return (smaller, larger) if self.auto_pad == "SAME_UPPER" else (larger, smaller)

    def _positions(self, outputs: tuple[int, ...]) -> tuple[Array, ...]:
        """Indices along each axis of the outputs whose patches are taken."""
        count = math.prod(outputs)
        flat = np.arange(count)
        if count > self.positions:  # no stride, which would meet the same columns again and again
            flat = np.sort(np.argsort(flat * _GOLDEN % 1, kind="stable")[: self.positions])
        return np.unravel_index(flat, outputs)


def operand(use: WeightUse, positions: int) -> Product | Patches | str:
    """How rows are taken from the first input of the node, for the weights that this use multiplies with; or why there
    are none. Rows fit the weight as a matrix whose rows are its outputs: of a stack, those of each matrix in turn."""
    node, shape = use.node, use.shape
    if use.kind == "linear" and use.input_index == 1:
        is_gemm = use.op == "Gemm"
        width = shape[1 - use.channel_axis] if len(shape) == 2 else shape[-2]
        return Product(width, shape[:-2], is_gemm and bool(attribute(node, "transA", 0)))
    if use.op == "Conv":
        count, groups = len(shape) - 2, attribute(node, "group", 1)
        ones = (1,) * count
        strides, dilations = (tuple(attribute(node, name, ones)) for name in ("strides", "dilations"))
        pads, auto_pad = tuple(attribute(node, "pads", (0,) * (2 * count))), attribute(node, "auto_pad", b"NOTSET")
        auto_pad = auto_pad.decode() or "NOTSET"
        return Patches(shape[1] * groups, shape[2:], strides, dilations, pads, auto_pad, groups, positions)
    if use.kind == "recurrent" and use.input_index == 1:
        return Product(shape[2])
    why = {"embedding": "rows are looked up, not multiplied", "recurrent": "multiplied with the state of each step"}
    return why.get(use.kind, f"no statistics for {use.op}")
