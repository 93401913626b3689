"""QuantizedLSTM and QuantizedGRU: the equations of quantized layers, in every shape that torch's modules take."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch
from lowbit.models import Recipe, WeightRecipe
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.runtime.native import core
from lowbit.torch import QuantizedGRU, QuantizedLSTM, load_quantized, quantize, report
from torch import nn

KINDS = {nn.LSTM: QuantizedLSTM, nn.GRU: QuantizedGRU}
both = pytest.mark.parametrize("kind", list(KINDS), ids=["lstm", "gru"])
W8A8 = Recipe.of("W8A8").but(min_elements=1)


def made(kind, *sizes, **options):
    torch.manual_seed(3)
    return kind(*sizes, **options).eval()


def states(kind, *shape):
    torch.manual_seed(5)
    h, c = torch.tanh(torch.randn(shape)), torch.randn(shape)
    return (h, c) if kind is nn.LSTM else h


def flat(result):
    """Output and states of a call."""
    y, last = result
    return [y, *(last if isinstance(last, tuple) else [last])]


def dequantized(module, small):
    """The float module with the weights that the quantized one has."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for name, product in small.products.items():
            getattr(twin, f"weight_{name}").copy_(product.weight)
    return twin


def product(x, w_codes, w_scale):
    """x [rows, inputs] rounded to int8 row by row, by codes: exact sums of integers, scaled in float64."""
    scale = np.abs(x).max(axis=1, keepdims=True).astype(np.float32) / np.float32(127)
    scale[scale == 0] = 1
    codes = np.clip(np.rint(x.astype(np.float32) / scale), -127, 127).astype(np.int64)
    return (codes @ w_codes.astype(np.int64).T) * (scale.astype(np.float64) * w_scale.astype(np.float64))


def reference(small, x, h, c=None):
    """One layer of a quantized module, forward, in float64."""
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    layers = small.products
    parts = [layers[name].layer for name in ("ih_l0", "hh_l0")]
    codes = [(p.weight.unpack(), np.asarray(p.weight.params.scale)) for p in parts]
    first, second = (0.0 if p.bias is None else p.bias.astype(np.float64) for p in parts)
    steps, batch, _ = x.shape
    from_x = (product(x.reshape(steps * batch, -1), *codes[0]) + first).reshape(steps, batch, -1)
    given = []
    for t in range(steps):
        from_h = product(h.astype(np.float32), *codes[1]) + second
        if c is not None:
            i, f, g, o = np.split(from_x[t] + from_h, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (xr, xz, xn), (hr, hz, hn) = (np.split(v, 3, axis=1) for v in (from_x[t], from_h))
            z = sigmoid(xz + hz)
            h = (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
        given.append(h)
    return np.stack(given)


@both
@pytest.mark.parametrize("bias", [True, False])
def test_steps_follow_the_equations_of_quantized_layers(kind, bias):
    """The state is fed back for one step only, as a rounding of it that differs by one code differs for good."""
    module = made(kind, 24, 16, bias=bias)
    small = KINDS[kind].from_float(module)
    hx = states(kind, 1, 3, 16)
    start = [s[0].numpy().astype(np.float64) for s in (hx if kind is nn.LSTM else [hx])]
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(1, 3, 24)
        y = small(x, hx)[0].numpy()
        assert np.abs(y - reference(small, x.numpy(), *start)).max() < 2e-6
    x = torch.randn(20, 3, 24)
    many = reference(small, x.numpy(), *start)
    assert np.abs(small(x, hx)[0].numpy() - many).max() < 5e-3


@both
def test_the_integer_part_is_exact(kind):
    """The products of a module are those of lowbit's layers: the sums of integers, with the same bits."""
    small = KINDS[kind].from_float(made(kind, 24, 16))
    torch.manual_seed(1)
    for inner in small.products.values():
        x = torch.randn(7, inner.in_features)
        q = inner.layer.weight
        bias = 0.0 if inner.layer.bias is None else inner.layer.bias
        want = product(x.numpy(), q.unpack(), np.asarray(q.params.scale)) + bias
        assert np.abs(inner(x).numpy() - want).max() < 1e-6
        rows, y = x.numpy().copy(), np.empty((7, inner.out_features), np.float32)
        multiply = inner.layer.bound(rows, y)
        multiply()
        assert np.array_equal(y, inner(x).numpy())
        rows[:] = rows[::-1].copy()
        multiply()
        assert np.array_equal(y[::-1], inner(x).numpy())


@both
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_results_are_those_of_the_dequantized_module(kind, layers, bidirectional, batch_first, with_states):
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "dropout": 0.5 if layers > 1 else 0.0}
    module = made(kind, 20, 12, layers, **options)
    small = KINDS[kind].from_float(module)
    hx = states(kind, layers * (1 + bidirectional), 4, 12) if with_states else None
    x = torch.randn(4, 7, 20) if batch_first else torch.randn(7, 4, 20)
    twin = dequantized(module, small)
    found = flat(small(x, hx))
    for got, want in zip(found, flat(twin(x, hx)), strict=True):
        assert got.shape == want.shape
        assert (got - want).norm() < 0.02 * want.norm()
    alone = x[1] if batch_first else x[:, 1]
    if with_states:
        hx = tuple(s[:, 1] for s in hx) if kind is nn.LSTM else hx[:, 1]
    for got, want, all_of in zip(flat(small(alone, hx)), flat(twin(alone, hx)), found, strict=True):
        assert got.shape == want.shape
        assert torch.equal(got, all_of[1] if batch_first and all_of is found[0] else all_of[:, 1])


@both
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_packed_sequences_are_those_that_they_hold(kind, bidirectional, in_order, with_states):
    module = made(kind, 10, 8, 2, bidirectional=bidirectional)
    small = KINDS[kind].from_float(module)
    lengths = [6, 4, 4, 1] if in_order else [4, 1, 6, 4]
    x = torch.randn(6, 4, 10)
    hx = states(kind, 2 * (1 + bidirectional), 4, 8) if with_states else None
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=in_order)
    y, last = small(packed, hx)
    padded, found = pad_packed_sequence(y)
    assert found.tolist() == lengths
    last = last if isinstance(last, tuple) else (last,)
    for i, n in enumerate(lengths):
        own = None
        if with_states:
            own = tuple(s[:, i : i + 1] for s in hx) if kind is nn.LSTM else hx[:, i : i + 1]
        want = flat(small(x[:n, i : i + 1], own))
        assert torch.equal(padded[:n, i : i + 1], want[0])
        for got, one in zip(last, want[1:], strict=True):
            assert torch.equal(got[:, i : i + 1], one)
    want = flat(dequantized(module, small)(packed, hx))
    assert (y.data - want[0].data).norm() < 0.03 * want[0].data.norm()


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_in_and_out(kind, dtype):
    module = made(kind, 20, 12)
    small = quantize(module.to(dtype), W8A8)
    x = torch.randn(5, 2, 20, dtype=dtype)
    found = flat(small(x))
    assert {t.dtype for t in found} == {dtype}
    want = flat(small(x.float()))
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(found, want, strict=True))


@both
@pytest.mark.parametrize("recipe", ["W8A8", "dynamic-int8", "W8A16", "W4A16", "W4A8"])
def test_models_are_swapped_reported_and_loaded(kind, recipe):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(64, 48, 2, bidirectional=True)
            self.head = nn.Linear(96, 32)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    torch.manual_seed(0)
    net = Net().eval()
    x = torch.randn(6, 3, 64)
    small = quantize(net, recipe)
    assert type(small.rnn) is KINDS[kind]
    rows = {row.name: row for row in report(small).rows}
    names = {f"rnn.weight_{name}" for name in small.rnn.products}
    assert len(names) == 8
    assert set(rows) == names | {"head"}
    for name in names:
        assert rows[name].shape == tuple(getattr(net.rnn, name.removeprefix("rnn.")).shape)
        assert rows[name].treated
        assert rows[name].sqnr_db > (15 if "W4" in recipe else 35)
    assert sum(r.bytes_before for r in rows.values()) == sum(p.numel() * 4 for p in net.parameters())
    assert sum(r.bytes_after for r in rows.values()) == report(small).bytes_after
    again = load_quantized(Net(), small.state_dict())
    twin = quantize(net, recipe)
    twin.load_state_dict(small.state_dict())
    with torch.no_grad():
        y = small(x)
        assert (y - net(x)).norm() < (0.15 if "W4" in recipe else 0.02) * y.norm()
        for other in (again, twin, copy.deepcopy(small), pickle.loads(pickle.dumps(small.rnn))):
            assert torch.equal(other(x) if other.__class__ is not KINDS[kind] else small.head(other(x)[0]), y)


def test_state_dicts_that_do_not_fit_are_refused():
    net = made(nn.LSTM, 20, 12)
    state = quantize(net, W8A8).state_dict()
    for other in (nn.GRU(20, 12), nn.LSTM(20, 12, 2), nn.LSTM(20, 13), nn.LSTM(20, 12, proj_size=3), nn.Linear(20, 12)):
        with pytest.raises(FormatError):
            load_quantized(other, state)
    for change in ("ih_l0.weight_codes", "hh_l0.lowbit", "lowbit"):
        with pytest.raises(FormatError):
            load_quantized(nn.LSTM(20, 12), {k: v for k, v in state.items() if k != change})
    with pytest.raises(FormatError, match="ih_l7"):
        load_quantized(nn.LSTM(20, 12), state | {"ih_l7.bias": torch.zeros(1)})
    swapped = {k.replace("ih_", "??").replace("hh_", "ih_").replace("??", "hh_"): v for k, v in state.items()}
    with pytest.raises(FormatError, match="expected"):
        load_quantized(nn.LSTM(20, 12), swapped)


@pytest.mark.filterwarnings("ignore:quantize")
def test_what_stays_float_has_a_reason():
    def why(module, recipe=W8A8, **options):
        (row,) = report(quantize(module, recipe, **options)).rows
        return row.why_not

    hooked = nn.LSTM(8, 8)
    hooked.register_forward_hook(lambda *_: None)
    assert "proj_size" in why(nn.LSTM(8, 8, proj_size=4))
    assert "no quantized form of RNN" in why(nn.RNN(8, 8))
    assert "no quantized form of LSTMCell" in why(nn.LSTMCell(8, 8))
    assert "hooks" in why(hooked)
    assert "expected dynamic or float activations" in why(
        nn.GRU(8, 8), Recipe.of("static-int8"), calibration=[torch.randn(3, 2, 8)]
    )
    assert "this is recurrent" in why(nn.GRU(8, 8), W8A8.but(kinds=("linear",)))
    with pytest.raises(Unsupported, match="proj_size"):
        QuantizedLSTM.from_float(nn.LSTM(8, 8, proj_size=4))


@both
def test_arguments_that_do_not_fit_are_refused(kind):
    small = KINDS[kind].from_float(made(kind, 8, 6))
    for x in (torch.randn(3, 2, 9), torch.randn(8), torch.randn(1, 2, 3, 8)):
        with pytest.raises(InvalidProblem, match="input: shape"):
            small(x)
    with pytest.raises(InvalidProblem, match="hx: shapes"):
        small(torch.randn(3, 2, 8), states(kind, 1, 3, 6))
    with pytest.raises(InvalidProblem):
        small(torch.full((3, 2, 8), torch.nan))


@both
def test_programs_and_gradients(kind):
    small = KINDS[kind].from_float(made(kind, 8, 6, bidirectional=True))
    x = torch.randn(3, 2, 8)
    want = flat(small(x))
    found = flat(torch.compile(small, fullgraph=True, backend="aot_eager")(x))
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    with pytest.raises(Unsupported, match="a gradient by its input"):
        small(x.requires_grad_())[0].sum().backward()
    with pytest.raises(Unsupported, match="quantized modules keep their weights"):
        torch.export.export(small, (x.detach(),))


@pytest.mark.filterwarnings("ignore:quantize")
def test_an_example_of_packed_sequences_is_timed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(16, 64)

        def forward(self, x):
            return self.rnn(pack_padded_sequence(x, torch.tensor([4, 2])))[0].data

    rows = report(quantize(Net(), W8A8, example=torch.randn(4, 2, 16))).rows
    assert all("ms" in row.note for row in rows)
    groups = WeightRecipe("int4", group_size=16)
    small = quantize(Net(), W8A8.but(weights=groups), example=torch.randn(4, 2, 16), keep_float="never")
    assert {row.how for row in report(small).rows} == {"int4 symmetric, groups of 16"}


@pytest.mark.parametrize("count", [3, 4])
def test_gates_take_arrays_that_fit(count):
    products, h = np.zeros((2, count, 8), np.float32), np.full((2, 8), 0.5, np.float32)
    c = np.ones((2, 8), np.float32) if count == 4 else None
    gates = core.RecurrentGates(products, h, c, 8)
    x, out = np.zeros_like(products), np.empty_like(h)
    gates.step(x, out)
    want = 0.5 * np.tanh(0.5) if count == 4 else 0.25
    assert np.abs(out - want).max() < 1e-6
    assert np.array_equal(out, h)
    for wrong in ((x[:1], out), (x, out[:, :4].copy())):
        with pytest.raises(ValueError, match=r"x|out"):
            gates.step(*wrong)
    for wrong in ((products[:, :2].copy(), h, c, 8), (products, h, c, 0), (products, h, c, 7)):
        with pytest.raises(ValueError, match=r"products|hidden|h"):
            core.RecurrentGates(*wrong)
    if c is not None:
        with pytest.raises(ValueError, match="c"):
            core.RecurrentGates(products, h, c[:1], 8)
