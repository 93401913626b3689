"""Quantizing one shard in bounded memory: reading, quantizing and writing overlap."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats.compressed_tensors.plan import Item
from lowbit.formats.compressed_tensors.scheme import widened
from lowbit.formats.compressed_tensors.solved import SolvedWeights
from lowbit.formats.safetensors.checkpoint import Checkpoint, as_array
from lowbit.formats.safetensors.writer import ShardWriter
from lowbit.models.weights import quantize_weight, refuse_nonfinite
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.metrics import sqnr_db
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.threads import get_num_threads, threads_set_to

Array = npt.NDArray[Any]

_PIECE = 8 << 20  # bytes per read; disks are faster with large ones
_BLOCK = 1 << 19  # elements per call, so that they stay in L2
_WORKERS = 8  # pieces quantized in parallel, at most one per thread
_AHEAD, _BEHIND = 3, 8  # pieces read ahead, and arrays waiting to be written
_FLUSH = 64 << 20  # bytes between requests to write back, so that the final sync is short


@dataclass
class _Piece:
    """Bytes of a tensor on their way through the threads, which add what they found."""

    item: Item
    start: int
    nbytes: int
    is_solved: bool = False
    data: Array = field(init=False)
    stored: list[Array] = field(default_factory=list)  # of quantized rows: codes, scales, and zero points if any
    energy: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))  # of the rows, and of their errors


def stream_shard(
    source: Checkpoint,
    items: Iterable[Item],
    shard: ShardWriter,
    progress: Callable[[Item, int], None],
    solved: SolvedWeights,
) -> dict[str, float]:
    """Write all tensors of a shard; returns the SQNR of each quantized tensor. `progress` gets the bytes read.

    Matrices are quantized in blocks of rows; a matrix with one scale is held whole. Those that are solved are copied.
    """
    energies: dict[str, npt.NDArray[np.float64]] = {}
    zeros: list[Array] = []

    def read(piece: _Piece) -> _Piece:
        name = piece.item.info.name
        if piece.is_solved and piece.item.scheme is None:
            piece.data = solved.read_copied(name)
            return piece
        if piece.is_solved:
            rows, figures = solved.read(name)
            piece.stored, piece.energy = [part for part in rows if part is not None], np.array(figures.energy)
            piece.data = np.empty(0, np.uint8)
            return piece
        piece.data = writer.buffer(piece.nbytes)
        source.read_into(name, piece.start, piece.data)
        return piece

    workers = min(get_num_threads(), _WORKERS)
    with (
        # Pieces in parallel need no barrier after every block, and leave cores for reading and writing.
        threads_set_to(1),
        _Writer(shard) as writer,
        ThreadPoolExecutor(workers) as pool,
        ThreadPoolExecutor(1, "lowbit-read") as reader,
    ):
        for piece in _ahead(pool, _quantized, _ahead(reader, read, _pieces(items, solved), _AHEAD), workers):
            item = piece.item
            if item.scheme is None:
                writer.put(item.stored[0].name, piece.data, free=piece.data)
            else:
                name, (codes, scale, *zero) = item.info.name, piece.stored
                energies[name] = energies.get(name, 0) + piece.energy
                writer.put(item.stored[0].name, codes)
                writer.put(item.stored[1].name, scale)
                zeros += zero
                writer.free(piece.data)
                if piece.start + piece.nbytes == item.info.nbytes:
                    _put_rest(item, zeros, writer)
                    zeros.clear()
            progress(item, piece.nbytes)
    return {name: sqnr_db(*map(float, energy)) for name, energy in energies.items()}


def _ahead(
    pool: ThreadPoolExecutor, work: Callable[[_Piece], _Piece], pieces: Iterable[_Piece], most: int
) -> Iterator[_Piece]:
    """The results of `work` in order, computed in the pool a few pieces ahead."""
    waiting: deque[Future[_Piece]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(work, piece))
        while len(waiting) > (most if piece.nbytes <= _PIECE else 0):  # of whole matrices only one is held
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _pieces(items: Iterable[Item], solved: SolvedWeights) -> Iterator[_Piece]:
    for item in items:
        info = item.info
        step = _PIECE
        if info.name in solved:
            yield _Piece(item, 0, info.nbytes, is_solved=True)
            continue
        if item.scheme is not None:
            row = info.nbytes // info.shape[0]
            whole = item.scheme.weights.granularity == "tensor"
            step = info.nbytes if whole else max(1, _PIECE // row) * row
        for start in range(0, info.nbytes, step):
            yield _Piece(item, start, min(step, info.nbytes - start))


def _quantized(piece: _Piece) -> _Piece:
    """The piece with its rows quantized, where it has a scheme."""
    info, scheme = piece.item.info, piece.item.scheme
    if scheme is None or piece.is_solved:
        return piece
    columns = info.shape[1]
    weight = as_array(piece.data, info.dtype, (-1, columns), info.name)
    if info.dtype == "BF16" and weight.dtype == np.uint16:
        weight = widened(weight, "BF16")  # without ml_dtypes there is no array that says what it is
    step = len(weight) if scheme.weights.granularity == "tensor" else max(1, _BLOCK // columns)
    first = piece.start // (info.nbytes // info.shape[0])
    found = []
    for start in range(0, len(weight), step):
        block = weight[start : start + step]
        try:
            q = quantize_weight(block, scheme.weights, name=info.name, scale_dtype=scheme.scale_dtype(info.dtype))
        except InvalidProblem:
            refuse_nonfinite(block, info.name, first_row=first + start)
            raise
        piece.energy += _energy(block, q)
        found.append([part for part in scheme.rows(q, info.dtype) if part is not None])
    # One array for all blocks wakes the writer once per piece.
    piece.stored = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    return piece


_scratch = threading.local()  # two float32 arrays per thread: allocating them per block would cost more than the sums


def _energy(weight: Array, q: QuantizedTensor) -> tuple[float, float]:
    """The sums of squares of a block, and of its quantization error."""
    if getattr(_scratch, "size", 0) < weight.size:
        _scratch.size, _scratch.arrays = weight.size, np.empty((2, weight.size), np.float32)
    x, y = _scratch.arrays[:, : weight.size]
    x[:] = weight.reshape(-1)
    q.dequantize(out=y.reshape(weight.shape))
    np.subtract(x, y, out=y)
    return float(np.dot(x, x)), float(np.dot(y, y))


def _put_rest(item: Item, zeros: list[Array], writer: _Writer) -> None:
    """Write what is known only after all rows: the shape and the packed zero points."""
    assert item.scheme is not None
    for stored in item.stored[2:]:
        if stored.name.endswith(".weight_shape"):
            writer.put(stored.name, np.array(item.info.shape, "<i8"))
        else:
            writer.put(stored.name, item.scheme.zero_points(np.concatenate(zeros)))


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
        try:
            return self._free.pop()[:nbytes] if nbytes <= _PIECE else np.empty(nbytes, np.uint8)
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
            if kind is None:
                for future in self._waiting:
                    future.result()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._flusher.shutdown(wait=True)
        if kind is None and self._flush is not None:
            self._flush.result()
