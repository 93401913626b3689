"""The codes and scales that a weight may have, and weights as codes on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.numerics.dtypes import Array, DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime import arrays as cpu
from lowbit.runtime.solve import SCALE_DTYPES, Steps

_DTYPES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")


@dataclass(frozen=True)
class Grid:
    """The codes and scales that a matrix [outputs, inputs] may have.

    group_size: inputs that share a scale, of which the last group of a row may have fewer; None: one scale per output.
    scale_dtype: the type that holds the scales. bits: fewer than the dtype's, such as 3 of int4. full_range: False
    leaves out the least code of a symmetric grid, so that codes reach equally far to both sides. either_sign: symmetric
    scales may be negative, which takes zero points to store (see `mse`).

    >>> Grid("int4", group_size=32, bits=3).codes
    (-4, 3)
    """

    dtype: str = "int4"
    scheme: str = "symmetric"
    group_size: int | None = None
    scale_dtype: str = "float32"
    bits: int | None = None
    full_range: bool = True
    either_sign: bool = True

    @staticmethod
    def of(
        dtype: DTypeLike,
        scheme: str,
        group_size: int | None,
        scale_dtype: str = "float32",
        bits: int | None = None,
        full_range: bool = True,
    ) -> Grid:
        """A checked grid."""
        name = QuantizedDType.of(dtype).name
        for field, value, among in (
            ("dtype", name, _DTYPES),
            ("scheme", scheme, ("symmetric", "asymmetric")),
            ("scale_dtype", scale_dtype, tuple(SCALE_DTYPES)),
        ):
            if value not in among:
                raise InvalidProblem(f"{field}: {value!r}; expected {', '.join(among)}")
        width = QuantizedDType.of(name).bits
        for field, number, least, most in (("group_size", group_size, 1, 1 << 31), ("bits", bits, 2, width)):
            if number is not None and not (type(number) is int and least <= number <= most):
                raise InvalidProblem(f"{field}: {number!r}; expected an integer from {least} to {most}")
        if scheme == "symmetric" and not QuantizedDType.of(name).is_signed:
            raise InvalidProblem(f"scheme: symmetric; {name} has no negative codes, use asymmetric")
        return Grid(name, scheme, group_size, scale_dtype, bits, full_range)

    @property
    def symmetric(self) -> bool:
        return self.scheme == "symmetric"

    @property
    def offsets(self) -> int:
        """How many zero points are tried beside that of the range."""
        return 0 if self.symmetric and not (self.full_range and self.either_sign) else 1

    @property
    def width(self) -> int:
        """Bits per code."""
        return self.bits or QuantizedDType.of(self.dtype).bits

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the greatest code."""
        steps = 1 << self.width
        if not QuantizedDType.of(self.dtype).is_signed:
            return 0, steps - 1
        return (-steps // 2 + (self.symmetric and not self.full_range)), steps // 2 - 1

    def size(self, inputs: int) -> int:
        """The inputs of a group."""
        return max(1, inputs) if self.group_size is None else min(self.group_size, max(1, inputs))

    def group_of(self, inputs: int) -> Array:
        """The group of each input, int32."""
        found: Array = np.arange(inputs, dtype=np.int32) // np.int32(self.size(inputs))
        return found

    def steps(self, scale: Array, zero_point: Array, order: Array | None = None, *, inputs: int) -> Steps:
        """The grid of these scales for `feed_back_errors`; order: of the inputs."""
        qmin, qmax = self.codes
        low, high = (np.float32(q) - zero_point.astype(np.float32) for q in (qmin, qmax))
        group = self.group_of(inputs)
        return Steps(scale, low, high, group if order is None else np.ascontiguousarray(group[order]))

    def params(self, scale: Array, zero_point: Array) -> QuantizationParams:
        """Parameters with scales and zero points [outputs, groups]."""
        qmin, qmax = self.codes
        # A zero point of -1 in a symmetric grid is a negative scale: see `mse`.
        scheme = "symmetric" if self.symmetric and not zero_point.any() else "asymmetric"
        options: dict[str, Any] = {"axis": 0} if self.group_size is None else {"axis": 1, "group_size": self.group_size}
        if self.group_size is None:
            scale, zero_point = scale[:, 0], zero_point[:, 0]
        return QuantizationParams(self.dtype, scheme, scale, zero_point, qmin=qmin, qmax=qmax, **options)

    def tensor(self, steps: Array, scale: Array, zero_point: Array) -> QuantizedTensor:
        """The tensor of steps p [outputs, inputs] = codes - zero points."""
        spread = np.repeat(zero_point, self.size(steps.shape[1]), axis=1)[:, : steps.shape[1]]
        codes = steps.astype(np.int32) + spread
        return QuantizedTensor.from_codes(codes, self.params(scale, zero_point))


def matrix(weight: Any, name: str = "weight") -> Array:
    """A float32 copy of a matrix [outputs, inputs], C-contiguous; raises for other shapes and for NaN and Inf."""
    floats = cpu.as_float_array(weight, name)
    if len(floats.shape) != 2:
        raise InvalidProblem(f"{name}: shape {floats.shape}; expected a matrix [outputs, inputs]")
    if 0 in floats.shape:
        raise InvalidProblem(f"{name}: empty (shape {floats.shape}); there is nothing to quantize")
    cpu.refuse_nonfinite(floats, name, "weights must be finite")
    with np.errstate(over="ignore"):
        made = np.array(floats.widened(), np.float32, order="C")
    largest = float(np.abs(made).max())
    if not largest < 2.0**96:  # the squares of errors stay below the largest float32 with room for their sums
        raise InvalidProblem(f"{name}: magnitudes reach {largest:.4g}; expected less than 2^96")
    return made


def moments_of(values: Any, shape: tuple[int, ...], name: str, *, copied: bool = True) -> Array:
    """Second moments of this shape in float64; raises for others, NaN, Inf and negative squares. copied: in memory of
    their own."""
    try:
        found = np.array(values, np.float64, order="C") if copied else np.asarray(values, np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InvalidProblem(f"{name}: {error}; expected numbers") from None
    if found.shape != shape:
        raise InvalidProblem(f"{name}: shape {found.shape}; expected {shape}, as the weight has {shape[0]} inputs")
    squares = found if found.ndim == 1 else np.diagonal(found)
    if not np.isfinite(found).all() or (squares < 0).any():
        raise InvalidProblem(f"{name}: has NaN, Inf or a negative mean of squares; expected moments of finite rows")
    if found.ndim == 2 and not _is_symmetric(found):
        raise InvalidProblem(f"{name}: not symmetric; expected E[x x^T]")
    return found


def _is_symmetric(a: Array) -> bool:
    """Up to rounding; 256 rows at a time, without a copy."""
    most = 1e-5 * float(np.diagonal(a).max())
    return all((np.abs(a[i : i + 256] - a[:, i : i + 256].T) <= most).all() for i in range(0, len(a), 256))
