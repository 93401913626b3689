"""Problems of integer compute with data, and the answers that every contender is checked against.

Activations have 7 of uint8's 8 bits. CPUs without VNNI add two products of uint8 and int8 in 16 bits, where fbgemm and
ONNX Runtime saturate; with 7 bits they cannot, and their answers are as exact as lowbit's, which does not saturate
in any case. How long it takes does not depend on the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.shapes import aligned, normal
from lowbit.reference import compute as reference

Array = npt.NDArray[Any]

A_BITS, A_SCALE, A_ZERO = 7, 0.02, 64
OUT_ZERO = 128
_SPREAD = 40  # standard deviation of the outputs in codes: few are clipped


@dataclass(frozen=True)
class Sizes:
    """m rows of k by n columns."""

    m: int
    k: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.m}×{self.k}×{self.n}"

    @property
    def operations(self) -> int:
        return 2 * self.m * self.k * self.n


@dataclass(frozen=True)
class Product(Sizes):
    """uint8 codes a [m, k] by int8 codes w [k, n] with one scale per column; to int32, or requantized to uint8."""

    @cached_property
    def a(self) -> Array:
        return _codes((self.m, self.k), np.uint8, 0, (1 << A_BITS) - 1)

    @cached_property
    def w(self) -> Array:
        return _codes((self.k, self.n), np.int8, -127, 127)

    @cached_property
    def w_scale(self) -> Array:
        return _scales(self.n)

    @cached_property
    def out_scale(self) -> float:
        return _out_scale(self.a, self.w, self.k, self.w_scale)

    @cached_property
    def sums(self) -> Array:
        """Sum over k of (a - A_ZERO) * w. Exact: float64 holds every sum."""
        return np.matmul(self.a.astype(np.float64) - A_ZERO, self.w.astype(np.float64)).astype(np.int32)

    @cached_property
    def codes(self) -> Array:
        return reference.requantize(self.sums, A_SCALE, self.w_scale, self.out_scale, OUT_ZERO, 0, 255)

    @property
    def numbers(self) -> tuple[Array, Array]:
        """What a and w stand for, in float32."""
        return (self.a.astype(np.float32) - A_ZERO) * np.float32(A_SCALE), self.w * self.w_scale

    def to_codes(self, y: Array) -> Array:
        """Of a float answer, so that all answers of a case are of one kind."""
        return _to_codes(y, self.out_scale)

    def sums_to_codes(self, sums: Array) -> Array:
        """Of an integer answer; one that is not exact gives no codes."""
        if not np.array_equal(sums, self.sums):
            raise ArithmeticError(f"its sums are {np.abs(sums.astype(np.int64) - self.sums).max()} off")
        return self.codes


class SmallWeights(Product):
    """The same with weights of 6 bits."""

    @cached_property
    def w(self) -> Array:
        return _codes((self.k, self.n), np.int8, -32, 31)


@dataclass(frozen=True)
class Layer(Sizes):
    """y = x w^T in float32, x [m, k], w [n, k]: what a linear layer is asked for, whatever it does inside."""

    @cached_property
    def x(self) -> Array:
        return normal((self.m, self.k))

    @cached_property
    def w(self) -> Array:
        return _weights(self.n, self.k)

    @cached_property
    def w_scale(self) -> Array:
        return np.abs(self.w).max(1) / np.float32(127)

    @cached_property
    def w_codes(self) -> Array:
        return np.rint(self.w / self.w_scale[:, None]).astype(np.int8)

    @cached_property
    def y(self) -> Array:
        return self.x @ self.w.T

    @property
    def tolerance(self) -> float:
        """Rounded to 7 and 8 bits, both sides make it about 2 % of a standard deviation; the worst of millions 11 %."""
        return 0.2 * float(self.y.std())


@dataclass(frozen=True)
class Groups(Layer):
    """A layer whose weights are int4 codes in groups along k. Every group has a -8 and no other code as large, which
    is where ONNX Runtime's quantizer gets its scale from: it finds these very codes, and all contenders have the
    same bits."""

    block: int = 128

    @property
    def groups(self) -> int:
        return self.k // self.block

    @cached_property
    def w_codes(self) -> Array:
        codes = np.random.default_rng(1).integers(-7, 8, (self.n, self.groups, self.block), np.int8)
        codes[..., 3] = -8
        return codes.reshape(self.n, self.k)

    @cached_property
    def w_scale(self) -> Array:
        return _scales(self.n * self.groups).reshape(self.n, self.groups)

    @cached_property
    def w(self) -> Array:
        return self.w_codes * np.repeat(self.w_scale, self.block, axis=1)

    @cached_property
    def tensor(self) -> lb.QuantizedTensor:
        params = lb.QuantizationParams("int4", scale=self.w_scale, axis=1, group_size=self.block)
        return lb.quantize(self.w, params=params)


@dataclass(frozen=True)
class Convolution:
    """uint8 codes x [1, channels, size, size] by int8 codes w [out, channels / groups, kernel, kernel]."""

    channels: int
    out: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def name(self) -> str:
        kind = "depthwise " if self.groups == self.channels else f"{self.channels}→"
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        return f"{kind}{self.out}, {self.size}×{self.size}, {self.kernel}×{self.kernel}{stride}"

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def window(self) -> int:
        """Products in a sum."""
        return self.channels // self.groups * self.kernel**2

    @property
    def operations(self) -> int:
        return 2 * self.out * self.out_size**2 * self.window

    @cached_property
    def x(self) -> Array:
        return _codes((1, self.channels, self.size, self.size), np.uint8, 0, (1 << A_BITS) - 1)

    @cached_property
    def w(self) -> Array:
        return _codes((self.out, self.channels // self.groups, self.kernel, self.kernel), np.int8, -127, 127)

    @cached_property
    def w_scale(self) -> Array:
        return _scales(self.out)

    @cached_property
    def out_scale(self) -> float:
        return _out_scale(self.x, self.w, self.window, self.w_scale)

    @cached_property
    def codes(self) -> Array:
        """[1, out, out_size, out_size]"""
        sums = reference.conv2d_integer(
            self.x, self.w, A_ZERO, 0, (self.stride,) * 2, (self.padding,) * 4, groups=self.groups
        )
        by_channel = np.moveaxis(sums, 1, -1)
        codes = reference.requantize(by_channel, A_SCALE, self.w_scale, self.out_scale, OUT_ZERO, 0, 255)
        return np.moveaxis(codes, -1, 1)

    def to_codes(self, y: Array) -> Array:
        return _to_codes(y, self.out_scale)


def _to_codes(y: Array, scale: float) -> Array:
    return np.clip(np.rint(y / np.float32(scale)) + OUT_ZERO, 0, 255).astype(np.int32)


def _codes(shape: tuple[int, ...], dtype: npt.DTypeLike, least: int, greatest: int) -> Array:
    codes = aligned(shape, dtype)
    codes[...] = np.random.default_rng(greatest).integers(least, greatest, shape, codes.dtype, endpoint=True)
    return codes


@lru_cache(maxsize=1)  # the next problem often has the same
def _weights(n: int, k: int) -> Array:
    w = aligned((n, k), np.float32)
    w[...] = 0.02 * np.random.default_rng(1).standard_normal(w.shape, np.float32)
    return w


def _scales(count: int) -> Array:
    return np.random.default_rng(2).uniform(0.005, 0.015, count).astype(np.float32)


def _out_scale(a: Array, w: Array, terms: int, w_scale: Array) -> float:
    deviation = float(np.sqrt(terms) * (a.astype(np.float32) - A_ZERO).std() * w.astype(np.float32).std())
    return float(np.float32(deviation * A_SCALE * float(w_scale.mean()) / _SPREAD))
