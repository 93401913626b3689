"""An equalized model computes what it did, to the bit, and its channels have like ranges on both sides."""

import numpy as np
import pytest
import torch.nn.functional as F

import lowbit as lb
import torch
from lowbit.torch.inference.equalization import ChannelReLU6, equalize, find_pairs
from torch import nn


def spread(model: nn.Module) -> nn.Module:
    """Batch norms and weights whose channels differ by orders of magnitude, as those of trained MobileNets do."""
    generator = torch.Generator().manual_seed(1)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.running_mean.normal_(generator=generator)
            m.running_var.uniform_(0.01, 4, generator=generator)
            if m.weight is not None:
                m.weight.data.log_normal_(0, 1.5, generator=generator)
                m.bias.data.normal_(generator=generator)
        elif isinstance(m, nn.Conv1d | nn.Conv2d | nn.Linear):
            sizes = torch.empty(len(m.weight)).log_normal_(0, 1.5, generator=generator)
            m.weight.data.mul_(sizes.reshape(-1, *[1] * (m.weight.ndim - 1)))
    return model.eval()


def mobile(act=nn.ReLU6) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), act(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), act(),
        nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12, affine=False), act(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12 * 9, 5), nn.ReLU(), nn.Linear(5, 4),
    )  # fmt: skip


class Functional(nn.Module):
    """Functions between layers, and a sum that reads a layer beside the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv1d(i, o, 3, padding=1) for i, o in ((2, 6), (6, 6), (6, 6)))
        self.d = nn.Linear(6 * 4, 3)

    def forward(self, x):
        y = F.relu(self.b(F.leaky_relu(self.a(x), 0.2)))
        return self.d(torch.flatten(F.relu(y + self.c(y)), 1))


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Identity])
def test_outputs_are_the_same_to_the_bit(act):
    torch.manual_seed(0)
    model = spread(mobile(act))
    made = equalize(model)
    x = torch.randn(16, 3, 8, 8)
    assert len(find_pairs(model)) == 4
    assert not torch.equal(model[3].weight, made[3].weight)
    with torch.no_grad():
        assert torch.equal(model(x), made(x))
        assert torch.equal(model(x[0:1]), equalize(made)(x[0:1]))


def test_ranges_meet_and_a_second_time_changes_nothing():
    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 4)))
    made = equalize(model)
    first, second = (made[i].weight.detach().abs() for i in (0, 2))
    ratio = first.amax(1) / second.amax(0)
    assert float(ratio.min()) >= 0.4999
    assert float(ratio.max()) <= 2.0001
    again = equalize(made)
    assert all(torch.equal(p, q) for p, q in zip(made.parameters(), again.parameters(), strict=True))
    before = model[0].weight.detach().abs().amax(1) / model[2].weight.detach().abs().amax(0)
    assert float(before.max() / before.min()) > 20


def test_clamps_are_divided_with_their_channels():
    torch.manual_seed(0)
    made = equalize(spread(mobile()))
    clamps = [m for m in made.modules() if isinstance(m, ChannelReLU6)]
    assert clamps
    assert all(c.bound.shape[1:] == (1, 1) and len(c.bound.unique()) > 1 for c in clamps)
    assert all((np.log2(6 / c.bound.double().numpy()) % 1 == 0).all() for c in clamps)


def test_functions_end_a_pair_unless_they_scale_with_their_input():
    torch.manual_seed(0)
    model = spread(Functional())
    assert [(pair.first, pair.second) for pair in find_pairs(model)] == [("a", "b")]
    x = torch.randn(3, 2, 4)
    with torch.no_grad():
        assert torch.equal(model(x), equalize(model)(x))


@pytest.mark.parametrize(
    "between",
    [[nn.GELU()], [nn.Tanh()], [nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8)], [nn.Hardswish()], [nn.LayerNorm(6)]],
    ids=lambda b: type(b[-1]).__name__,
)
def test_what_does_not_scale_with_its_input_is_left_alone(between):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *between, nn.Conv2d(8, 4, 3))
    assert find_pairs(model) == []


def test_layers_that_are_used_twice_or_share_a_weight_are_left_alone():
    conv = nn.Conv2d(4, 4, 1)
    assert find_pairs(nn.Sequential(conv, nn.ReLU(), conv)) == []
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert find_pairs(tied) == []
    pooled = nn.Sequential(nn.Linear(4, 6), nn.AvgPool1d(1), nn.Linear(6, 2))  # pools over what a linear layer gives
    assert find_pairs(pooled) == []


def test_a_norm_of_each_batch_ends_a_pair():
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    assert find_pairs(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 4, 3))) == []


def test_the_model_itself_changes_only_in_place():
    model = spread(mobile())
    before = {name: t.clone() for name, t in model.state_dict().items()}
    equalize(model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert equalize(model, inplace=True) is model
    assert not torch.equal(model[3].weight, before["3.weight"])
    with pytest.raises(lb.InvalidProblem, match=r"expected a torch\.nn\.Module"):
        equalize("model")
