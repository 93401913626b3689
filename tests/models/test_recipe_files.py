"""Recipe files that nobody should have written: each is one InvalidProblem in one line, and quickly."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lowbit.models import ActivationRecipe, Override, Recipe, WeightRecipe, load_recipe
from lowbit.numerics.errors import InvalidProblem


def bomb(levels: int, width: int = 9) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join([*lines, f"skip: *a{levels - 1}"])


BAD_YAML: dict[str, tuple[str, str]] = {
    "an alias bomb": (bomb(12), "more than 10000"),
    "a bomb of mappings": (
        "\n".join(["a0: &a0 {k: v}"] + [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)]),
        "more than 10000|nested",
    ),
    "a list in itself": ("skip: &s [a, *s]", "nested"),
    "a mapping in itself": ("weights: &w\n  dtype: *w\n", "nested"),
    "deep lists": ("skip: " + "[" * 5000 + "]" * 5000, "nested"),
    "deep mappings": ("weights: " + "{a: " * 5000 + "1" + "}" * 5000, "nested"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(400)), "nested"),
    "an unknown tag": ("name: !magic x", "line 1.*!magic"),
    "an unknown tag on a mapping": ("weights: !magic {dtype: int8}", "line 1.*!magic"),
    "an unknown tag on a list": ("skip: !!python/tuple [a]", "line 1.*python/tuple"),
    "a Python object": ("name: !!python/object/apply:os.system [ls]", "python/object"),
    "a bad integer": ("min_elements: !!int many", "line 1.*many"),
    "a bad float": ("min_elements: !!float many", "line 1.*many"),
    "a bad truth": ("overrides:\n  - match: a\n    skip: !!bool many", "line 3.*many"),
    "bytes": ("name: !!binary aGVsbG8=", "line 1.*binary"),
    "bad bytes": ("name: !!binary '*'", "line 1.*binary"),
    "a set": ("skip: !!set {a, b}", "line 1.*set"),
    "an integer of 5,000 digits": ("min_elements: " + "9" * 5000, "line 1.*min_elements"),
    "a hexadecimal of 5,000 digits": ("min_elements: 0x" + "f" * 5000, "min_elements"),
    "a deep regular expression": (f"skip: ['/{'(' * 5000}a{')' * 5000}/']", "skip|match"),
    "a regular expression that repeats too often": ("skip: ['/a{99999999999999999999}/']", "regular expression"),
    "a number for a method": ("activations: {method: 3}", "line 1.*method: 3"),
    "a list for a method": ("activations: {method: [a]}", "method"),
    "a number for the weights' method": ("weights: {method: 3}", "method: 3"),
    "a number for a dtype": ("weights: {dtype: 8}", "dtype: 8"),
    "a list for a dtype": ("weights: {dtype: [int8]}", "dtype"),
    "a mapping for a scheme": ("weights: {scheme: {a: b}}", "scheme"),
    "a number for a match": ("overrides: [{match: 3}]", "match: 3"),
    "a list as a key": ("? [a, b]\n: c", "line 1"),
    "a list for the whole": ("- a\n- b", "expected a mapping"),
    "nothing": ("", "expected a mapping"),
    "two documents": ("name: a\n---\nname: b", "line"),
    "a control character": ("name: \x07", "r.yaml"),
    "bytes that are no text": ("\udcff", "not text"),
    "a megabyte": ("# " + "x" * 1_100_000, "bytes"),
    "very many entries": ("skip: [" + "a, " * 20_000 + "]", "more than 10000"),
    "a number in kinds": ("kinds: [3]", "kinds"),
    "overrides as a mapping": ("overrides: {match: a}", "list of mappings"),
}


@pytest.mark.parametrize("name", BAD_YAML)
def test_a_bad_recipe_file_is_one_error(name: str, tmp_path: Path) -> None:
    text, message = BAD_YAML[name]
    file = tmp_path / "r.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidProblem, match=message) as raised:
        load_recipe(file)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600 + len(str(file))


BAD_JSON: dict[str, tuple[str, str]] = {
    "a list": ("[]", "expected a mapping"),
    "a text": ('"W8A8"', "expected a mapping"),
    "deep lists": ('{"skip": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
    "an integer of 5,000 digits": ('{"min_elements": ' + "9" * 5000 + "}", "r.json"),
    "a key twice": ('{"name": "a", "name": "b"}', "name: given twice"),
    "cut short": ('{"name": ', "r.json"),
}


@pytest.mark.parametrize("with_yaml", [True, False])
@pytest.mark.parametrize("name", BAD_JSON)
def test_a_bad_json_recipe_is_one_error(
    name: str, with_yaml: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, message = BAD_JSON[name]
    file = tmp_path / "r.json"
    file.write_text(text)
    if not with_yaml:
        monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidProblem, match=message) as raised:
        load_recipe(file)
    assert "\n" not in str(raised.value)


def test_anchors_are_fine_in_moderation(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "weights: &w {dtype: int4, group_size: 32}\noverrides:\n" + "".join(
            f"  - {{match: 'layer.{i}', weights: *w}}\n" for i in range(300)
        )
    )  # fmt: skip
    recipe = load_recipe(file)
    assert len(recipe.overrides) == 300
    assert {o.weights for o in recipe.overrides} == {WeightRecipe("int4", group_size=32)}


def test_a_date_is_a_name_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    for text in ("2024-01-31", "2024-13-45", "2024-01-31 10:00:00"):
        file.write_text(f"name: {text}\n")
        assert load_recipe(file).name == text


# ---- the same in Python --------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    made: Any = "a"
    for _ in range(levels):
        made = [made]
    return made


def itself() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["weights"] = made
    return made


@pytest.mark.parametrize(
    "given",
    [
        [], [{"preset": "W8A8"}], 3, None, 2.5, b"W8A8", {"weights": 3}, {"weights": []}, {"activations": 3},
        {"activations": {"method": 3}}, {"activations": {"method": None}}, {"weights": {"dtype": None}},
        {"weights": {"dtype": 8}}, {"weights": {"group_size": "64"}}, {"skip": deep(5000)}, {"skip": [3]},
        {"overrides": [{"match": 3}]}, {"overrides": {"match": "a"}}, {"overrides": ["a"]}, {"kinds": 3},
        {"min_elements": 10**5000}, {"min_elements": True}, {"name": 3}, {3: 4}, itself(), {"activations": deep(3)},
    ],
    ids=lambda given: repr(type(given)),
)  # fmt: skip
def test_recipe_of_anything_else_is_an_invalid_problem(given: Any) -> None:
    with pytest.raises(InvalidProblem) as raised:
        Recipe.of(given)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightRecipe(3),
        lambda: WeightRecipe(None),
        lambda: WeightRecipe(scheme=["symmetric"]),
        lambda: WeightRecipe(method=3),
        lambda: ActivationRecipe(method=3),
        lambda: ActivationRecipe(dtype=[]),
        lambda: Override(3),
        lambda: Override("a", weights="int8"),
        lambda: Override("a", activations="float"),
        lambda: Override("a", skip="yes"),
        lambda: Override("/" + "(" * 5000 + "a" + ")" * 5000 + "/"),
        lambda: Recipe(name=3),
        lambda: Recipe(weights="int8"),
        lambda: Recipe(activations="uint8"),
        lambda: Recipe(overrides=[{"match": "a"}]),
        lambda: Recipe(overrides=3),
        lambda: Recipe(skip=3),
        lambda: Recipe(skip=[3]),
        lambda: Recipe().but(skip=3),
        lambda: Recipe().but(kinds=3),
        lambda: Recipe().but(weigths=3),
    ],
)
def test_fields_of_another_type_are_refused_when_the_recipe_is_made(make: Any) -> None:
    with pytest.raises(InvalidProblem):
        make()


def test_one_pattern_needs_no_list() -> None:
    assert Recipe(skip="lm_head").skip == ("lm_head",)
    assert Recipe(skip=["a"]).but(skip="lm_head").skip == ("a", "lm_head")
    assert Recipe().but(kinds="linear").kinds == ("linear",)
    assert json.loads(json.dumps(Recipe(skip="lm_head").to_dict()))["skip"] == ["lm_head"]
