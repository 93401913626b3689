"""Workloads to tune: a matrix product, a convolution or an element-wise operation, with requirements."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.ops.conv import ConvGeometry

_ELEMENTWISE = ("add", "mul", "relu")


@dataclass(frozen=True)
class PerformanceRequirements:
    """Bounds that a setting must meet."""

    max_latency: float | None = None  # seconds
    min_throughput: float | None = None  # operations per second; a multiply-add is two
    memory_budget: int | None = None  # bytes of packed weights
    min_sqnr_db: float | None = None
    min_cosine: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
                raise InvalidProblem(f"{name}: {value!r}; expected a finite number")
            if value is not None and name != "min_sqnr_db" and value < 0:
                raise InvalidProblem(f"{name}: {value!r}; expected at least 0")


@dataclass(frozen=True)
class AutoTuningConfig:
    """Options of a search."""

    enabled: bool = True  # False: float32 stays, and nothing is measured
    iterations: int = 1000  # maximum number of rounds
    accuracy_threshold: float = 0.9  # minimum cosine similarity to the float result
    max_search_time: float = 5.0  # seconds per workload
    min_improvement: float = 1.05  # minimum speed-up over float32

    def __post_init__(self) -> None:
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise InvalidProblem(f"iterations: {self.iterations!r}; expected at least 1")
        if not -1 <= self.accuracy_threshold <= 1:
            raise InvalidProblem(f"accuracy_threshold: {self.accuracy_threshold!r}; expected a cosine, -1 to 1")
        if not self.max_search_time > 0:
            raise InvalidProblem(f"max_search_time: {self.max_search_time!r}; expected more than 0 seconds")
        if not self.min_improvement > 0:
            raise InvalidProblem(f"min_improvement: {self.min_improvement!r}; expected more than 0")


@dataclass(frozen=True, eq=False)
class QuantizationWorkload:
    """A workload, made by `matmul`, `conv2d`, `elementwise` or `parse`.

    x and weight: data to measure errors on; without them, normal numbers.

    >>> QuantizationWorkload.matmul(8, 64, 32)
    QuantizationWorkload(matmul 8x64x32)
    >>> QuantizationWorkload.parse("conv2d", "1x3x32x32,8x3x3x3,stride=2,padding=1").operations
    110592
    """

    kind: str
    shape: tuple[int, ...]  # matmul: m, n, k; conv2d: of x; elementwise: of both sides
    kernel: tuple[int, ...] = ()
    geometry: ConvGeometry | None = None
    op: str = ""
    x: Array | None = field(default=None, repr=False)
    weight: Array | None = field(default=None, repr=False)

    @classmethod
    def matmul(cls, m: int, n: int, k: int, *, x: Any = None, weight: Any = None) -> QuantizationWorkload:
        """x [m, k] by weight [n, k] transposed, as in a linear layer."""
        for name, size in (("m", m), ("n", n), ("k", k)):
            _positive(name, size)
        return cls("matmul", (m, n, k), x=_sample("x", x, (m, k)), weight=_sample("weight", weight, (n, k)))

    @classmethod
    def conv2d(
        cls,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCHW",
        x: Any = None,
        weight: Any = None,
    ) -> QuantizationWorkload:
        """Images x by kernels [out, in / groups, height, width]."""
        g = ConvGeometry.of(stride, padding, dilation, groups, layout)
        for name, shape in (("x_shape", x_shape), ("w_shape", w_shape)):
            if len(shape) != 4:
                raise InvalidProblem(f"{name}: {shape}; expected four sizes")
            _positive(name, *shape)
        channels = x_shape[1] if layout == "NCHW" else x_shape[3]
        if channels != w_shape[1] * g.groups or w_shape[0] % g.groups:
            raise InvalidProblem(f"w_shape: {w_shape} in {g.groups} groups does not fit {channels} channels")
        image = (x_shape[2], x_shape[3]) if layout == "NCHW" else (x_shape[1], x_shape[2])
        g.output(image, (w_shape[2], w_shape[3]))
        shapes = tuple(x_shape), tuple(w_shape)
        return cls("conv2d", *shapes, g, x=_sample("x", x, shapes[0]), weight=_sample("weight", weight, shapes[1]))

    @classmethod
    def elementwise(cls, op: str, shape: tuple[int, ...], *, x: Any = None) -> QuantizationWorkload:
        """add, mul or relu on arrays of this shape."""
        if op not in _ELEMENTWISE:
            raise InvalidProblem(f"op: {op!r}; expected one of {', '.join(_ELEMENTWISE)}")
        _positive("shape", *shape)
        return cls("elementwise", tuple(shape), op=op, x=_sample("x", x, tuple(shape)))

    @classmethod
    def parse(cls, kind: str, text: str) -> QuantizationWorkload:
        """Parse matmul "128x768x768"; conv2d "1x64x56x56,64x64x3x3,stride=1,padding=1"; add "1024x1024"."""
        sizes: list[tuple[int, ...]] = []
        options: dict[str, Any] = {}
        for part in text.split(","):
            if re.fullmatch(r"\d+(x\d+)*", part):
                sizes.append(tuple(int(n) for n in part.split("x")))
            elif re.fullmatch(r"(stride|padding|dilation|groups)=\d+", part):
                name, _, value = part.partition("=")
                options[name] = int(value)
            else:
                raise InvalidProblem(f"{kind}: {part!r} in {text!r}; expected sizes such as 128x768x768")
        if kind == "matmul" and len(sizes) == 1 and len(sizes[0]) == 3 and not options:
            return cls.matmul(*sizes[0])
        if kind == "conv2d" and len(sizes) == 2:
            return cls.conv2d(sizes[0], sizes[1], **options)
        if kind in _ELEMENTWISE and len(sizes) == 1 and not options:
            return cls.elementwise(kind, sizes[0])
        raise InvalidProblem(f"{kind}: {text!r}; expected MxNxK, or for conv2d NxCxHxW,OxIxHxW and its options")

    @property
    def operations(self) -> int:
        """The number of multiplications and additions."""
        if self.kind == "matmul":
            return 2 * math.prod(self.shape)
        if self.kind == "elementwise":
            return math.prod(self.shape)
        return 2 * math.prod(self.output_shape) * math.prod(self.kernel[1:])

    @property
    def output_shape(self) -> tuple[int, ...]:
        if self.kind == "matmul":
            return self.shape[:2]
        if self.kind == "elementwise":
            return self.shape
        assert self.geometry is not None
        return self.geometry.output_shape(self.shape, self.kernel)

    @property
    def is_sampled(self) -> bool:
        """Whether the workload has data."""
        return self.x is not None or self.weight is not None

    def data(self) -> tuple[Array, Array | None]:
        """x and weight: the data given, or reproducible normal numbers."""
        rng = np.random.default_rng(0)
        x_shape = (self.shape[0], self.shape[2]) if self.kind == "matmul" else self.shape
        x = rng.standard_normal(x_shape, np.float32) if self.x is None else self.x
        if self.kind == "elementwise":
            return x, rng.standard_normal(x_shape, np.float32)
        w_shape = self.shape[1:] if self.kind == "matmul" else self.kernel
        return x, rng.standard_normal(w_shape, np.float32) if self.weight is None else self.weight

    @property
    def key(self) -> str:
        """A key that is equal for equal work on equal data."""
        text = f"{self!r}"
        for name, a in (("x", self.x), ("weight", self.weight)):
            if a is not None:
                text += f"|{name}:{hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:16]}"
        return text

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        if self.kind == "conv2d":
            assert self.geometry is not None
            g = self.geometry
            kernel = "x".join(map(str, self.kernel))
            sizes += f" by {kernel}, stride={g.stride}, padding={g.padding}, dilation={g.dilation}, groups={g.groups}"
            sizes += f", {g.layout}"
        return f"QuantizationWorkload({self.op or self.kind} {sizes})"


def _positive(name: str, *sizes: Any) -> None:
    for size in sizes:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise InvalidProblem(f"{name}: {size!r}; expected a positive integer")


def _sample(name: str, value: Any, shape: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    a = np.ascontiguousarray(value, np.float32)
    if a.shape != shape:
        raise InvalidProblem(f"{name}: shape {a.shape}; expected {shape}")
    if not np.isfinite(a).all():
        raise InvalidProblem(f"{name}: not finite")
    return a
