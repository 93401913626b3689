"""Moments of the inputs of a causal language model's linear layers, one decoder layer at a time.

Each sequence runs by itself on one thread, so that neither their order nor the number of threads changes a bit; the
sums are exact. In memory are one decoder layer in float32, the moments of as many of its inputs as fit, and the hidden
states of all sequences, which go to a file where they are larger than their share.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import torch
from lowbit.calibration import Moments
from lowbit.formats.causal_lm.network import LayerwiseModel
from lowbit.formats.causal_lm.text import Text
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.threads import get_num_threads
from torch import Tensor, nn

# All tokens attend to the first one, so errors there count more than those at any other; a Gram matrix in which it is
# one row of a thousand does not know. It counts as much as this share of its sequence, unless its inputs are that
# large.
FIRST_TOKEN_SHARE = 1 / 16
_MAX_HIDDEN = 1 << 30  # bytes of hidden states in memory, where no bound is given
_EXPONENTS = 4  # sums that the moments of an input usually have: rows within a factor of 16 share one

Progress = Callable[[int, int, str], None]


class Observed(NamedTuple):
    """Moments of an input that some weights of a decoder layer share, with these weights, [outputs, inputs]."""

    layer: int
    weights: dict[str, Array]  # float32, by the names of their tensors
    moments: Moments


def observe_layers(
    model: LayerwiseModel,
    text: Text,
    wanted: Callable[[str, int], str],
    *,
    max_bytes: float = math.inf,
    solver_bytes: Callable[[int], float] = lambda width: 0.0,
    first_token_share: float = FIRST_TOKEN_SHARE,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[Observed]:
    """The moments of the inputs of wanted weights, decoder layer by decoder layer.

    wanted: says for the name of a weight and its inputs whether "gram", "diagonal" or "" is wanted. max_bytes: memory
    for one layer, its moments, the hidden states, and what the caller does with moments of that many inputs
    (solver_bytes). first_token_share: what the first token of a sequence counts at least. scratch: a folder for hidden
    states. The moments of an input are dropped once the next is asked for.
    """
    count = len(model.layers)
    kinds = [
        {name: kind for name, m in model.linears(i).items() if (kind := wanted(name, m.in_features))}
        for i in range(count)
    ]
    last = max((i for i, found in enumerate(kinds) if found), default=-1)
    steps, done = (last + 1) * len(text.sequences), 0

    def tell(index: int) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(min(done, steps), steps, f"layer {index + 1} of {count}")

    with _hidden_states(model, text, max_bytes, scratch) as hidden, _pool() as pool:
        for i in range(last + 1):
            with model.loaded(i):
                shared = _shared_inputs(model, i, hidden[0], kinds[i])
                widest = max((m.in_features for n, m in model.linears(i).items() if n in kinds[i]), default=0)
                room = max_bytes - model.layer_nbytes(i) - hidden.nbytes - solver_bytes(widest)
                parts = _parts(shared, model.linears(i), kinds[i], room)
                for j, part in enumerate(parts or [[]]):
                    collectors = [_Collector(model, i, names, kinds[i]) for names in part]
                    is_last = j + 1 == max(1, len(parts))
                    keep = hidden if is_last and i < last else None
                    advance = tell if is_last else None
                    _run(model, i, hidden, collectors, keep, pool, first_token_share, advance)
                    while collectors:  # each is dropped before the next is solved
                        yield collectors.pop(0).observed(i)


class _Hidden:
    """The hidden states of all sequences, float32, in memory or in a file."""

    def __init__(self, lengths: Sequence[int], width: int, file: Path | None) -> None:
        shape = (sum(lengths), width)
        self._all: Array = (
            np.empty(shape, np.float32) if file is None else np.memmap(file, np.float32, "w+", shape=shape)
        )
        ends = np.cumsum(lengths)
        self._places = [slice(end - n, end) for end, n in zip(ends, lengths, strict=True)]
        self.nbytes = 0 if file is not None else self._all.nbytes

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self._all[self._places[index]]))[None]

    def __setitem__(self, index: int, value: Tensor) -> None:
        self._all[self._places[index]] = value[0].numpy()


@contextmanager
def _hidden_states(model: LayerwiseModel, text: Text, max_bytes: float, scratch: Path | None) -> Iterator[_Hidden]:
    lengths = [len(s) for s in text.sequences]
    size = 4 * sum(lengths) * model.width
    with tempfile.TemporaryDirectory(prefix=".hidden-", dir=scratch) as folder:
        spilled = size > min(_MAX_HIDDEN, max_bytes / 8)
        hidden = _Hidden(lengths, model.width, Path(folder) / "states" if spilled else None)
        for i, tokens in enumerate(text.sequences):
            model.prepare(tokens)
            hidden[i] = model.embedded(tokens)
        yield hidden


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Threads in which torch computes with one thread, so that sums do not depend on how many there are."""
    with ThreadPoolExecutor(get_num_threads(), "lowbit-observe", lambda: torch.set_num_threads(1)) as pool:
        yield pool


def _shared_inputs(model: LayerwiseModel, index: int, hidden: Tensor, wanted: Collection[str]) -> list[list[str]]:
    """Names of weights, those that multiply the same tensor together, in the order of their calls."""
    groups: list[tuple[Tensor, list[str]]] = []
    names: dict[nn.Module, str] = {m: name for name, m in model.linears(index).items() if name in wanted}

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        found = next((members for x, members in groups if x is given[0]), None)
        if found is None:
            groups.append((given[0], found := []))
        if names[module] not in found:
            found.append(names[module])

    handles = [m.register_forward_pre_hook(note) for m in names]
    try:
        with torch.inference_mode():
            model.call(index, hidden)
    finally:
        for handle in handles:
            handle.remove()
    return [members for _, members in groups]


def _parts(
    shared: list[list[str]], linears: dict[str, nn.Linear], kinds: dict[str, str], room: float
) -> list[list[list[str]]]:
    """The inputs in parts whose moments fit in the room that there is; one input at least."""
    parts: list[list[list[str]]] = []
    left = -1.0
    for names in shared:
        width = linears[names[0]].in_features
        needed = _EXPONENTS * (4.0 * width**2 if any(kinds[n] == "gram" for n in names) else 8.0 * width)
        if needed > left or not parts:
            parts.append([])
            left = room
        parts[-1].append(names)
        left -= needed
    return parts


class _Collector:
    """The moments of one input of a decoder layer. Sequences in several threads add to them."""

    def __init__(self, model: LayerwiseModel, index: int, names: Sequence[str], kinds: dict[str, str]) -> None:
        linears = model.linears(index)
        self.modules = {name: linears[name] for name in names}
        self.leader = self.modules[names[0]]
        gram = any(kinds[name] == "gram" for name in names)
        self.moments = Moments(self.leader.in_features, gram=gram, name=names[0].removesuffix(".weight"))
        self._lock = threading.Lock()

    def observed(self, layer: int) -> Observed:
        return Observed(layer, {name: m.weight.detach().numpy() for name, m in self.modules.items()}, self.moments)

    def add(self, x: Tensor, tokens: int, share: float) -> None:
        rows = x.reshape(-1, x.shape[-1])
        weights = token_weights(rows, share) if len(rows) == tokens else None
        with self._lock:
            self.moments.add(rows, weights)


def token_weights(rows: Tensor, share: float) -> Array:
    """1 for each token of a sequence but the first, which counts as `share` of the tokens, less what its magnitude
    counts.

    >>> token_weights(torch.ones(64, 2), 1 / 16)[:2], token_weights(torch.tensor([[3.0], [0.0], [0.0]]), 1.0)[0].item()
    (array([4., 1.]), 1.0)
    """
    energy = np.square(rows.numpy(), dtype=np.float64).sum(-1)
    mean = float(energy.mean())
    weights = np.ones(len(rows))
    if mean > 0:  # NaN is refused where the rows are added
        weights[0] = max(1.0, share * len(rows) / max(1.0, float(energy[0]) / mean))
    return weights


def _run(
    model: LayerwiseModel,
    index: int,
    hidden: _Hidden,
    collectors: Sequence[_Collector],
    keep: _Hidden | None,
    pool: ThreadPoolExecutor,
    first_token_share: float,
    tell: Callable[[int], None] | None,
) -> None:
    """Call a layer on each sequence, with what its linear layers are given; keep what it gives."""
    running = threading.local()  # of a thread's sequence: which tensor each collector was given
    owners: dict[nn.Module, _Collector] = {m: c for c in collectors for m in c.modules.values()}

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        collector, x = owners[module], given[0]
        if module is collector.leader:
            running.seen[collector] = x
            collector.add(x, running.tokens, first_token_share)
        elif running.seen.get(collector) is not x:
            raise InvalidProblem(
                f"{collector.moments.name}: layers that shared its input in one sequence do not in another"
            )

    def run(i: int) -> None:
        x = hidden[i]
        running.seen, running.tokens = {}, x.shape[1]
        with torch.inference_mode():
            try:
                made = model.call(index, x)
            except InvalidProblem as error:
                raise InvalidProblem(f"sequence {i}: {error}") from None
        if keep is not None:
            keep[i] = made
        if tell is not None:
            tell(index)

    handles = [m.register_forward_pre_hook(note) for m in owners]
    try:
        for _ in pool.map(run, range(len(hidden))):
            pass
    finally:
        for handle in handles:
            handle.remove()
