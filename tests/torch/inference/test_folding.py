"""Activations that quantized convolutions include: which ones, and that no bit changes."""

from __future__ import annotations

from typing import Any

import pytest

import lowbit as lb

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import lowbit.torch as lt  # noqa: E402
from lowbit.numerics.metrics import error_report  # noqa: E402
from lowbit.torch.inference.folding import Folded  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import mobilenet, recipe  # noqa: E402


class Block(nn.Module):
    """Each activation stands alone behind a convolution, or behind its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU6(inplace=True))
        self.two, self.relu = nn.Conv2d(6, 6, 3, groups=6), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.two(self.one(x)))


class Functional(Block):
    """The same without modules for activations, which cannot be folded."""

    def forward(self, x: Any) -> Any:
        return F.relu(self.two(F.relu6(self.one[1](self.one[0](x)))))


class Tapped(Block):
    """The convolutions' own results are read, too."""

    def forward(self, x: Any) -> Any:
        y = self.one[0](x)
        z = self.two(self.one[2](self.one[1](y)))
        return self.relu(z), z, y


class Shared(Block):
    def forward(self, x: Any) -> Any:
        return self.relu(self.two(self.relu(self.one[1](self.one[0](x)))))


class Listening(Block):
    def __init__(self) -> None:
        super().__init__()
        self.relu.register_forward_hook(lambda module, given, y: y + 1)


class Untraced(Block):
    """A loop over a Sequential may take what its modules pass on."""

    def forward(self, x: Any) -> Any:
        if x.sum() > 1e9:
            return x
        return super().forward(x)


def folded(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, Folded)]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Block, ["one.1", "one.2", "relu"]),
        (Functional, ["one.1"]),
        (Shared, ["one.1"]),
        (Listening, ["one.1", "one.2"]),
        (Untraced, ["one.1"]),
    ],
)
def test_activations_that_certainly_follow_one_convolution_are_folded(make: Any, names: list[str]) -> None:
    torch.manual_seed(0)
    assert folded(lt.quantize(make(), recipe("dynamic-int8"))) == names
    assert folded(lt.quantize(make(), recipe("dynamic-int8"), fold_norms=False)) == []


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.body(self.body(x))


def test_what_others_read_is_neither_scaled_nor_clamped() -> None:
    torch.manual_seed(0)
    model = Tapped().eval()
    with torch.no_grad():
        model.one[1].running_mean.normal_()
    found = lt.quantize(model, recipe("dynamic-int8"))
    assert folded(found) == []
    x = torch.randn(1, 3, 8, 8)
    for y, expected in zip(found(x), model(x), strict=True):
        assert error_report(expected.detach().numpy(), y.detach().numpy()).sqnr_db > 25


def test_modules_that_are_called_twice_are_folded_where_they_follow_each_time() -> None:
    found = lt.quantize(Twice(), recipe("dynamic-int8"))
    assert folded(found) == ["body.1", "body.2"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rules", ["dynamic-int8", "static-int8", "W8A8"])
def test_folded_activations_change_no_bit(rules: str, dtype: Any) -> None:
    torch.manual_seed(0)
    one, other = Block().eval(), Functional().eval()
    other.load_state_dict(one.state_dict())
    batches = [4 * torch.randn(2, 3, 9, 9) for _ in range(2)]
    with torch.no_grad():
        made = [
            lt.quantize(m, recipe(rules), calibration=batches, optimize="size", progress=False) for m in (one, other)
        ]
        y, expected = (m(batches[0].to(dtype)) for m in made)
        assert torch.equal(y, expected)
        assert (y == 0).any()
        assert torch.equal(made[0](batches[0].to(dtype).to(memory_format=torch.channels_last)), expected)


def test_a_row_convolution_takes_its_activation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU())
    found, plain = (lt.quantize(model, recipe("W8A8"), fold_norms=fold) for fold in (True, False))
    x = torch.randn(2, 3, 9)
    assert folded(found) == ["1"]
    assert torch.equal(found(x), plain(x))


def test_a_state_dict_keeps_what_was_folded() -> None:
    torch.manual_seed(0)
    found = lt.quantize(mobilenet(), recipe("dynamic-int8"))
    again = lt.load_quantized(mobilenet(), found.state_dict())
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(x), found(x))
    assert folded(again) == folded(found)
    assert (again[0].layer.clamp, again[2]) == ((0.0, 6.0), again[2])
    assert "clamp=(0.0, 6.0)" in repr(again[0])
    other = mobilenet()
    other[2] = nn.Sigmoid()
    with pytest.raises(lb.FormatError, match=r"^2: a folded batch norm or activation; the model has Sigmoid there"):
        lt.load_quantized(other, found.state_dict())
