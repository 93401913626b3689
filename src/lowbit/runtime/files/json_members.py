"""JSON objects read a member at a time: memory stays near the size of the text, whatever is nested in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_BRACKETS = re.compile(r'["\[\]{}]')


class Members:
    """The members of the object that begins at `end`, as (name, where the value begins, where it ends).

    No value is decoded: each can be judged by its length and first character before. Afterwards `end` is where the
    object ends. ValueError where the text is no JSON; a value that is an array or object has balanced brackets, and
    the rest of its grammar is left to whoever decodes it.

    >>> text = '{"a": [1, {}], "b": "x"}'
    >>> [(name, text[begin:end]) for name, begin, end in Members(text)]
    [('a', '[1, {}]'), ('b', '"x"')]
    """

    def __init__(self, text: str, begin: int = 0) -> None:
        self.text, self.end = text, begin

    @property
    def begins(self) -> bool:
        """Whether an object begins here at all."""
        at = self._skip_space(self.end)
        return self.text[at : at + 1] == "{"

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        at = self._expect("{", self.end)
        if self.text[at : at + 1] == "}":
            self.end = at + 1
            return
        while True:
            if self.text[at : at + 1] != '"':
                raise ValueError(f"expected a name at character {at}")
            name, at = _DECODER.raw_decode(self.text, at)
            begin = self._expect(":", at)
            at = _value_end(self.text, begin)
            yield name, begin, at
            at = self._skip_space(at)
            if self.text[at : at + 1] == "}":
                self.end = at + 1
                return
            at = self._expect(",", at)

    def refuse_more(self) -> None:
        """Raises where the text goes on after the object."""
        if self._skip_space(self.end) != len(self.text):
            raise ValueError(f"more text at character {self.end}")

    def _expect(self, character: str, at: int) -> int:
        at = self._skip_space(at)
        if self.text[at : at + 1] != character:
            raise ValueError(f"expected {character!r} at character {at}")
        return self._skip_space(at + 1)

    def _skip_space(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        assert found is not None
        return found.end()


def decoded(text: str, begin: int) -> Any:
    """The value that begins here, decoded without a copy of its text."""
    return _DECODER.raw_decode(text, begin)[0]


def _value_end(text: str, at: int) -> int:
    if text[at : at + 1] not in ("{", "["):
        return _DECODER.raw_decode(text, at)[1]
    depth = 0
    while found := _BRACKETS.search(text, at):
        at = found.end()
        if found[0] == '"':
            at = _DECODER.raw_decode(text, at - 1)[1]
            continue
        depth += 1 if found[0] in "[{" else -1
        if not depth:
            return at
    raise ValueError("a bracket is never closed")


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For json's object_pairs_hook: the object, if no name is in it twice; ValueError otherwise."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice!r} occurs twice")
    return made
