"""The plan of a checkpoint: what is done to each tensor, by names, shapes and config.json alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowbit.formats.compressed_tensors.scheme import FLOATS, Scheme
from lowbit.formats.safetensors.checkpoint import SINGLE, TensorInfo, inside
from lowbit.formats.safetensors.writer import Stored
from lowbit.models.recipe import Recipe
from lowbit.models.report import WeightRow
from lowbit.models.roles import EMBEDDINGS, HEADS, ROUTERS
from lowbit.models.weights import fitted
from lowbit.numerics.errors import FormatError, InvalidProblem

# Models whose matrices are Conv1D modules, [inputs, outputs]: compressed-tensors knows Linear modules only.
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_QUANTIZED = re.compile(
    r"\.(weight_packed|weight_scale(_inv)?|weight_zero_point|qweight|qzeros|absmax|weight\.(absmax|quant_state.*)|SCB)$"
)
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_MAX_CONFIG = 1 << 24


@dataclass(frozen=True)
class Item:
    """One tensor of the source and the tensors that replace it; without a scheme it is copied."""

    info: TensorInfo
    stored: tuple[Stored, ...]
    scheme: Scheme | None = None

    @property
    def module(self) -> str:
        return self.info.name.removesuffix(".weight")

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.stored)


@dataclass(frozen=True)
class Plan:
    """Everything that a run will write, in the order it is read."""

    shards: Mapping[str, tuple[Item, ...]]  # by file name
    rows: tuple[WeightRow, ...]
    notes: tuple[str, ...]
    quantization_config: Mapping[str, Any]

    @property
    def items(self) -> list[Item]:
        return [item for items in self.shards.values() for item in items]

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)


def plan_checkpoint(
    tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], recipe: Recipe, max_shard_bytes: int
) -> Plan:
    """The plan for these tensors; nothing is read."""
    names = {name: (name.removesuffix(".weight"), name) for name in tensors}
    others = [n for both in names.values() for n in both]
    if _tied(config):
        others += ["lm_head", "lm_head.weight"]  # a module without a tensor
    recipe.refuse_unmatched((names[t.name] for t in tensors.values() if len(t.shape) > 1), others)
    in_order = sorted(tensors.values(), key=lambda t: (t.file, t.offset, t.name))
    decided = [_decided(info, config, recipe) for info in in_order]
    items, rows = [item for item, _ in decided], [row for _, row in decided if row is not None]
    vectors = len(items) - len(rows)
    if not any(item.scheme for item in items):
        why = Counter(row.why_not for row in rows).most_common(1)
        raise InvalidProblem(f"no weight of {len(items)} tensors can be treated" + (f": {why[0][0]}" if why else ""))
    notes = [f"{vectors} vectors and scalars (norms, biases) are copied unchanged"] if vectors else []
    return Plan(_sharded(items, max_shard_bytes), tuple(rows), tuple(notes), _config_of(items, rows, recipe))


def _decided(info: TensorInfo, config: Mapping[str, Any], recipe: Recipe) -> tuple[Item, WeightRow | None]:
    """What to do with the tensor, and its row; vectors have no row."""
    copied = Item(info, (Stored(info.name, info.dtype, info.shape),))
    if len(info.shape) < 2:
        return copied, None
    module, size = copied.module, info.nbytes
    kind, stays = _kind(info, module, config)
    # People write the module's name or the tensor's.
    rule = recipe.rule(module, "embedding" if kind == "Embedding" else "linear", info.elements, aliases=(info.name,))
    named = any(not o.skip and (o.matches(module) or o.matches(info.name)) for o in recipe.overrides)
    why = rule.skip or ("" if info.elements else "it has no elements") or ("" if named else stays)
    row = WeightRow(info.name, kind, info.shape, info.dtype, "", why, not why, bytes_before=size, bytes_after=size)
    if why:
        return copied, row
    why = _impossible(info, kind, config)
    if why:
        return copied, replace(row, why_not=why)
    weights, note = fitted(rule.weights, info.shape[1])
    scheme = Scheme(weights, rule.activations)
    item = Item(info, tuple(scheme.stored(module, info.shape, info.dtype)), scheme)
    row = replace(row, how=str(weights), activations=str(scheme.activations or ""), bytes_after=item.nbytes)
    return item, replace(row, bits=8 * item.nbytes / info.elements, note="; ".join(filter(None, (scheme.format, note))))


def _kind(info: TensorInfo, module: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """(kind of module that uses the tensor, why it stays float unless an override names it)."""
    if not info.name.endswith(".weight"):
        experts = len(info.shape) == 3 and "expert" in info.name
        return ("Experts", "") if experts else ("Parameter", "no module's weight")
    if _is_head(module):
        return "Linear", "the output head stays as it is unless an override names it"
    if EMBEDDINGS.search(module):
        return "Embedding", "embeddings stay as they are unless an override names them"
    if ROUTERS.search(module):
        return "Router", "routers stay as they are unless an override names them"
    if len(info.shape) > 2:
        return "Conv", f"{len(info.shape)} dimensions; compressed-tensors stores matrices"
    return ("Conv1D" if config.get("model_type") in _TRANSPOSED else "Linear"), ""


def _is_head(module: str) -> bool:
    return module == "output" or HEADS.search(module) is not None


def _impossible(info: TensorInfo, kind: str, config: Mapping[str, Any]) -> str:
    """Why the tensor cannot be quantized even if an override names it, or an empty string."""
    if info.dtype not in FLOATS:
        return f"dtype {info.dtype}; expected {', '.join(FLOATS)}"
    if kind == "Conv1D":
        return f"{config.get('model_type')} has Conv1D modules, which compressed-tensors does not load"
    if kind == "Embedding":
        return "transformers does not load quantized embeddings"
    if len(info.shape) != 2:
        return f"{len(info.shape)} dimensions; compressed-tensors stores matrices"
    if _is_head(info.name.removesuffix(".weight")) and _tied(config):
        return "it is one tensor with the embeddings (tie_word_embeddings)"
    return ""


def _tied(config: Mapping[str, Any]) -> bool:
    inner = config.get("text_config")
    return bool(config.get("tie_word_embeddings") or (isinstance(inner, dict) and inner.get("tie_word_embeddings")))


def _sharded(items: list[Item], max_shard_bytes: int) -> dict[str, tuple[Item, ...]]:
    """The items of each file, in order; a file is full once the next item would exceed its size."""
    if max_shard_bytes < 1:
        raise InvalidProblem(f"max_shard_bytes: {max_shard_bytes}; expected at least 1")
    shards: list[list[Item]] = [[]]
    size = 0
    for item in items:
        if shards[-1] and size + item.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += item.nbytes
    if len(shards) == 1:
        return {SINGLE: tuple(shards[0])}
    return {f"model-{i:05}-of-{len(shards):05}.safetensors": tuple(s) for i, s in enumerate(shards, 1)}


def _config_of(items: list[Item], rows: list[WeightRow], recipe: Recipe) -> dict[str, Any]:
    """quantization_config: the commonest scheme targets every Linear, the others name their modules, and Linear
    modules that stay float are ignored."""
    groups: dict[str, list[Item]] = {}  # by what a loader reads of their scheme
    for item in items:
        if item.scheme is not None:
            groups.setdefault(json.dumps(item.scheme.config([])), []).append(item)

    def weight_of(said: str) -> tuple[int, bool]:
        return len(groups[said]), any(item.scheme and item.scheme.weights == recipe.weights for item in groups[said])

    main = max(groups, key=weight_of)
    ordered = sorted(groups, key=lambda said: said == main)  # loaders take the first that matches
    entries = [json.loads(said) | {"targets": [item.module for item in groups[said]]} for said in ordered]
    entries[-1]["targets"] = ["Linear"]
    treated = {item.module for item in items if item.scheme is not None}
    ignore = [row.name.removesuffix(".weight") for row in rows if not row.treated and row.kind in ("Linear", "Router")]
    if "lm_head" not in treated and "lm_head" not in ignore:
        ignore.append("lm_head")  # tied heads are a module without a tensor
    formats = {entry["format"] for entry in entries}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": entry for i, entry in enumerate(entries)},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def model_dtype(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> str:
    """The dtype that a loader gives the model, by the format's name: that of its config.json, else that of most of its
    numbers apart from scales. Empty where neither says it."""
    said = config.get("dtype") or config.get("torch_dtype")
    if isinstance(said, str) and said.removeprefix("torch.") in _DTYPES:
        return _DTYPES[said.removeprefix("torch.")]
    count = Counter(dict.fromkeys(FLOATS, 0))
    for name, info in tensors.items():
        if info.dtype in FLOATS and not _QUANTIZED.search(name):
            count[info.dtype] += info.elements
    found, elements = count.most_common(1)[0]
    return found if elements else ""


def existing_quantization(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> str:
    """How the checkpoint is already quantized, or an empty string."""
    for key in ("quantization_config", "compression_config"):
        said = config.get(key)
        if said:
            method = said.get("quant_method") if isinstance(said, dict) else None
            return f"config.json has a {key}" + (f" ({method[:80]})" if isinstance(method, str) else "")
    for name, info in tensors.items():
        if _QUANTIZED.search(name):
            return f"it has a tensor {name!r}"
        if name.endswith(".weight") and len(info.shape) == 2 and (info.dtype[0] in "IU" or info.dtype[:2] == "F8"):
            return f"{name!r} is {info.dtype}"
    return ""


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in a file of the folder; empty where there is no file."""
    if not (folder / name).is_file():
        return {}
    path = inside(folder, name, name)
    if path.stat().st_size > _MAX_CONFIG:
        raise FormatError(f"{path}: {path.stat().st_size} bytes; a config has less than {_MAX_CONFIG}")
    try:
        config = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise FormatError(f"{path}: not a JSON object")
    return config
