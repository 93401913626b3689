"""Memory formats of quantized convolutions: images stay channels_last only where nothing can tell."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import lowbit.torch as lt  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import recipe  # noqa: E402

LAST, FIRST = torch.channels_last, torch.contiguous_format


def conv(stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, stride, 1)


class Block(nn.Module):
    """Two convolutions, and what comes in added where the shape stays."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(conv(stride), nn.BatchNorm2d(4), nn.ReLU6()), nn.Sequential(conv())
        self.stays = stride == 1

    def forward(self, x: Any) -> Any:
        y = F.relu(self.two(self.one(x)))
        return x + y if self.stays else y


class Net(nn.Module):
    def __init__(self, end: str = "flatten") -> None:
        super().__init__()
        self.stem, self.blocks = conv(), nn.Sequential(Block(), Block(2), Block())
        self.end = end

    def forward(self, x: Any) -> Any:
        y = self.blocks(torch.relu(self.stem(x)))
        if self.end == "flatten":
            return y.flatten(1)
        if self.end == "mean":
            return y.mean((2, 3))
        return y.view(y.shape[0], -1) if self.end == "view" else y


class Branching(nn.Module):
    """Not traced: the way depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(), Block(), conv())
        self.other = conv()

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return y.view(-1) if y.sum() > 1e9 else self.other(y)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(), conv()

    def forward(self, x: Any) -> Any:
        self.seen = self.a(x)
        return self.b(self.seen)


def quantized(model: nn.Module) -> tuple[Any, dict[str, Any]]:
    found = lt.quantize(model.eval(), recipe("dynamic-int8"))
    return found, {name: m.memory_format for name, m in found.named_modules() if isinstance(m, lt.QuantizedConv2d)}


def same_without_formats(found: nn.Module, x: Any) -> bool:
    y = found(x)
    for m in found.modules():
        if isinstance(m, lt.QuantizedConv2d):
            m.memory_format = None
    return bool(torch.equal(found(x), y))


@pytest.mark.parametrize("end", ["flatten", "mean"])
def test_images_stay_channels_last_through_blocks_sums_and_functions(end: str) -> None:
    torch.manual_seed(0)
    found, formats = quantized(Net(end))
    assert len(formats) == 7
    assert set(formats.values()) == {LAST}
    assert found(torch.randn(2, 4, 8, 8)).is_contiguous()
    if end == "flatten":
        assert same_without_formats(found, torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("end", ["view", "images"])
def test_what_may_see_the_format_gets_contiguous_images(end: str) -> None:
    torch.manual_seed(0)
    found, formats = quantized(Net(end))
    # The last sum takes what the convolution in its block gives, and what the block before gives.
    assert [name for name, f in formats.items() if f is FIRST] == ["blocks.1.two.0", "blocks.2.two.0"]
    assert found(torch.randn(2, 4, 8, 8)).is_contiguous()
    assert same_without_formats(found, torch.randn(2, 4, 8, 8))


def test_parts_of_a_model_that_cannot_be_traced_are_looked_at_one_by_one() -> None:
    torch.manual_seed(0)
    found, formats = quantized(Branching())
    assert formats == {"body.0": LAST, "body.1.one.0": LAST, "body.1.two.0": LAST, "body.2": FIRST, "other": None}
    assert same_without_formats(found, torch.randn(2, 4, 8, 8))


def test_what_a_model_keeps_as_it_is_traced_is_forgotten() -> None:
    model = Remembering()
    found, formats = quantized(model)
    assert formats == {"a": LAST, "b": FIRST}
    assert "seen" not in vars(model)
    assert "seen" not in vars(found)


def test_a_sequential_with_a_part_that_cannot_be_traced() -> None:
    found, formats = quantized(nn.Sequential(conv(), nn.ReLU(), conv(), Branching(), conv(), nn.Flatten()))
    assert (formats["0"], formats["2"], formats["4"]) == (LAST, FIRST, LAST)
    assert same_without_formats(found, torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", [LAST, FIRST])
@pytest.mark.parametrize("made", [LAST, FIRST, None])
def test_results_may_be_written_to(made: Any, given: Any, dtype: Any) -> None:
    torch.manual_seed(0)
    module = lt.QuantizedConv2d.from_float(nn.Conv2d(3, 8, 3))
    module.memory_format = made
    x = torch.randn(2, 3, 6, 5).to(dtype).to(memory_format=given)
    for grad in (False, True):
        y = module(x.clone().requires_grad_(grad))
        expected = torch.relu(y.detach())
        assert y.is_contiguous(memory_format=given if made is None else made)
        assert torch.equal(y.detach().relu_(), expected)
        with torch.no_grad():
            assert torch.equal(torch.relu_(module(x)), expected)
        assert torch.equal(torch.relu_(y).detach(), expected)
