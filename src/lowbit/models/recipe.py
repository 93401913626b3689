"""Recipes: which weights of a model are quantized, and how.

A recipe holds one setting for weights and one for activations, and overrides by name. Names are matched by shell
patterns (`*.attention.*`), or by regular expressions between slashes (`/layer\\.[0-3]\\./`). Later overrides win.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lowbit.calibration import CalibrationMethod
from lowbit.calibration.methods import Percentile
from lowbit.models.recipe_file import Located, read_located, shown
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem

KINDS = ("linear", "conv", "embedding", "recurrent")
GRANULARITIES = ("tensor", "channel", "group")
METHODS = ("auto", "rtn", "mse", "hqq", "weighted", "gptq", "awq", "adaround")
_OLD_METHODS = {"min_max": "rtn"}
_MAX_PATTERN = 1000  # characters
_MAX_COMPARED = 20_000  # names; each is compared letter by letter


@dataclass(frozen=True)
class WeightRecipe:
    """How weights are stored."""

    dtype: str = "int8"
    scheme: str = "symmetric"
    group_size: int | None = None  # elements of an output channel that share a scale; None: all of the channel
    granularity: str = "channel"
    method: str = "auto"  # of METHODS: the best for the statistics of a layer's inputs; see models.weights.method_for

    def __post_init__(self) -> None:
        _check_codes(self, ("int8", "uint8", "int4", "uint4", "int2", "uint2"))
        _typed("method", self.method, str, ", ".join(METHODS))
        object.__setattr__(self, "method", _OLD_METHODS.get(self.method, self.method))
        _choice("method", self.method, METHODS)
        _choice("granularity", self.granularity, GRANULARITIES)
        if self.group_size is not None:
            _natural("group_size", self.group_size, 1)
            object.__setattr__(self, "granularity", "group")
        elif self.granularity == "group":
            raise InvalidProblem("group_size: missing; granularity is 'group'")

    def __str__(self) -> str:
        scope = f"groups of {self.group_size}" if self.group_size else f"per {self.granularity}"
        return f"{self.dtype} {self.scheme}, {scope}" + ("" if self.method in ("auto", "rtn") else f", {self.method}")


@dataclass(frozen=True)
class ActivationRecipe:
    """How activations are quantized: with calibrated ranges (static), or with ranges found at run time (dynamic)."""

    dtype: str = "uint8"
    scheme: str = "asymmetric"
    dynamic: bool = False
    granularity: str = "tensor"  # or "token", which only a dynamic range can have
    method: str = "adaptive"  # of calibration; "percentile:99.9" is the percentile with that number

    def __post_init__(self) -> None:
        _check_codes(self, ("int8", "uint8", "int16", "uint16"))
        _choice("granularity", self.granularity, ("tensor", "token"))
        _typed("dynamic", self.dynamic, bool, "true or false")
        if self.granularity == "token" and not self.dynamic:
            raise InvalidProblem("granularity: token; a static range is per tensor")
        self.calibration_method()

    def calibration_method(self) -> CalibrationMethod:
        """The method by name, or `percentile:P`."""
        _typed("method", self.method, str, "a name such as adaptive, mse or percentile:99.9")
        name, colon, number = self.method.partition(":")
        if not colon:
            return CalibrationMethod.of(self.method)
        try:
            if name == "percentile" and float(number) >= 0:
                return Percentile(float(number))
        except InvalidProblem as error:
            raise InvalidProblem(f"method: {error}") from None
        except ValueError:  # not a number
            pass
        raise InvalidProblem(f"method: {self.method!r}; expected percentile:P with a number P")

    def __str__(self) -> str:
        when = f"dynamic per {self.granularity}" if self.dynamic else f"static, {self.method}"
        return f"{self.dtype} {self.scheme}, {when}"


_KEEP = "keep"  # activations of an override that does not mention them


@dataclass(frozen=True)
class Override:
    """Another setting, or none, for weights whose name matches."""

    match: str
    weights: WeightRecipe | None = None  # None: as in the recipe
    activations: ActivationRecipe | str | None = _KEEP  # "keep": as in the recipe; None: float
    skip: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        _compiled(self.match)
        if self.weights is not None:
            _typed("weights", self.weights, WeightRecipe, "a WeightRecipe or None")
        if self.activations is not None and self.activations != _KEEP:
            _typed("activations", self.activations, ActivationRecipe, f"an ActivationRecipe, None or {_KEEP!r}")
        _typed("skip", self.skip, bool, "true or false")
        _typed("reason", self.reason, str, "a text")

    def matches(self, name: str) -> bool:
        return bool(_compiled(self.match).fullmatch(name))


@dataclass(frozen=True)
class Rule:
    """What a recipe says about one weight. `skip` is the reason not to quantize it, or empty."""

    weights: WeightRecipe
    activations: ActivationRecipe | None
    skip: str = ""
    is_named: bool = False  # whether an override says how, by the weight's name


@dataclass(frozen=True)
class Recipe:
    """Which weights of a model are quantized, and how.

    >>> r = Recipe.of("W4A16").but(skip=["lm_head"])
    >>> print(r.rule("layers.0.q_proj", "linear").weights)
    int4 symmetric, groups of 128
    >>> r.rule("lm_head", "linear").skip
    "the recipe skips 'lm_head'"
    """

    name: str = "custom"
    weights: WeightRecipe = field(default_factory=WeightRecipe)
    activations: ActivationRecipe | None = None
    kinds: tuple[str, ...] = KINDS
    overrides: tuple[Override, ...] = ()
    skip: tuple[str, ...] = ()
    min_elements: int = 1024  # smaller weights stay float
    protect: bool = True  # of ONNX models at 4 bits: int8 for first, output and depthwise layers, small groups for Conv

    def __post_init__(self) -> None:
        _typed("name", self.name, str, "a text")
        _typed("weights", self.weights, WeightRecipe, "a WeightRecipe")
        if self.activations is not None:
            _typed("activations", self.activations, ActivationRecipe, "an ActivationRecipe or None")
        for field_name in ("kinds", "overrides", "skip"):
            object.__setattr__(self, field_name, _several(field_name, getattr(self, field_name)))
        for kind in self.kinds:
            _choice("kinds", kind, KINDS)
        for override in self.overrides:
            _typed("overrides", override, Override, "a list of Override")
        for pattern in self.skip:
            _compiled(pattern, "skip")
        _natural("min_elements", self.min_elements, 0)
        _typed("protect", self.protect, bool, "true or false")

    @staticmethod
    def of(recipe: Recipe | str | os.PathLike[str] | Mapping[str, Any]) -> Recipe:
        """A recipe from itself, the name of a preset, a mapping, or a YAML or JSON file."""
        if isinstance(recipe, Recipe):
            return recipe
        if isinstance(recipe, Mapping):
            return _from_mapping(Located.plain(recipe, "recipe"))
        if not isinstance(recipe, str | os.PathLike) or isinstance(text := os.fspath(recipe), bytes):
            known = ", ".join(PRESETS)
            raise InvalidProblem(f"recipe: {shown(recipe)}; expected {known}, a file, a mapping or a Recipe")
        preset = _preset(text)
        if preset is not None:
            return preset
        if text.endswith((".yaml", ".yml", ".json")) or os.path.exists(text):
            return load_recipe(text)
        raise InvalidProblem(f"recipe: {text!r}; expected {', '.join(PRESETS)}, or a .yaml or .json file")

    def but(self, **changes: Any) -> Recipe:
        """The same recipe with other fields; `skip` and `overrides` are added to those it has."""
        unknown = next((name for name in changes if name not in self.__dataclass_fields__), None)
        if unknown is not None:
            raise InvalidProblem(f"{unknown}: unknown; a recipe has {', '.join(self.__dataclass_fields__)}")
        for name in ("skip", "overrides"):
            if name in changes:
                changes[name] = (*getattr(self, name), *_several(name, changes[name]))
        return replace(self, **changes)

    def rule(self, name: str, kind: str, elements: int | None = None, aliases: Sequence[str] = ()) -> Rule:
        """What to do with the weight of this name; kind is one of KINDS. A pattern may also match one of its other
        names."""
        names = (name, *aliases)
        weights, activations, skip = self.weights, self.activations, ""
        if kind not in self.kinds:
            skip = f"the recipe quantizes only {', '.join(self.kinds)}; this is {kind}"
        for pattern in self.skip:
            if any(map(_compiled(pattern).fullmatch, names)):
                skip = f"the recipe skips {pattern!r}"
        named = is_named = False
        for o in self.overrides:
            if any(map(o.matches, names)):
                named = not o.skip
                is_named = is_named or o.weights is not None
                weights = o.weights or weights
                activations = activations if isinstance(o.activations, str) else o.activations
                skip = (o.reason or f"the recipe skips {o.match!r}") if o.skip else ""
        if not skip and not named and elements is not None and elements < self.min_elements:
            skip = f"{elements} elements; the recipe leaves weights below {self.min_elements}"
        return Rule(weights, activations, skip, is_named)

    def refuse_unmatched(self, weights: Iterable[Iterable[str]], others: Iterable[str] = ()) -> None:
        """Raise InvalidProblem, with the nearest names, where `skip` or an override matches nothing in a model.

        weights: all names of each weight. others: names of what stays float in any case, which may be skipped too.

        >>> Recipe(skip=("lm_haed",)).refuse_unmatched([["lm_head"], ["up_proj"]])
        Traceback (most recent call last):
        lowbit.numerics.errors.InvalidProblem: skip: 'lm_haed' matches no weight; the nearest names are 'lm_head'
        """
        if not self.skip and not self.overrides:
            return
        treatable = dict.fromkeys(name for names in weights for name in names if name)
        anything = treatable | dict.fromkeys(others)
        said = [("skip", p, anything) for p in self.skip]
        said += [("overrides", o.match, anything if o.skip else treatable) for o in self.overrides]
        for key, pattern, among in said:
            if not any(map(_compiled(pattern).fullmatch, among)):
                raise InvalidProblem(f"{key}: {shown(pattern)} matches no weight; {_nearest(pattern, among)}")

    @property
    def needs_data(self) -> bool:
        """Whether some activations are static, so that data are needed for calibration."""
        said = [self.activations, *(o.activations for o in self.overrides)]
        return any(isinstance(a, ActivationRecipe) and not a.dynamic for a in said)

    def to_dict(self) -> dict[str, Any]:
        """A mapping of plain types that `Recipe.of` accepts, for JSON."""

        def part(p: Any) -> Any:
            is_recipe = isinstance(p, WeightRecipe | ActivationRecipe)
            return {k: v for k, v in vars(p).items() if v is not None} if is_recipe else p

        def override(o: Override) -> dict[str, Any]:
            plain = Override(o.match)
            return {"match": o.match} | {k: part(v) for k, v in vars(o).items() if v != getattr(plain, k)}

        lists = {"kinds": list(self.kinds), "overrides": list(map(override, self.overrides)), "skip": list(self.skip)}
        return vars(self) | {"weights": part(self.weights), "activations": part(self.activations)} | lists

    def __str__(self) -> str:
        return f"{self.name}: weights {self.weights}; activations {self.activations or 'float'}"


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """The recipe in a YAML or JSON file; errors name the line and the key."""
    return _from_mapping(read_located(path))


def _from_mapping(m: Located) -> Recipe:
    m.known("name", "preset", "weights", "activations", "kinds", "overrides", "skip", "min_elements", "protect")
    base = Recipe()
    if "preset" in m:
        preset = _preset(m.typed("preset", str))
        if preset is None:
            raise m.error("preset", f"{shown(m.values['preset'])}; expected one of {', '.join(PRESETS)}")
        base = preset
    changes = _settings(m, base) | _typed_fields(m, name=str, min_elements=int, protect=bool)
    for name in ("kinds", "skip"):
        if name in m:
            changes[name] = tuple(m.texts(name))
    if "overrides" in m:
        changed = replace(base, **{k: v for k, v in changes.items() if k in ("weights", "activations")})
        changes["overrides"] = tuple(_override(o, changed) for o in m.items("overrides"))
    if "name" not in changes and changes and "preset" in m:
        changes["name"] = f"{base.name}, changed"
    return m.checked(lambda: replace(base, **changes))


def _override(m: Located, base: Recipe) -> Override:
    m.known("match", "weights", "activations", "skip", "reason")
    if "match" not in m:
        raise m.error("match", "missing; expected a pattern of the names that the override is for")
    made = _typed_fields(m, match=str, skip=bool, reason=str) | _settings(m, base)
    return m.checked(lambda: Override(**made))


def _settings(m: Located, base: Recipe) -> dict[str, Any]:
    """The weights and activations of a mapping, whose fields change those of the base."""
    made: dict[str, Any] = {}
    if "weights" in m:
        made["weights"] = m.built("weights", base.weights, _completed_weights)
    if "activations" in m:
        floats = m.values["activations"] in (None, "float", "none")
        made["activations"] = None if floats else m.built("activations", base.activations or _STATIC, _completed)
    return made


def _typed_fields(m: Located, **kinds: type) -> dict[str, Any]:
    return {name: m.typed(name, kind) for name, kind in kinds.items() if name in m}


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """Add fields that follow from others: those of the base may be for another dtype or granularity."""
    if "scheme" not in given and str(given.get("dtype")).startswith("u"):
        given["scheme"] = "asymmetric"
    return given


def _completed_weights(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("granularity", "group") != "group":
        given.setdefault("group_size", None)
    return _completed(given)


def _compiled(pattern: str, key: str = "match") -> re.Pattern[str]:
    """The regular expression of a shell pattern, or of a regular expression between slashes."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _MAX_PATTERN:
        raise InvalidProblem(f"{key}: {shown(pattern)}; expected a pattern of 1 to {_MAX_PATTERN} characters")
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        try:
            return re.compile(f".*(?:{pattern[1:-1]}).*", re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidProblem(f"{key}: {shown(pattern)} is not a regular expression ({error})") from None
    return re.compile(fnmatch.translate(pattern))


def _nearest(pattern: str, names: Iterable[str]) -> str:
    """The names that are most like a pattern, as the end of an error message."""
    if not names:
        return "the model has none"
    some = [name for name in itertools.islice(names, _MAX_COMPARED) if len(name) <= _MAX_PATTERN]
    plain = pattern.strip("/*^$").replace("\\", "").replace("*", "")
    near = difflib.get_close_matches(plain, some, 3, 0.5)
    near = near or difflib.get_close_matches(plain.rpartition(".")[2], some, 3, 0.0) or some[:3]
    return f"the nearest names are {', '.join(map(shown, near))}"


def _choice(key: str, value: Any, among: tuple[str, ...]) -> None:
    if value not in among:
        raise InvalidProblem(f"{key}: {shown(value)}; expected {', '.join(among)}")


def _typed(key: str, value: Any, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise InvalidProblem(f"{key}: {shown(value)}; expected {expected}")


def _natural(key: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise InvalidProblem(f"{key}: {shown(value)}; expected an integer of at least {least}")


def _several(key: str, value: Any) -> tuple[Any, ...]:
    """A list as a tuple; a single string counts as one element."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence):
        raise InvalidProblem(f"{key}: {shown(value)}; expected a list")
    return tuple(value)


def _check_codes(recipe: WeightRecipe | ActivationRecipe, dtypes: tuple[str, ...]) -> None:
    """Raise where dtype and scheme do not go together; afterwards the dtype is a name."""
    if not isinstance(recipe.dtype, str | QuantizedDType | np.dtype | type):
        raise InvalidProblem(f"dtype: {shown(recipe.dtype)}; expected a name such as int8 or int4")
    dtype = QuantizedDType.of(recipe.dtype)
    _choice("dtype", dtype.name, dtypes)
    _choice("scheme", recipe.scheme, ("symmetric", "asymmetric"))
    if recipe.scheme == "symmetric" and not dtype.is_signed:
        raise InvalidProblem(f"scheme: symmetric; {dtype.name} has no negative codes, use asymmetric")
    object.__setattr__(recipe, "dtype", dtype.name)


_STATIC = ActivationRecipe()
_TOKENS = ActivationRecipe("int8", "symmetric", dynamic=True, granularity="token")
PRESETS: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("W8A8", WeightRecipe("int8"), _TOKENS),
        Recipe("W8A16", WeightRecipe("int8")),
        Recipe("W4A16", WeightRecipe("int4", group_size=128)),
        Recipe("W4A16_ASYM", WeightRecipe("uint4", "asymmetric", group_size=128)),
        Recipe("W4A8", WeightRecipe("int4", group_size=128), _TOKENS),
        Recipe("dynamic-int8", WeightRecipe("int8"), ActivationRecipe("uint8", "asymmetric", dynamic=True)),
        # Small weights too: one float layer in between would cost two conversions.
        Recipe("static-int8", WeightRecipe("int8"), _STATIC, min_elements=0),
    )
}


def _preset(name: str) -> Recipe | None:
    """The preset of this name, whatever its case, with - or _."""
    plain = name.upper().replace("-", "_")
    return next((r for r in PRESETS.values() if r.name.upper().replace("-", "_") == plain), None)
