"""The candidates of a search, all of which are correct, and their float baselines."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lowbit.bench.timing import Within
from lowbit.layers import QuantizedConv2d, QuantizedLinear
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.ops.elementwise import qadd, qmul, qrelu
from lowbit.ops.quantize import quantize
from lowbit.runtime.threads import threads_set_to
from lowbit.tuning.workload import QuantizationWorkload

_GROUPS = (32, 128)
_DTYPES = ("int8", "uint8", "int4", "int2")
_ACTIVATIONS = ("int8", "uint8", "float", "")


@dataclass(frozen=True)
class Candidate:
    """One setting: dtype and scheme of the weights, dtype of activations, threads."""

    dtype: str
    scheme: str = "symmetric"
    group_size: int | None = None
    activation_dtype: str = "int8"
    threads: int = 1

    def __post_init__(self) -> None:
        known = (
            self.dtype in _DTYPES
            and self.scheme in ("symmetric", "asymmetric")
            and self.activation_dtype in _ACTIVATIONS
            and self.group_size in (None, *_GROUPS, 16, 64, 256)
            and isinstance(self.threads, int)
            and 1 <= self.threads <= 4096
        )
        if not known:
            raise InvalidProblem(f"candidate: {asdict(self)}; no such setting")

    @property
    def name(self) -> str:
        block = "" if self.group_size is None else f" g{self.group_size}"
        by = f", {self.activation_dtype} activations" if self.activation_dtype else ""
        return f"{self.dtype}{block} {self.scheme}{by}, {self.threads} thread{'s' * (self.threads > 1)}"

    def layer(self, weight: Any, bias: Any = None, workload: QuantizationWorkload | None = None) -> Any:
        """A QuantizedLinear for weights [n, k], or a QuantizedConv2d for weights of four dimensions."""
        if np.ndim(weight) == 4:
            g = None if workload is None else workload.geometry
            geometry = {} if g is None else g._asdict()
            return QuantizedConv2d(weight, bias, dtype=self.dtype, scheme=self.scheme, **geometry)
        options = asdict(self)
        del options["threads"]
        return QuantizedLinear(weight, bias, **options)


@dataclass(frozen=True)
class Work:
    """A call, the bytes of its weights, and what makes floats of its result."""

    run: Callable[[], Any]
    nbytes: int
    as_floats: Callable[[Any], Array] = np.asarray

    def result(self) -> Array:
        return np.asarray(self.as_floats(self.run()), np.float32)

    def with_threads(self, count: int) -> Work:
        """The same work with another number of threads."""
        call = self.run.call if isinstance(self.run, Within) else self.run
        return replace(self, run=Within(call, lambda: threads_set_to(count)))


def candidates_for(workload: QuantizationWorkload, threads: int) -> Iterator[Candidate]:
    """Every candidate, likely winners first; each with all threads and with one."""
    for setting in _settings(workload):
        for count in sorted({1, threads}, reverse=True):
            yield replace(setting, threads=count)


def _settings(workload: QuantizationWorkload) -> Iterator[Candidate]:
    if workload.kind == "matmul":
        k = workload.shape[2]
        groups = [size for size in _GROUPS if size <= k]
        yield Candidate("int8")
        yield from (Candidate("int4", group_size=size) for size in groups)
        yield Candidate("int8", activation_dtype="uint8")
        yield from (Candidate("int4", scheme="asymmetric", group_size=size) for size in groups)
        yield Candidate("int8", activation_dtype="float")
        if groups:
            yield Candidate("int4", group_size=_GROUPS[0], activation_dtype="float")
            yield Candidate("int2", group_size=_GROUPS[0])
    elif workload.kind == "conv2d":
        yield Candidate("int8")
        yield Candidate("int8", scheme="asymmetric")
    else:
        yield Candidate("int8", activation_dtype="")
        yield Candidate("uint8", scheme="asymmetric", activation_dtype="")


def build(workload: QuantizationWorkload, candidate: Candidate, data: tuple[Array, Array | None]) -> Work:
    """The candidate's work on the data."""
    x, other = data
    if workload.kind == "elementwise":
        work = _elementwise(workload, candidate, x, other)
    else:
        layer = candidate.layer(other, workload=workload)
        work = Work(partial(layer, x), layer.nbytes)
    return work.with_threads(candidate.threads)


def _elementwise(workload: QuantizationWorkload, candidate: Candidate, x: Array, y: Array | None) -> Work:
    a, b = (quantize(v, candidate.dtype, scheme=candidate.scheme) for v in (x, y))
    exact = _FLOAT[workload.op](x, y)
    out = QuantizationParams.from_statistics(exact.min(), exact.max(), dtype=candidate.dtype, scheme=candidate.scheme)
    run: dict[str, Callable[[Any], Any]] = {
        "add": lambda to: qadd(a, b, out_params=out, out=to),
        "mul": lambda to: qmul(a, b, out_params=out, out=to),
        "relu": lambda to: qrelu(a, out=to),
    }
    room = run[workload.op](None)  # reused by all calls, here and below: allocating may cost more than the work
    return Work(partial(run[workload.op], room), a.nbytes, lambda q: q.dequantize())


_FLOAT: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "relu": lambda x, _, out=None: np.maximum(x, 0, out=out),
}


def float_work(workload: QuantizationWorkload, data: tuple[Array, Array | None]) -> dict[str, Work]:
    """The float32 baselines: NumPy, NumPy with one BLAS thread where threadpoolctl is installed (spinning threads are
    slow on a busy machine), and torch if it was imported."""
    x, w = data
    nbytes = 0 if w is None or workload.kind == "elementwise" else w.nbytes
    if workload.kind == "matmul":
        assert w is not None
        turned = w.T
        found: dict[str, Callable[[], Any]] = {"NumPy": lambda: x @ turned}
    elif workload.kind == "elementwise":
        room = np.empty_like(x)
        found = {"NumPy": lambda: _FLOAT[workload.op](x, w, out=room)}
    else:
        found = {"NumPy": lambda: _convolved(x, w, workload)}
    if workload.kind != "elementwise" and importlib.util.find_spec("threadpoolctl") is not None:
        pools = importlib.import_module("threadpoolctl").ThreadpoolController()
        found["NumPy, 1 thread"] = Within(found["NumPy"], lambda: pools.limit(limits=1, user_api="blas"))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = _torch_call(torch, workload, x, w)
    return {name: Work(call, nbytes) for name, call in found.items()}


def _torch_call(torch: Any, workload: QuantizationWorkload, x: Array, w: Array | None) -> Callable[[], Any]:
    a: Any = torch.from_numpy(x)
    b: Any = None if w is None else torch.from_numpy(w)
    if workload.kind == "matmul":
        linear = torch.nn.functional.linear
        return lambda: linear(a, b)
    if workload.kind == "elementwise":
        return {"add": lambda: a + b, "mul": lambda: a * b, "relu": lambda: torch.relu(a)}[workload.op]
    g = workload.geometry
    assert g is not None
    top, left, bottom, right = g.padding
    conv, pad = torch.nn.functional.conv2d, torch.nn.functional.pad
    nhwc = g.layout == "NHWC"
    image = a.permute(0, 3, 1, 2) if nhwc else a
    even = top == bottom and left == right

    def call() -> Any:
        padded = image if even else pad(image, (left, right, top, bottom))
        y = conv(padded, b, None, g.stride, (top, left) if even else 0, g.dilation, g.groups)
        return y.permute(0, 2, 3, 1) if nhwc else y

    return call


def _convolved(x: Array, w: Any, workload: QuantizationWorkload) -> Array:
    """A convolution as patches and one matrix product per group."""
    g = workload.geometry
    assert g is not None
    image = x if g.layout == "NHWC" else x.transpose(0, 2, 3, 1)
    top, left, bottom, right = g.padding
    padded = np.pad(image, ((0, 0), (top, bottom), (left, right), (0, 0)))
    out, per_group, kh, kw = w.shape
    reach = [d * (k - 1) + 1 for d, k in zip(g.dilation, (kh, kw), strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))
    windows = windows[:, :: g.stride[0], :: g.stride[1], :, :: g.dilation[0], :: g.dilation[1]]
    n, height, width = windows.shape[:3]
    parts = []
    for i in range(g.groups):
        columns = windows[:, :, :, i * per_group : (i + 1) * per_group].reshape(n * height * width, -1)
        rows = w[i * (out // g.groups) : (i + 1) * (out // g.groups)].reshape(out // g.groups, -1)
        parts.append(columns @ rows.T)
    y = np.concatenate(parts, 1).reshape(n, height, width, out)
    return y if g.layout == "NHWC" else y.transpose(0, 3, 1, 2)
