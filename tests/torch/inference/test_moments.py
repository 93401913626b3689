"""lowbit.torch.observe_moments: the rows that layers multiply, and exact moments of them however they are given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit.calibration import Moments  # noqa: E402
from lowbit.numerics.errors import InvalidProblem  # noqa: E402
from lowbit.torch.inference import layer_rows  # noqa: E402
from lowbit.torch.inference.layer_rows import rows_of  # noqa: E402
from torch import Tensor, nn  # noqa: E402

CONVOLUTIONS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 7, 6)),
    "pointwise": (lambda: nn.Conv2d(3, 4, 1), (2, 3, 4, 4)),
    "groups, strides": (lambda: nn.Conv2d(6, 9, (3, 2), stride=(2, 1), padding=(1, 2), groups=3), (2, 6, 7, 5)),
    "depthwise, dilated": (lambda: nn.Conv2d(4, 8, 3, dilation=(2, 1), groups=4), (1, 4, 9, 8)),
    "same": (lambda: nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 2)), (2, 2, 5, 8)),
    "valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 2, 5, 6)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"), (2, 2, 5, 6)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 5, 6)),
    "unbatched": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "one dimension": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 9)),
    "one dimension, same": (lambda: nn.Conv1d(4, 6, 4, padding="same"), (3, 4, 9)),
    "one dimension, replicate": (lambda: nn.Conv1d(4, 2, 3, padding=2, padding_mode="replicate"), (3, 4, 9)),
    "one dimension, unbatched": (lambda: nn.Conv1d(4, 2, 3, dilation=2), (4, 9)),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def integers(*shape: int, most: int = 9) -> Tensor:
    return torch.randint(-most, most + 1, shape).float()


def state(m: Moments) -> tuple[Any, ...]:
    arrays, about = m.to_arrays()
    return {name: a.tolist() for name, a in arrays.items()}, about


def gram_of(rows: Any, weights: Any = None) -> Any:
    x = np.asarray(rows, np.float64).reshape(-1, rows.shape[-1])
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64).reshape(-1)
    return (x * w[:, None]).T @ x / w.sum()


def observed(model: nn.Module, batches: Any, **options: Any) -> dict[str, Moments]:
    return lt.observe_moments(model, batches, progress=False, **options)


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("nbytes", [32 << 20, 90], ids=["one block", "blocks of a line"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_rows_of_a_convolution_times_its_weight_are_its_output(
    case: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_rows, "_NBYTES", nbytes)
    make, shape = CONVOLUTIONS[case]
    conv, x = make().requires_grad_(False), integers(*shape)
    conv.weight.copy_(integers(*conv.weight.shape))
    conv.bias.zero_()
    blocks = [rows for rows, _ in rows_of(conv, x)]
    assert (len(blocks) > 1) is (nbytes == 90 and case != "one dimension, unbatched")
    width = conv.weight[0].numel()
    rows = torch.cat([b.reshape(-1, conv.groups, width) for b in blocks])
    weight = conv.weight.reshape(conv.groups, -1, width)
    output = conv(x)
    batched = output if x.ndim == conv.weight.ndim else output.unsqueeze(0)
    by_channel = torch.einsum("rgw,gow->rgo", rows, weight).reshape(len(rows), -1)
    assert torch.equal(by_channel, batched.flatten(2).transpose(1, 2).reshape(len(rows), -1))
    moments = observed(nn.Sequential(conv), [x])["0"]
    assert (moments.count, moments.groups, moments.width) == (len(rows), conv.groups, width)
    expected = np.stack([gram_of(rows[:, g].numpy()) for g in range(conv.groups)])
    assert np.array_equal(moments.gram().reshape(expected.shape), expected)


def test_rows_of_a_linear_layer_are_its_inputs() -> None:
    x = integers(2, 3, 5)
    m = observed(nn.Linear(5, 4), [x.transpose(0, 1), x[:1]])[""]
    assert m.name == "model"
    assert m.count == 9
    assert np.array_equal(m.gram(), gram_of(torch.cat([x, x[:1]]).numpy()))
    assert not observed(nn.Linear(5, 4), [x], gram=False)[""].has_gram


def test_the_transposed_linear_layer_of_transformers() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nf, self.weight = 3, nn.Parameter(torch.zeros(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    x = integers(4, 5)
    assert np.array_equal(observed(nn.Sequential(Conv1D()), [x])["0"].gram(), gram_of(x.numpy()))


def test_products_by_the_inputs_of_recurrent_layers_and_attention() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 8, num_layers=2, bidirectional=True)
            self.attention = nn.MultiheadAttention(4, 2, kdim=6, vdim=5)

        def forward(self, x: Tensor, k: Tensor, v: Tensor) -> Any:
            return self.lstm(x), self.attention(x, value=v, key=k)

    x, k, v = integers(3, 2, 4), integers(3, 2, 6), integers(3, 2, 5)
    found = observed(Mixed().eval(), [(x, k, v)])
    assert set(found) == {"lstm.ih_l0", "lstm.ih_l0_reverse", *(f"attention.{p}_proj" for p in "qkv")}
    for name, given in {"lstm.ih_l0": x, "attention.q_proj": x, "attention.k_proj": k, "attention.v_proj": v}.items():
        assert np.array_equal(found[name].gram(), gram_of(given.numpy())), name
    assert found["lstm.ih_l0"] is found["lstm.ih_l0_reverse"] is found["attention.q_proj"]
    packed = nn.utils.rnn.pack_sequence([integers(3, 4), integers(1, 4)])
    assert observed(nn.Sequential(nn.GRU(4, 8)), [packed])["0.ih_l0"].count == 4


# ---- shared inputs --------------------------------------------------------------------------------------------------


class Script(nn.Module):
    """Layers called on tensors as a script says: what[i] lists (layer, tensor, change before the call) of batch i."""

    def __init__(self, *what: list[tuple[str, str, int]]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 4), nn.Linear(3, 1)
        self.what, self.at = what, 0

    def forward(self, x: Tensor, y: Tensor) -> None:
        for layer, tensor, change in self.what[self.at]:
            given = {"x": x, "y": y}[tensor]
            if change:
                given += change
            getattr(self, layer)(given)
        self.at += 1


TOGETHER = [("a", "x", 0), ("b", "x", 0), ("c", "x", 0)]
SCRIPTS = {
    "always the same": ([TOGETHER, TOGETHER], ["abc"]),
    "changed in place before the second": ([[("a", "x", 0), ("b", "x", 1), ("c", "x", 0)], TOGETHER], ["a", "bc"]),
    "changed in place later": ([TOGETHER, [("a", "x", 0), ("b", "x", 1), ("c", "x", 0)]], ["a", "bc"]),
    "one is given another later": ([TOGETHER, [("a", "x", 0), ("b", "y", 0), ("c", "x", 0)]], ["a", "b", "c"]),
    "one is left out later": ([TOGETHER, TOGETHER[:2]], ["ab", "c"]),
    "called twice": ([[*TOGETHER, ("a", "y", 0), ("b", "y", 0)], TOGETHER], ["ab", "c"]),
    "called twice on the same": ([[("a", "x", 0), ("a", "x", 0), ("b", "x", 0)], TOGETHER], ["a", "b", "c"]),
    "first reached later": ([TOGETHER[:2], TOGETHER], ["ab", "c"]),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_layers_share_moments_while_they_are_given_the_same_tensors(script: str) -> None:
    what, shared = SCRIPTS[script]
    batches = [(integers(4, 3), integers(4, 3)) for _ in what]
    rows: dict[str, list[Any]] = {}
    for calls, batch in zip(what, batches, strict=True):
        now = {"x": batch[0].numpy().copy(), "y": batch[1].numpy().copy()}
        for layer, tensor, change in calls:
            now[tensor] += change
            rows.setdefault(layer, []).append(now[tensor].copy())
    found = observed(Script(*what), batches)
    assert set(found) == set(rows)
    for layer, given in rows.items():
        assert found[layer].count == 4 * len(given)
        assert np.array_equal(found[layer].gram(), gram_of(np.concatenate(given))), layer
    for one, other in itertools.combinations(sorted(rows), 2):
        assert (found[one] is found[other]) is any(one in group and other in group for group in shared), (one, other)


def test_layers_that_cut_other_rows_of_one_tensor_do_not_share() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 5, 3)

        def forward(self, x: Tensor) -> None:
            self.one(x), self.two(x), self.three(x)

    found = observed(Two(), [integers(1, 2, 5, 5)])
    assert found["one"] is found["three"]
    assert found["one"] is not found["two"]


def test_tensors_of_inference_mode_may_change_unseen_and_are_not_shared() -> None:
    with torch.inference_mode():
        x, y = integers(4, 3), integers(4, 3)
        before = x.numpy().copy()
        found = observed(Script([("a", "x", 0), ("b", "x", 1)]), [(x, y)])
    assert np.array_equal(found["a"].gram(), gram_of(before))
    assert np.array_equal(found["b"].gram(), gram_of(before + 1))


# ---- equal bits -----------------------------------------------------------------------------------------------------


def test_order_and_split_of_batches_do_not_change_a_bit() -> None:
    """Of a first layer, whose inputs are the data; torch's own sums depend on the size of a batch."""
    x = torch.randn(24, 2, 6, 6) * torch.logspace(-3, 3, 24)[:, None, None, None]
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten())
    expected = state(observed(model, [x])["0"])
    shuffled = x[torch.randperm(24)]
    for batches in (x.split(7), x.split(5)[::-1], shuffled.split(1), [x[:20], x[20:]]):
        assert state(observed(model, batches)["0"]) == expected


def test_a_generator_is_read_once_and_the_model_is_as_before() -> None:
    def stream() -> Iterator[Tensor]:
        yield from (torch.ones(2, 3), torch.zeros(1, 3))

    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).eval()
    assert observed(model, stream())["1"].diagonal().tolist() == [2 / 3] * 3
    assert not model.training
    assert not any(m._forward_pre_hooks for m in model.modules())


# ---- weights of rows ------------------------------------------------------------------------------------------------


def test_weights_of_tokens_of_images_and_of_flat_rows() -> None:
    x, mask = integers(2, 3, 4), torch.tensor([[4, 1, 0], [4, 0, 0]])  # roots of weights are exact
    x[1, 1:] = float("nan")  # padding counts for nothing, whatever is in it

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.flat, self.pooled = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> None:
            self.tokens(x), self.flat(x.flatten(0, 1)), self.pooled(x[:, 0])

    kept, counted = [x[0, 0], x[0, 1], x[1, 0]], [4, 1, 4]
    for given in ({"weights": "mask", "inputs": "x"}, {"weights": lambda batch: batch["mask"].float(), "inputs": "x"}):
        found = observed(Flattened(), [{"x": x, "mask": mask}], **given)
        for name in ("tokens", "flat"):
            assert found[name].weight == 9
            assert np.array_equal(found[name].gram(), gram_of(torch.stack(kept).numpy(), counted))
        assert found["pooled"].weight == 2, "of other leading dimensions than the mask"
    images, each = integers(3, 2, 4, 4), torch.tensor([4.0, 0.25, 0.0])
    conv = nn.Sequential(nn.Conv2d(2, 3, 3))
    found = observed(conv, [(images, each)], weights=lambda batch: batch[1])
    expected = [4 * observed(conv, [images[:1]])["0"].gram(), 0.25 * observed(conv, [images[1:2]])["0"].gram()]
    assert np.array_equal(found["0"].gram(), sum(expected) / 4.25)


def test_weights_that_a_batch_does_not_have() -> None:
    with pytest.raises(InvalidProblem, match=r"^weights: 'mask'; a batch has 'input'$"):
        observed(nn.Linear(2, 2), [{"input": torch.ones(1, 2)}], weights="mask")


# ---- what cannot be observed ----------------------------------------------------------------------------------------


def test_nan_activations_name_the_layer_and_the_batch() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    good, bad = torch.ones(1, 3, 3), torch.ones(1, 3, 3)
    bad[0, 2, 1] = float("nan")
    with pytest.raises(InvalidProblem, match=r"^batch 1, input of 0: nan at index \(0, 2, 1\); moments need finite"):
        observed(model, [good, bad])
    with pytest.raises(InvalidProblem, match=r"^batch 0, input of 1: nan at index \(0, 2, 1\)"):
        observed(nn.Sequential(nn.Identity(), nn.Conv1d(3, 2, 2)), [bad])  # an index of the input, not of its patches
    with pytest.raises(InvalidProblem, match=r"^batch 0, input of 0: 1999999991808.0 at .*the activations diverge"):
        observed(nn.Sequential(nn.Linear(1, 1)), [torch.tensor([[2e12]])])


def test_layers_that_no_batch_reached_are_left_out() -> None:
    with pytest.raises(InvalidProblem, match="no layer to observe"):
        observed(nn.Sequential(nn.ReLU(), nn.LazyLinear(3)), [torch.ones(1, 2)])
    with pytest.raises(InvalidProblem, match="no batches"):
        observed(nn.Linear(2, 2), [])
    with pytest.raises(InvalidProblem, match=r"expected a torch\.nn\.Module"):
        observed(lambda x: x, [torch.ones(1, 2)])  # type: ignore[arg-type]

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.used(x[:0] if x[0, 0] > 0 else x))

    assert set(observed(Part(), [torch.zeros(1, 2), torch.ones(1, 2)])) == {"used", "other"}
    assert set(observed(Part(), [torch.zeros(1, 2)], modules=lambda name, _: name != "used")) == {"other"}
