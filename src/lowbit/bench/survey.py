"""A small trained network quantized in every dtype and scheme: size, error, accuracy and speed of each.

Weights of two and more dimensions are quantized, each as a matrix with one row per output channel;
biases stay float32. Speed is measured on the weights tiled to a larger array, as the network fits in a cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowbit as lb
from lowbit import reference
from lowbit.data import digits_accuracy, load_digits_cnn
from lowbit.numerics.metrics import error_report

# 16 MiB of float32 in rows of 1024: larger than L2, and quick to repeat.
TIMED_ELEMENTS = 4 << 20
ROW = 1024


@dataclass(frozen=True)
class Setting:
    """One way to quantize; `widths` are a mixed dtype's bits, the first for the rows of largest range."""

    dtype: str
    scheme: str
    group_size: int | None = None
    widths: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        return f"mixed {'/'.join(map(str, self.widths))}" if self.widths else self.dtype

    @property
    def scheme_name(self) -> str:
        return self.scheme if self.group_size is None else f"{self.scheme} {self.group_size}"

    def quantize(self, matrix: NDArray[np.float32]) -> lb.QuantizedTensor:
        """The matrix in this setting, with parameters taken from its own values."""
        dtype = lb.QuantizedDType.mixed(_widths(matrix, self.widths)) if self.widths else self.dtype
        axis = {"channel_wise": 0, "block_wise": -1}.get(self.scheme)
        return lb.quantize(matrix, dtype, scheme=self.scheme, axis=axis, group_size=self.group_size)


_SCHEMES = {
    "int16": "symmetric",
    "uint16": "asymmetric",
    "int8": "linear symmetric asymmetric channel_wise block_wise logarithmic",
    "uint8": "linear channel_wise block_wise",
    "int4": "symmetric asymmetric channel_wise block_wise logarithmic",
    "uint4": "asymmetric channel_wise block_wise",
    "int2": "symmetric channel_wise block_wise",
    "uint2": "asymmetric channel_wise block_wise",
    "binary": "symmetric channel_wise block_wise",
}
_MIXED = {"int4": (8, 4), "int2": (8, 4, 2, 1)}  # mixed widths, listed before these dtypes


def _settings() -> Iterator[Setting]:
    for dtype, schemes in _SCHEMES.items():
        if dtype in _MIXED:
            yield Setting("mixed", "channel_wise", widths=_MIXED[dtype])
        for scheme in schemes.split():
            yield Setting(dtype, scheme, 32 if scheme == "block_wise" else None)


SETTINGS = tuple(_settings())


@dataclass(frozen=True)
class SurveyRow:
    """Size, error, accuracy and speed of one setting; the float32 baseline has no error and no speed."""

    dtype: str
    scheme: str
    nbytes: int
    bits_per_weight: float
    sqnr_db: float | None
    accuracy: float
    gb_per_s: float | None
    times_numpy: float | None
    exact: bool | None  # whether every code equals the NumPy reference's


def run_survey(
    settings: Sequence[Setting] = SETTINGS,
    *,
    elements: int = TIMED_ELEMENTS,
    progress: Callable[[str], None] | None = None,
) -> list[SurveyRow]:
    """The float32 baseline and one row per setting; `progress` gets the name of each setting before it runs.

    >>> baseline, row = run_survey([Setting("int8", "channel_wise")], elements=4096)
    >>> baseline.bits_per_weight, row.exact, row.accuracy > 0.97
    (32.0, True, True)
    """
    network = load_digits_cnn()
    weights = {name: array for name, array in network.items() if name.endswith("weight") and array.ndim >= 2}
    count = sum(array.size for array in weights.values())
    timed = _tiled(weights, elements)
    rows = [SurveyRow("float32", "", count * 4, 32.0, None, digits_accuracy(network), None, None, None)]
    for setting in settings:
        if progress is not None:
            progress(f"{setting.dtype_name} {setting.scheme_name}")
        quantized = {name: setting.quantize(array.reshape(len(array), -1)) for name, array in weights.items()}
        restored = {name: q.dequantize().reshape(weights[name].shape) for name, q in quantized.items()}
        nbytes = sum(q.nbytes for q in quantized.values())
        sqnr_db = error_report(_joined(weights), _joined(restored)).sqnr_db
        figures = nbytes * 8 / count, sqnr_db, digits_accuracy(network | restored)
        speed = _speed(setting, timed)
        rows.append(SurveyRow(setting.dtype_name, setting.scheme_name, nbytes, *figures, *speed))
    return rows


def _joined(weights: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.concatenate([array.ravel() for array in weights.values()])


def _tiled(weights: dict[str, NDArray[Any]], elements: int) -> NDArray[np.float32]:
    """All weights repeated, as rows of 1024."""
    return np.resize(_joined(weights), (max(1, elements // ROW), ROW))


def _widths(matrix: NDArray[np.float32], choices: tuple[int, ...]) -> list[int]:
    """Bits per row, in equal shares: rows with the largest range get the first choice."""
    order = np.argsort(-np.abs(matrix).max(axis=1), kind="stable")
    widths = np.empty(len(matrix), np.int64)
    for bits, rows in zip(choices, np.array_split(order, len(choices)), strict=True):
        widths[rows] = bits
    return [int(bits) for bits in widths]


def _speed(setting: Setting, x: NDArray[np.float32]) -> tuple[float, float, bool]:
    """(GB/s of float32 read, times the NumPy reference's speed, whether all codes agree)."""
    params = setting.quantize(x).params
    q, seconds = _best(lambda: lb.quantize(x, params=params), repeats=30)
    codes, numpy_seconds = _best(lambda: _numpy_codes(x, params), repeats=3)
    exact = bool(np.array_equal(q.unpack(), codes))
    return x.nbytes / seconds / 1e9, numpy_seconds / seconds, exact


def _numpy_codes(x: NDArray[np.float32], params: lb.QuantizationParams) -> NDArray[Any]:
    """The reference's codes. Mixed rows of one width are quantized together: a loop over rows would be slow."""
    if not params.dtype.is_mixed:
        return reference.quantize(x, params)
    codes = np.empty(x.shape, params.dtype.code_dtype)
    widths = np.array(params.dtype.widths)
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        dtype = params.dtype.channel(int(rows[0]))
        same = lb.QuantizationParams(dtype, "symmetric", params.scale[rows], axis=0)
        codes[rows] = reference.quantize(x[rows], same)
    return codes


def _best(work: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The result of `work` and its minimum time in seconds."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best
