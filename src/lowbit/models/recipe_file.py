"""Mappings from files that keep line numbers, so that errors name the line and the key."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from lowbit.numerics.errors import InvalidProblem

T = TypeVar("T")

# Limits of time and memory for untrusted files; recipes are a page of text.
_MAX_BYTES = 1 << 20
_MAX_VALUES = 10_000  # with every alias written out
_MAX_DEPTH = 32
_LONGEST = 80  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Located:
    """A mapping with its place in a file. Errors of all methods name line and key."""

    values: Mapping[str, Any]  # of plain values, of Located, or of lists of these
    source: str
    line: int | None = None
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    path: str = ""

    @staticmethod
    def plain(values: Mapping[str, Any], source: str) -> Located:
        """A mapping that does not come from a file."""
        limits = _Limits(source)

        def inner(v: Any, at: str) -> Any:
            with limits.within(at):
                if isinstance(v, Mapping):
                    made = {shown(k) if not isinstance(k, str) else k: w for k, w in v.items()}
                    return Located({k: inner(w, _joined(at, k)) for k, w in made.items()}, source, path=at)
                return [inner(x, f"{at}[{i}]") for i, x in enumerate(v)] if isinstance(v, list | tuple) else v

        made: Located = inner(values, "")
        return made

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, what: str) -> InvalidProblem:
        where = _place(self.source, self.lines.get(key, self.line))
        return InvalidProblem(f"{where}: {_joined(self.path, key)}: {what}")

    def known(self, *keys: str) -> None:
        """Raise for a key that is not one of these."""
        for key in self.values:
            if key not in keys:
                raise self.error(key, f"unknown; expected one of {', '.join(keys)}")

    def typed(self, key: str, kind: type[T]) -> T:
        value = self.values[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, f"{shown(value)}; expected {_KINDS.get(kind, kind.__name__)}")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.values[key]
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(key, f"{shown(value)}; expected a list of texts")
        return value

    def items(self, key: str) -> list[Located]:
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(v, Located) for v in value):
            raise self.error(key, "expected a list of mappings")
        return value

    def built(self, key: str, base: T, completed: Callable[[dict[str, Any]], dict[str, Any]]) -> T:
        """`base`, a dataclass, with the fields of the mapping under `key`, and those that follow from them."""
        inner = self.values[key]
        if not isinstance(inner, Located):
            raise self.error(key, f"{shown(inner)}; expected a mapping")
        inner.known(*(f.name for f in dataclasses.fields(base)))  # type: ignore[arg-type]
        given = completed(dict(inner.values))
        return inner.checked(lambda: dataclasses.replace(base, **given))  # type: ignore[type-var]

    def checked(self, make: Callable[[], T]) -> T:
        """The result of `make`; an error that begins with a key of this mapping gets its line."""
        try:
            return make()
        except (ValueError, TypeError, NotImplementedError) as error:
            key, _, what = str(error).partition(": ")
            if what and key in self.values:
                raise self.error(key, what) from None
            if self.source in str(error):
                raise
            where = _place(self.source, self.line)
            raise InvalidProblem(f"{where}: {_joined(self.path, str(error))}") from None


_KINDS: dict[type, str] = {str: "a text", int: "an integer", bool: "true or false"}


def read_located(path: str | os.PathLike[str]) -> Located:
    """The mapping in a YAML or JSON file, with the lines of its keys (of JSON, only if PyYAML is installed).

    Values are strings, numbers, booleans and null, in lists and mappings; other YAML tags are refused.
    """
    source = os.fspath(path)
    with open(path, "rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise InvalidProblem(f"{source}: more than {_MAX_BYTES} bytes; a recipe has fewer")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProblem(f"{source}: not text ({error})") from None
    try:
        import yaml
    except ModuleNotFoundError:
        if not source.endswith(".json"):
            raise ModuleNotFoundError(f"{source}: YAML needs PyYAML: pip install 'lowbit[cli]'", name="yaml") from None
        return _from_json(text, source)
    try:
        _refuse_large(text, source, yaml)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        where = _place(source, None if mark is None else mark.line + 1)
        raise InvalidProblem(f"{where}: {' '.join(str(what).split())}") from None
    made = None if node is None else _located(node, source, "", yaml, _Limits(source))
    if not isinstance(made, Located):
        raise InvalidProblem(f"{source}: {_NO_MAPPING}")
    return made


_NO_MAPPING = "expected a mapping with keys like 'preset', 'weights', 'overrides'"


def _refuse_large(text: str, source: str, yaml: Any) -> None:
    """Before the tree is composed, which recurses: what is written too deep, or too much of it."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        where = f"{source}, line {event.start_mark.line + 1}"
        if depth > _MAX_DEPTH:
            raise InvalidProblem(f"{where}: nested more than {_MAX_DEPTH} deep")
        if count > 4 * _MAX_VALUES:  # keys, and the ends of lists and mappings, are events too
            raise InvalidProblem(f"{where}: more than {_MAX_VALUES} values")


def _from_json(text: str, source: str) -> Located:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        double = next((k for k, count in Counter(k for k, _ in pairs).items() if count > 1), None)
        if double is not None:
            raise ValueError(f"{double}: given twice")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise InvalidProblem(f"{source}: {error}") from None
    except RecursionError:
        raise InvalidProblem(f"{source}: nested more than {_MAX_DEPTH} deep") from None
    if not isinstance(found, dict):
        raise InvalidProblem(f"{source}: {_NO_MAPPING}")
    return Located.plain(found, source)


_YAML = "tag:yaml.org,2002:"
_SCALARS = ("int", "float", "bool", "null")


def _located(node: Any, source: str, path: str, yaml: Any, limits: _Limits) -> Any:
    line = node.start_mark.line + 1
    with limits.within(path, line):
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_YAML}map":
            values: dict[str, Any] = {}
            lines: dict[str, int] = {}
            for key_node, value_node in node.value:
                at = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise InvalidProblem(f"{source}, line {at}: {_joined(path, 'a key')}: expected a text")
                key = str(key_node.value)
                if key in values:
                    raise InvalidProblem(f"{source}, line {at}: {_joined(path, key)}: given twice")
                values[key] = _located(value_node, source, _joined(path, key), yaml, limits)
                lines[key] = at
            return Located(values, source, line, lines, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_YAML}seq":
            return [_located(n, source, f"{path}[{i}]", yaml, limits) for i, n in enumerate(node.value)]
        kind = node.tag.removeprefix(_YAML)
        # Dates are strings here: a recipe may be named after one.
        if isinstance(node, yaml.ScalarNode) and kind in ("str", "timestamp", "value"):
            return str(node.value)
        if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
            tag = node.tag if kind == node.tag else f"!!{kind}"
            raise InvalidProblem(
                f"{source}, line {line}: {path}: tag {shown(tag)}; expected a text, a number, true, false, null, a "
                "list or a mapping"
            )
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node)
        except (ValueError, KeyError) as error:  # a string tagged as a number, or too many digits
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise InvalidProblem(f"{source}, line {line}: {path}: {shown(node.value)} is not {kind}{why}") from None
        finally:
            loader.dispose()


def _place(source: str, line: int | None) -> str:
    return source if line is None else f"{source}, line {line}"


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown(value: Any) -> str:
    """A value for messages, shortened where it is long."""
    if isinstance(value, Located):
        return "a mapping"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python writes
        return f"{type(value).__name__} that cannot be written out"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


class _Limits:
    """Counts values and nesting while a tree is read, and refuses too many."""

    def __init__(self, source: str) -> None:
        self.source, self.values, self.depth = source, 0, 0

    @contextmanager
    def within(self, path: str, line: int | None = None) -> Iterator[None]:
        where = _place(self.source, line)
        self.values += 1
        self.depth += 1
        if self.values > _MAX_VALUES:
            raise InvalidProblem(f"{where}: more than {_MAX_VALUES} values, each use of an alias counted")
        if self.depth > _MAX_DEPTH:
            raise InvalidProblem(f"{where}: {shown(path)}: nested more than {_MAX_DEPTH} deep")
        yield
        self.depth -= 1
