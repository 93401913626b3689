"""lowbit.runtime.files.json_members takes exactly what json takes, and finds the same in it."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.runtime.files.json_members import Members, decoded, unique_keys

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


def by_members(text: str) -> dict[str, object]:
    """The object, one member at a time; ValueError as json raises it."""
    found: dict[str, object] = {}
    members = Members(text)
    for name, begin, end in members:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = json.loads(text[begin:end], object_pairs_hook=unique_keys)
        assert found[name] == decoded(text, begin) or found[name] != found[name]
    members.refuse_more()
    return found


def by_json(text: str) -> dict[str, object]:
    found = json.loads(text, object_pairs_hook=unique_keys)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_every_object_is_found_whole(value, indent, ascii_only):
    text = f" \n{json.dumps(value, indent=indent, ensure_ascii=ascii_only)}\r\t "
    assert by_members(text) == value


PARTS = ["{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "a", '"a"', '"b"', "1", "-", ".5", "true", "nul",
         "\\u00e9", "NaN", "\ud800", "\x00", "é", "{}", "[]"]  # fmt: skip


def test_what_json_refuses_is_refused_and_nothing_else():
    rng, taken = random.Random(0), 0
    sound = '{"a": {"b": [1, 2.5e3, "x\\"}", null]}, "c": "]", "d": [], "": {}}'
    for _ in range(2000):
        text = list(sound)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choice(PARTS)
        made = "".join(text)
        try:
            expected = by_json(made)
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                by_members(made)
        else:
            assert repr(by_members(made)) == repr(expected)
            taken += 1
    assert 100 < taken < 1700


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{} {}", "{,}", "x{}"]
)
def test_short_texts_that_are_no_object(text):
    with pytest.raises(ValueError, match=r"."):
        by_members(text)
