"""Quantizing one shard in bounded memory: reading, quantizing and writing overlap."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lowbit.formats.compressed_tensors.plan import Item
from lowbit.formats.compressed_tensors.scheme import widened
from lowbit.formats.safetensors.checkpoint import as_array
from lowbit.formats.safetensors.writer import ShardWriter
from lowbit.models.weights import refuse_nonfinite
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.threads import get_num_threads, set_num_threads

Array = npt.NDArray[Any]

_PIECE = 8 << 20  # bytes per read; disks are faster with large ones
_BLOCK = 1 << 19  # elements per call, so that they stay in L2
_WORKERS = 8  # pieces quantized in parallel, at most one per thread
_AHEAD, _BEHIND = 3, 8  # pieces read ahead, and arrays waiting to be written
_FLUSH = 64 << 20  # bytes between requests to write back, so that the final sync is short


class Source(Protocol):
    """Where the bytes of tensors come from."""

    def read_into(self, name: str, start: int, buffer: Array) -> None: ...


class _Piece(NamedTuple):
    item: Item
    start: int
    nbytes: int


class _Treated(NamedTuple):
    codes: Array
    scale: Array
    zero_point: Array | None


@dataclass
class Noise:
    """Energy of a tensor and of its quantization error, summed per block.

    >>> noise = Noise(1.0, 0.01)
    >>> round(noise.sqnr_db, 6)
    20.0
    """

    signal: float = 0.0
    noise: float = 0.0

    def add(self, weight: Array, q: QuantizedTensor) -> None:
        """Add a block of the tensor and its quantized form."""
        x, y = _scratch(weight.size)
        x[:] = weight.reshape(-1)
        q.dequantize(out=y.reshape(weight.shape))
        np.subtract(x, y, out=y)
        self.signal += float(np.dot(x, x))
        self.noise += float(np.dot(y, y))

    def include(self, other: Noise) -> None:
        self.signal += other.signal
        self.noise += other.noise

    @property
    def sqnr_db(self) -> float:
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


_kept = threading.local()


def _scratch(size: int) -> tuple[Array, Array]:
    """Two float32 arrays of this thread, reused: allocating them per block would cost more than the sums."""
    if getattr(_kept, "size", 0) < size:
        _kept.size, _kept.arrays = size, (np.empty(size, np.float32), np.empty(size, np.float32))
    x, y = _kept.arrays
    return x[:size], y[:size]


def stream_shard(
    source: Source, items: Iterable[Item], shard: ShardWriter, progress: Callable[[Item, int], None]
) -> dict[str, float]:
    """Write all tensors of a shard; returns the SQNR of each quantized tensor. `progress` gets the bytes read.

    Matrices are quantized in blocks of rows; a matrix with one scale is held whole.
    """
    losses: dict[str, Noise] = {}
    zeros: dict[str, list[Array]] = {}

    def finish(piece: _Piece, data: Array, quantized: Future[tuple[_Treated, Noise]] | None) -> None:
        item, name = piece.item, piece.item.info.name
        if quantized is None:
            writer.put(item.stored[0].name, data, free=data)
        else:
            rows, noise = quantized.result()
            losses.setdefault(name, Noise()).include(noise)
            writer.put(item.stored[0].name, rows.codes)
            writer.put(item.stored[1].name, rows.scale)
            if rows.zero_point is not None:
                zeros.setdefault(name, []).append(rows.zero_point)
            writer.free(data)
            if piece.start + piece.nbytes == item.info.nbytes:
                _put_rest(item, zeros.pop(name, []), writer)
        progress(item, piece.nbytes)

    computing: deque[tuple[_Piece, Array, Future[tuple[_Treated, Noise]] | None]] = deque()
    with _one_thread_a_call() as workers, _Writer(shard) as writer, ThreadPoolExecutor(workers) as pool:
        for piece, data in _read_ahead(source, items, writer):
            treated = piece.item.scheme is not None
            computing.append((piece, data, pool.submit(_quantized, piece, data) if treated else None))
            while len(computing) > (workers if piece.nbytes <= _PIECE else 0):  # of whole matrices only one is held
                finish(*computing.popleft())
        while computing:
            finish(*computing.popleft())
    return {name: noise.sqnr_db for name, noise in losses.items()}


@contextmanager
def _one_thread_a_call() -> Iterator[int]:
    """The number of pieces to quantize in parallel. Meanwhile each kernel uses one thread: parallel pieces need no
    barrier after every block, and leave cores for reading and writing."""
    before = get_num_threads()
    set_num_threads(1)
    try:
        yield min(before, _WORKERS)
    finally:
        set_num_threads(before)


def _quantized(piece: _Piece, data: Array) -> tuple[_Treated, Noise]:
    info, scheme = piece.item.info, piece.item.scheme
    assert scheme is not None
    columns = info.shape[1]
    weight = as_array(data, info.dtype, (-1, columns), info.name)
    if info.dtype == "BF16" and weight.dtype == np.uint16:
        weight = widened(weight, "BF16")  # without ml_dtypes there is no array that says what it is
    step = len(weight) if scheme.weights.granularity == "tensor" else max(1, _BLOCK // columns)
    first = piece.start // (info.nbytes // info.shape[0])
    found, noise = [], Noise()
    for start in range(0, len(weight), step):
        block = weight[start : start + step]
        try:
            rows = scheme.rows(block, info.dtype, info.name)
        except InvalidProblem:
            refuse_nonfinite(block, info.name, first_row=first + start)
            raise
        noise.add(block, rows.quantized)
        found.append(rows)
    # One array for all blocks wakes the writer once per piece.
    zeros = [rows.zero_point for rows in found if rows.zero_point is not None]
    codes, scale = np.concatenate([rows.codes for rows in found]), np.concatenate([rows.scale for rows in found])
    return _Treated(codes, scale, np.concatenate(zeros) if zeros else None), noise


def _put_rest(item: Item, zeros: list[Array], writer: _Writer) -> None:
    """Write what is known only after all rows: the shape and the packed zero points."""
    assert item.scheme is not None
    for stored in item.stored[2:]:
        if stored.name.endswith(".weight_shape"):
            writer.put(stored.name, np.array(item.info.shape, "<i8"))
        else:
            writer.put(stored.name, item.scheme.zero_points(np.concatenate(zeros)))


def _pieces(items: Iterable[Item]) -> Iterator[_Piece]:
    for item in items:
        info = item.info
        step = _PIECE
        if item.scheme is not None:
            row = info.nbytes // info.shape[0]
            whole = item.scheme.weights.granularity == "tensor"
            step = info.nbytes if whole else max(1, _PIECE // row) * row
        for start in range(0, info.nbytes, step):
            yield _Piece(item, start, min(step, info.nbytes - start))


def _read_ahead(source: Source, items: Iterable[Item], writer: _Writer) -> Iterator[tuple[_Piece, Array]]:
    def read(piece: _Piece) -> Array:
        buffer = writer.buffer(piece.nbytes)
        source.read_into(piece.item.info.name, piece.start, buffer)
        return buffer

    waiting: deque[tuple[_Piece, Future[Array]]] = deque()
    with ThreadPoolExecutor(1, "lowbit-read") as reader:
        try:
            for piece in _pieces(items):
                waiting.append((piece, reader.submit(read, piece)))
                while len(waiting) > (_AHEAD if piece.nbytes <= _PIECE else 0):  # of whole matrices only one is held
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


class _Writer:
    """Write in the background, in the order given; an error there is raised here, at the latest on leaving."""

    def __init__(self, shard: ShardWriter) -> None:
        self._shard = shard
        self._waiting: deque[Future[None]] = deque()
        self._free: deque[Array] = deque()
        self._thread = ThreadPoolExecutor(1, "lowbit-write")
        self._flusher = ThreadPoolExecutor(1, "lowbit-flush")
        self._flush: Future[None] | None = None
        self._unflushed = 0

    def buffer(self, nbytes: int) -> Array:
        """Memory for a piece, reused where possible."""
        if nbytes > _PIECE:
            return np.empty(nbytes, np.uint8)
        try:
            return self._free.pop()[:nbytes]
        except IndexError:
            return np.empty(_PIECE, np.uint8)[:nbytes]

    def free(self, data: Array) -> None:
        whole = data.base if data.base is not None else data
        if whole.nbytes == _PIECE:
            self._free.append(whole)

    def put(self, name: str, data: Array, free: Array | None = None) -> None:
        while len(self._waiting) > _BEHIND:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, name, data, free))

    def _write(self, name: str, data: Array, free: Array | None) -> None:
        self._shard.write(name, data)
        self._unflushed += data.nbytes
        if free is not None:
            self.free(free)
        if self._unflushed >= _FLUSH and (self._flush is None or self._flush.done()):
            if self._flush is not None:
                self._flush.result()
            self._unflushed = 0
            self._flush = self._flusher.submit(self._shard.flush)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for future in self._waiting:
                if kind is not None:
                    future.cancel()
                else:
                    future.result()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._flusher.shutdown(wait=True)
        if kind is None and self._flush is not None:
            self._flush.result()
