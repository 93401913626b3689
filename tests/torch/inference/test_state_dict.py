"""Quantized models of torch kept and copied: state_dict, safetensors, pickles, copies, torch.compile."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lowbit as lb

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit.models import Override, Recipe  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import recipe  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def everything() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.small = nn.Embedding(20, 12), nn.Embedding(5, 12)
            self.rows = nn.Conv1d(12, 6, 3, padding=1)
            self.images = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
            self.norm, self.out = nn.LayerNorm(12), nn.Linear(12, 7)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.small(ids % 5)
            y = self.rows(x.transpose(1, 2)).unsqueeze(1)
            return self.out(self.norm(x)), self.images(y)

    return Net().eval()


def all_equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


RULES = {
    "static-int8": {},
    "W8A8": {},
    "mixed": {
        "preset": "W8A8", "min_elements": 0,
        "overrides": [
            {"match": "words", "weights": {"dtype": "int4", "group_size": 5}},
            {"match": "out", "weights": {"dtype": "uint4", "scheme": "asymmetric", "group_size": 4},
             "activations": None},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_state_dict_is_plain_tensors_and_makes_the_same_model_again(
    name: str, fast: list[Any], tmp_path: Path
) -> None:
    ids = torch.randint(0, 20, (2, 9))
    rules = Recipe.of(RULES[name]) if RULES[name] else recipe(name)
    rules = replace(rules, overrides=(Override("words"), Override("small"), *rules.overrides))  # tables are saved, too
    found = lt.quantize(everything(), rules, calibration=[ids], progress=False)
    expected = found(ids)
    state = found.state_dict()
    assert all(isinstance(v, torch.Tensor) for v in state.values())
    path = tmp_path / "model.pt"
    torch.save(state, path)
    again = lt.load_quantized(everything(), torch.load(path, weights_only=True))
    assert all_equal(again(ids), expected)
    with torch.device("meta"):
        skeleton = everything()
    assert all_equal(lt.load_quantized(skeleton, state)(ids), expected)
    other = lt.quantize(everything(), rules, calibration=[ids], progress=False)
    assert not all_equal(other(ids), expected)
    other.load_state_dict(state)
    assert all_equal(other(ids), expected)


def test_safetensors_keep_a_state_dict(tmp_path: Path, fast: list[Any]) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    ids = torch.randint(0, 20, (2, 9))
    found = lt.quantize(everything(), recipe("W8A8"), example=ids)
    safetensors.save_file(found.state_dict(), tmp_path / "model.safetensors")
    again = lt.load_quantized(everything(), safetensors.load_file(tmp_path / "model.safetensors"))
    assert all_equal(again(ids), found(ids))


def test_copies_and_pickles_give_the_same_and_keep_the_report(fast: list[Any]) -> None:
    ids = torch.randint(0, 20, (2, 9))
    found = lt.quantize(everything().images, recipe("static-int8"), calibration=[torch.randn(1, 1, 5, 5)])
    file = io.BytesIO()
    pickle.dump(found, file)
    x = torch.randn(2, 1, 5, 5)
    for twin in (copy.deepcopy(found), pickle.loads(file.getvalue())):
        assert torch.equal(twin(x), found(x))
        assert lt.report(twin).to_dict() == lt.report(found).to_dict()
        assert twin[0].number != found[0].number
    root = lt.quantize(nn.Linear(8, 8), recipe("W8A8"))
    assert lt.report(copy.deepcopy(root)).rows == lt.report(root).rows
    assert all_equal(copy.deepcopy(everything())(ids), everything()(ids)) is False


def test_a_compiled_model_is_whole_and_gives_the_same_bits(fast: list[Any]) -> None:
    ids = torch.randint(0, 20, (2, 9))
    for name in ("W8A8", "static-int8"):
        found = lt.quantize(everything(), recipe(name), calibration=[ids], progress=False)
        torch._dynamo.reset()
        compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            assert all_equal(compiled(ids), found(ids))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s: s.pop("0.weight_scale"), r"0\.weight_scale: missing"),
        (lambda s: s.update({"0.lowbit": torch.tensor([1, 2], dtype=torch.uint8)}), r"0\.lowbit: not JSON"),
        (lambda s: s.update({"0.lowbit": torch.zeros(3)}), r"0\.lowbit: expected a row of bytes"),
        (lambda s: s.update({"0.weight_codes": s["0.weight_codes"][:, :5]}), r"^0: "),
        (lambda s: s.update({"0.weight_codes": s["0.weight_codes"].float()}), r"^0: "),
        (lambda s: s.update({"0.weight_scale": s["0.weight_scale"].double()}), r"^0: scale"),
        (lambda s: s.update({"0.weight_scale": -s["0.weight_scale"]}), r"^0: "),
        (lambda s: s.update({"9.lowbit": s["0.lowbit"]}), r"no module '9'"),
        (lambda s: s.pop("1.weight"), r"missing 1\.weight"),
        (lambda s: s.update({"7.weight": torch.ones(1)}), r"unexpected 7\.weight"),
        (lambda s: s.update({"1.lowbit": s["0.lowbit"]}), r"^1"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(spoil: Any, said: str) -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    state = dict(lt.quantize(network(), recipe("W8A8")).state_dict())
    spoil(state)
    with pytest.raises(lb.FormatError, match=said):
        lt.load_quantized(network(), state)


def test_loading_into_a_quantized_model_says_what_does_not_fit() -> None:
    named = recipe("W8A8", overrides=[Override("1")])
    found = lt.quantize(nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8)), named)
    wider = lt.quantize(nn.Sequential(nn.Linear(9, 8), nn.Embedding(5, 8)), named)
    with pytest.raises(RuntimeError, match=r"(?s)0: QuantizedLinear\(in=9.*1\.weight: \(5, 8\)"):
        found.load_state_dict(wider.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"0.lowbit\""):
        found.load_state_dict({k: v for k, v in found.state_dict().items() if not k.startswith("0.")})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        found.load_state_dict({**found.state_dict(), "0.more": torch.ones(1)})
