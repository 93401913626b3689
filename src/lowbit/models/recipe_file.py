"""Mappings that know where they were written, so that an error can name the line and the key."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lowbit.errors import InvalidProblem

__all__ = ["Located", "read_located"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Located:
    """A mapping with the place it came from. Every reading method says line and key where a value is wrong."""

    values: Mapping[str, Any]  # of plain values, of Located, or of lists of these
    source: str
    line: int | None = None
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    path: str = ""

    @staticmethod
    def plain(values: Mapping[str, Any], source: str, path: str = "") -> Located:
        """A mapping that came from no file."""

        def inner(v: Any, at: str) -> Any:
            if isinstance(v, Mapping):
                return Located.plain(v, source, at)
            return [inner(x, f"{at}[{i}]") for i, x in enumerate(v)] if isinstance(v, list | tuple) else v

        return Located({str(k): inner(v, _joined(path, str(k))) for k, v in values.items()}, source, path=path)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def value(self, key: str) -> Any:
        return self.values[key]

    def error(self, key: str, what: str) -> InvalidProblem:
        line = self.lines.get(key, self.line)
        where = self.source if line is None else f"{self.source}, line {line}"
        return InvalidProblem(f"{where}: {_joined(self.path, key)}: {what}")

    def known(self, *keys: str) -> None:
        """Raises for a key that is none of these."""
        for key in self.values:
            if key not in keys:
                raise self.error(key, f"unknown; expected one of {', '.join(keys)}")

    def typed(self, key: str, kind: type[T]) -> T:
        value = self.values[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, f"{_shown(value)}; expected {_KINDS.get(kind, kind.__name__)}")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.values[key]
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(key, f"{_shown(value)}; expected a list of texts")
        return value

    def items(self, key: str) -> list[Located]:
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(v, Located) for v in value):
            raise self.error(key, "expected a list of mappings")
        return value

    def made(self, key: str, make: Callable[[str], T], among: Iterable[str]) -> T:
        """A value found by its name."""
        try:
            return make(self.typed(key, str))
        except KeyError:
            raise self.error(key, f"{_shown(self.values[key])}; expected one of {', '.join(among)}") from None

    def built(self, key: str, base: T, completed: Callable[[dict[str, Any]], dict[str, Any]]) -> T:
        """`base`, a dataclass, with the fields that the mapping under `key` gives, and those that follow from them."""
        inner = self.values[key]
        if not isinstance(inner, Located):
            raise self.error(key, f"{_shown(inner)}; expected a mapping")
        inner.known(*(f.name for f in dataclasses.fields(base)))  # type: ignore[arg-type]
        given = completed(dict(inner.values))
        return inner.checked(lambda: dataclasses.replace(base, **given))  # type: ignore[type-var]

    def checked(self, make: Callable[[], T]) -> T:
        """What `make` gives; a complaint that begins with a key of this mapping gets its line."""
        try:
            return make()
        except (ValueError, TypeError, NotImplementedError) as error:
            key, _, what = str(error).partition(": ")
            if what and key in self.values:
                raise self.error(key, what) from None
            if self.source in str(error):
                raise
            where = self.source if self.line is None else f"{self.source}, line {self.line}"
            raise InvalidProblem(f"{where}: {_joined(self.path, str(error))}") from None


_KINDS: dict[type, str] = {str: "a text", int: "an integer", bool: "true or false"}


def read_located(path: str | os.PathLike[str]) -> Located:
    """The mapping in a YAML or JSON file, with the lines of its keys. YAML needs PyYAML; JSON then has lines too."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProblem(f"{source}: not text ({error})") from None
    try:
        import yaml
    except ModuleNotFoundError:
        if not source.endswith(".json"):
            raise ModuleNotFoundError(f"{source}: YAML needs PyYAML: pip install 'lowbit[cli]'", name="yaml") from None
        return _from_json(text, source)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}, line {mark.line + 1}"
        raise InvalidProblem(f"{where}: {getattr(error, 'problem', None) or error}") from None
    made = _located(node, source, "", yaml)
    if not isinstance(made, Located):
        raise InvalidProblem(f"{source}: expected a mapping with keys like 'preset', 'weights', 'overrides'")
    return made


def _from_json(text: str, source: str) -> Located:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidProblem(f"{source}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidProblem(f"{source}: expected a mapping with keys like 'preset', 'weights', 'overrides'")
    return Located.plain(found, source)


def _located(node: Any, source: str, path: str, yaml: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in values:
                raise InvalidProblem(f"{source}, line {line}: {_joined(path, key)}: given twice")
            values[key] = _located(value_node, source, _joined(path, key), yaml)
            lines[key] = line
        return Located(values, source, node.start_mark.line + 1, lines, path)
    if isinstance(node, yaml.SequenceNode):
        return [_located(n, source, f"{path}[{i}]", yaml) for i, n in enumerate(node.value)]
    if node is None:
        return None
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    return "a mapping" if isinstance(value, Located) else repr(value)
