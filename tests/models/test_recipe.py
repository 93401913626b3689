"""Recipes: presets, patterns, overrides, and errors that name the line and the key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lowbit.models import PRESETS, ActivationRecipe, Override, Recipe, WeightRecipe, load_recipe
from lowbit.numerics.errors import InvalidProblem


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_found_however_they_are_spelt(name: str) -> None:
    for spelt in (name, name.lower(), name.upper(), name.replace("-", "_"), name.replace("_", "-")):
        assert Recipe.of(spelt) is PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_survives_its_own_text(name: str, tmp_path: Path) -> None:
    recipe = PRESETS[name].but(
        skip=["lm_head"],
        overrides=[
            Override("*.q", WeightRecipe("int2", group_size=16, method="mse"), ActivationRecipe(method="percentile:9")),
            Override("/[kv]_proj$/", activations=None),
            Override("*.out", skip=True, reason="it hurts"),
        ],
    )  # fmt: skip
    assert Recipe.of(recipe.to_dict()) == recipe
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(recipe.to_dict()))
    assert load_recipe(file) == recipe


def test_later_overrides_win_and_earlier_ones_fill() -> None:
    recipe = Recipe.of(
        {
            "preset": "static-int8",
            "overrides": [
                {"match": "*", "weights": {"dtype": "int4", "group_size": 32}},
                {"match": "b*", "activations": "float"},
                {"match": "bc", "weights": {"dtype": "uint4"}},
                {"match": "bd", "skip": True},
                {"match": "bde", "skip": True},
                {"match": "/^bde/", "skip": False},
            ],
        }
    )
    assert str(recipe.rule("a", "linear").weights) == "int4 symmetric, groups of 32"
    assert recipe.rule("a", "linear").activations == PRESETS["static-int8"].activations
    assert recipe.rule("b", "linear").activations is None
    assert str(recipe.rule("bc", "linear").weights) == "uint4 asymmetric, per channel"
    assert recipe.rule("bd", "linear").skip == "the recipe skips 'bd'"
    assert recipe.rule("bde", "linear").skip == ""


def test_small_weights_and_other_kinds_stay_unless_named() -> None:
    recipe = Recipe(kinds=("linear",), overrides=(Override("head"),))
    assert "leaves weights below 1024" in recipe.rule("a", "linear", 1023).skip
    assert recipe.rule("a", "linear", 1024).skip == ""
    assert recipe.rule("head", "linear", 8).skip == ""
    assert "this is embedding" in recipe.rule("a", "embedding").skip


def test_only_static_activations_need_data() -> None:
    assert [name for name, r in PRESETS.items() if r.needs_data] == ["static-int8"]
    assert Recipe.of("W8A16").but(overrides=[Override("a", activations=ActivationRecipe())]).needs_data


WRONG = {
    "unknown key": ("preset: W8A8\nweigths: {}\n", 2, "weigths"),
    "unknown preset": ("preset: W9A9\n", 1, "preset"),
    "preset is no text": ("preset: 8\n", 1, "preset"),
    "dtype": ("weights:\n  dtype: int5\n", 2, "weights.dtype"),
    "dtype without a meaning for weights": ("weights:\n  dtype: binary\n", 2, "weights.dtype"),
    "dtype is a number": ("weights:\n  dtype: 8\n", 2, "weights.dtype"),
    "scheme": ("weights:\n  dtype: int8\n  scheme: log\n", 3, "weights.scheme"),
    "symmetric and unsigned": ("weights:\n  dtype: uint8\n  scheme: symmetric\n", 3, "weights.scheme"),
    "group size 0": ("weights:\n  group_size: 0\n", 2, "weights.group_size"),
    "group size is a text": ("weights:\n  group_size: many\n", 2, "weights.group_size"),
    "group size is true": ("weights:\n  group_size: true\n", 2, "weights.group_size"),
    "groups without a size": ("weights:\n  granularity: group\n", 2, "weights.group_size"),
    "unknown weight key": ("weights:\n  bits: 4\n", 2, "weights.bits"),
    "weights are a text": ("weights: int8\n", 1, "weights"),
    "activation dtype": ("activations:\n  dtype: int4\n", 2, "activations.dtype"),
    "static tokens": ("activations:\n  granularity: token\n", 2, "activations.granularity"),
    "dynamic is a text": ("activations:\n  dynamic: maybe\n", 2, "activations.dynamic"),
    "method": ("activations:\n  method: guess\n", 2, "activations.method"),
    "percentile": ("activations:\n  method: percentile:x\n", 2, "activations.method"),
    "percentile beyond 100": ("activations:\n  method: percentile:101\n", 2, "activations.method"),
    "kinds": ("kinds: [linear, norm]\n", 1, "kinds"),
    "kinds are numbers": ("kinds: [1]\n", 1, "kinds"),
    "skip is a mapping": ("skip: {a: b}\n", 1, "skip"),
    "min_elements": ("min_elements: -1\n", 1, "min_elements"),
    "min_elements is true": ("min_elements: true\n", 1, "min_elements"),
    "overrides are a mapping": ("overrides: {a: b}\n", 1, "overrides"),
    "override without match": ("overrides:\n  - skip: true\n", 2, "overrides[0].match"),
    "override with a bad pattern": ("overrides:\n  - match: '*'\n  - match: /(/\n", 3, "overrides[1].match"),
    "override with an unknown key": ("overrides:\n  - match: a\n    dtype: int4\n", 3, "overrides[0].dtype"),
    "override's weights": (
        "overrides:\n  - match: a\n    weights:\n      dtype: no\n",
        4,
        "overrides[0].weights.dtype",
    ),
    "skip is a text": ("overrides:\n  - match: a\n    skip: please\n", 3, "overrides[0].skip"),
    "given twice": ("name: a\nname: b\n", 2, "name"),
    "no YAML": ("a: [1\nb: 2\n", 2, ""),
}


@pytest.mark.parametrize(("text", "line", "key"), WRONG.values(), ids=WRONG)
def test_an_error_names_the_line_and_the_key(text: str, line: int, key: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(InvalidProblem) as caught:
        Recipe.of(file)
    message = str(caught.value)
    assert f"recipe.yaml, line {line}: {key}" in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "[]", "just words", "5"])
def test_a_file_that_holds_no_mapping(text: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(InvalidProblem, match="expected a mapping"):
        Recipe.of(file)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidProblem, match="not text"):
        Recipe.of(file)


def test_a_name_that_is_neither_preset_nor_file() -> None:
    with pytest.raises(InvalidProblem, match=r"expected W8A8, .* or a \.yaml"):
        Recipe.of("W3A5")


def test_json_works_without_pyyaml_and_yaml_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in ("recipe.json", "recipe.yaml"):
        (tmp_path / name).write_text('{"preset": "W8A16", "weights": {"dtype": "int4"}}')
    assert Recipe.of(tmp_path / "recipe.json").weights.dtype == "int4"
    with pytest.raises(ModuleNotFoundError, match=r"lowbit\[cli\]"):
        Recipe.of(tmp_path / "recipe.yaml")
    (tmp_path / "bad.json").write_text('{"weights": {"dtype": "int5"}}')
    with pytest.raises(InvalidProblem, match=r"bad\.json: weights\.dtype: 'int5'"):
        Recipe.of(tmp_path / "bad.json")
