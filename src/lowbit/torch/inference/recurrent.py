"""QuantizedLSTM and QuantizedGRU: the input is multiplied for all steps at once, the state at each step.

Both products are those of QuantizedLinear, exact sums of integers with int8 or uint8 activations; gates are float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from torch.nn.utils.rnn import PackedSequence

import torch
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.runtime.native import core
from lowbit.torch.functional.registration import register
from lowbit.torch.inference.composed import ComposedModule, Matrix
from lowbit.torch.inference.layers import module_of, no_gradient, refuse_programs
from torch import Tensor, nn


class QuantizedRecurrent(ComposedModule):
    """What QuantizedLSTM and QuantizedGRU have in common. The products are modules: ih_l0, hh_l0, ih_l0_reverse, ..."""

    fields = ("input_size", "hidden_size", "num_layers", "batch_first", "bidirectional")
    proj_size = 0
    input_size: int
    hidden_size: int
    num_layers: int
    batch_first: bool
    bidirectional: bool
    _count: ClassVar[int]  # of states

    @classmethod
    def matrices(cls, module: Any) -> dict[str, Matrix]:
        """Two of each layer and direction: for the input and for the state."""
        if module.proj_size:
            raise Unsupported(f"proj_size: {module.proj_size}; expected 0")
        found = {}
        for layer in range(module.num_layers):
            for way in ("", "_reverse") if module.bidirectional else ("",):
                names = [f"{part}_l{layer}{way}" for part in ("ih", "hh")]
                stored = [getattr(module, f"bias_{name}") for name in names] if module.bias else []
                biases: tuple[Any, Any] = (None, None)
                if stored:
                    first, second = (b.detach().float() for b in stored)
                    biases = cls._joined(first, second, module.hidden_size)
                for i, name in enumerate(names):
                    weight = getattr(module, f"weight_{name}")
                    found[name] = Matrix(f"weight_{name}", weight, biases[i], (weight, *stored[i : i + 1]))
        return found

    @staticmethod
    def _joined(first: Tensor, second: Tensor, hidden: int) -> tuple[Tensor, Tensor | None]:
        """The biases of both products, from those of the float module."""
        raise NotImplementedError

    def _layer(self, x: Tensor, states: tuple[Tensor, ...], end: str, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """(output, *states) of one layer in one direction."""
        raise NotImplementedError

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As nn.LSTM and nn.GRU: (output, states)."""
        if isinstance(input, PackedSequence):
            data, sizes, order, undo = input
            output, states = self._all(data, self._states(hx, int(sizes[0]), order), sizes.tolist())
            packed = PackedSequence(output.to(data.dtype), sizes, order, undo)
            return packed, self._given(states, data, undo)
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise InvalidProblem(f"input: shape {tuple(input.shape)}; expected [steps, batch, {self.input_size}]")
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1) if batched and self.batch_first else x
        steps, batch = x.shape[:2]
        hx = hx if batched or hx is None else _each(hx, lambda s: s.unsqueeze(1))
        output, states = self._all(x.reshape(steps * batch, -1), self._states(hx, batch), [])
        output = output.view(steps, batch, -1).to(input.dtype)
        if not batched:
            return output.squeeze(1), _each(self._given(states, input), lambda s: s.squeeze(1))
        return (output.transpose(0, 1) if self.batch_first else output), self._given(states, input)

    def flatten_parameters(self) -> None:
        """Nothing: weights are packed already."""

    def _states(self, hx: Any, batch: int, order: Tensor | None = None) -> list[Tensor]:
        """Initial states in float32, [layers * directions, batch, hidden] each."""
        shape = (self.num_layers * (1 + self.bidirectional), batch, self.hidden_size)
        if hx is None:
            return [torch.zeros(shape) for _ in range(self._count)]
        given = list(hx) if self._count > 1 else [hx]
        if len(given) != self._count or any(tuple(s.shape) != shape for s in given):
            shapes = ", ".join(str(tuple(s.shape)) for s in given)
            raise InvalidProblem(f"hx: shapes {shapes}; expected {self._count} of {shape}")
        return [(s if order is None else s.index_select(1, order)).float() for s in given]

    def _given(self, states: Sequence[Tensor], like: Tensor, undo: Tensor | None = None) -> Any:
        made = [(s if undo is None else s.index_select(1, undo)).to(like.dtype) for s in states]
        return tuple(made) if self._count > 1 else made[0]

    def _all(self, x: Tensor, states: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """All layers on rows [steps * batch, inputs]; sizes: of the batch at each step, where it varies."""
        x = x.float()
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(1 + self.bidirectional):
                own = tuple(s[len(ends)] for s in states)
                y, *last = self._layer(x, own, f"l{layer}{'_reverse' * direction}", sizes)
                outputs.append(y)
                ends.append(tuple(last))
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return x, [torch.stack(each) for each in zip(*ends, strict=True)]


class QuantizedLSTM(QuantizedRecurrent):
    """nn.LSTM over quantized weights. A gradient is an error.

    >>> lstm = nn.LSTM(8, 16)
    >>> x = torch.randn(5, 2, 8)
    >>> y, (h, c) = QuantizedLSTM.from_float(lstm)(x)
    >>> bool((y - lstm(x)[0]).abs().max() < 0.05), h.shape, c.shape
    (True, torch.Size([1, 2, 16]), torch.Size([1, 2, 16]))
    """

    kind, of_float, _count = "lstm", nn.LSTM, 2

    @staticmethod
    def _joined(first: Tensor, second: Tensor, hidden: int) -> tuple[Tensor, Tensor | None]:
        return first + second, None

    def _layer(self, x: Tensor, states: tuple[Tensor, ...], end: str, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        numbers = (getattr(self, f"{part}_{end}").number for part in ("ih", "hh"))
        return quantized_lstm(x, *states, *numbers, end.endswith("_reverse"), sizes)  # type: ignore[no-any-return]


class QuantizedGRU(QuantizedRecurrent):
    """nn.GRU over quantized weights. A gradient is an error.

    >>> gru = nn.GRU(8, 16, bidirectional=True)
    >>> x = torch.randn(5, 2, 8)
    >>> y, h = QuantizedGRU.from_float(gru)(x)
    >>> bool((y - gru(x)[0]).abs().max() < 0.05), h.shape
    (True, torch.Size([2, 2, 16]))
    """

    kind, of_float, _count = "gru", nn.GRU, 1

    @staticmethod
    def _joined(first: Tensor, second: Tensor, hidden: int) -> tuple[Tensor, Tensor | None]:
        """The new gate multiplies its part of the state, bias included, by the reset gate."""
        kept = torch.cat([second.new_zeros(2 * hidden), second[2 * hidden :]])
        return first + (second - kept), kept

    def _layer(self, x: Tensor, states: tuple[Tensor, ...], end: str, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        numbers = (getattr(self, f"{part}_{end}").number for part in ("ih", "hh"))
        return quantized_gru(x, *states, *numbers, end.endswith("_reverse"), sizes)  # type: ignore[no-any-return]


def _each(states: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return change(states) if isinstance(states, Tensor) else tuple(map(change, states))


def _run(x: Tensor, states: Sequence[Tensor], products: tuple[int, int], reverse: bool, sizes: Sequence[int]) -> Any:
    """All steps of a layer in one direction: its output and its last states. sizes: of the batch at each step, where
    it varies; a sequence that has ended keeps its state."""
    first, second = (module_of(number).layer for number in products)
    last = [s.detach().clone() for s in states]
    batch, hidden = last[0].shape
    output = np.empty((len(x), hidden), np.float32)
    from_x = first(x.detach().numpy())
    made: dict[int, tuple[Callable[[], None], Callable[..., None]]] = {}
    ends = list(itertools.accumulate(sizes or [batch] * (len(x) // max(1, batch))))
    spans = list(zip([0, *ends], ends, strict=False))
    for begin, end in reversed(spans) if reverse else spans:
        count = end - begin
        if count not in made:
            own = [s[:count].numpy() for s in last]
            gates = np.empty((count, second.out_features), np.float32)
            cell = own[1] if len(own) > 1 else None
            made[count] = second.bound(own[0], gates), core.RecurrentGates(gates, own[0], cell, hidden).step
        multiply, step = made[count]
        multiply()
        step(from_x[begin:end], output[begin:end])
    return torch.from_numpy(output), *last


def _lstm(x: Tensor, h: Tensor, c: Tensor, first: int, second: int, reverse: bool, sizes: Sequence[int]) -> Any:
    return _run(x, (h, c), (first, second), reverse, sizes)


def _gru(x: Tensor, h: Tensor, first: int, second: int, reverse: bool, sizes: Sequence[int]) -> Any:
    return _run(x, (h,), (first, second), reverse, sizes)


def _register(schema: str, kernel: Callable[..., Any], states: int) -> Callable[..., Any]:
    """Register an operator over rows and states, whose gradient is an error."""
    name = schema[: schema.index("(")]

    def shapes(x: Tensor, *given: Any) -> Any:
        own = given[:states]
        return x.new_empty((x.shape[0], own[0].shape[1])), *(torch.empty_like(s) for s in own)

    def gradient(dy: Tensor, *given: Any) -> Any:
        return (no_gradient(dy, given[states], name), *(None,) * states)

    options = {"tensors": 1 + states, "gradient": gradient, "diagonal": False, "guard": refuse_programs}
    return register(schema, kernel, shapes, **options)


_REST = "int input, int state, bool reverse, int[] sizes"
quantized_lstm = _register(
    f"quantized_lstm(Tensor x, Tensor h, Tensor c, {_REST}) -> (Tensor, Tensor, Tensor)", _lstm, 2
)
quantized_gru = _register(f"quantized_gru(Tensor x, Tensor h, {_REST}) -> (Tensor, Tensor)", _gru, 1)
