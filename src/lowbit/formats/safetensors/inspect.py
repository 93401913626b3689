"""Inspecting checkpoints in safetensors files: the layout of their quantized weights."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lowbit.formats.compressed_tensors.plan import read_config
from lowbit.formats.inspection import Inspection, QuantizationFound, StoredTensor
from lowbit.formats.safetensors.checkpoint import Checkpoint, TensorInfo
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import FormatError
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.runtime.files.container import NUMPY_DTYPES, read_description

_NUMPY_NAMES = {name: np.dtype(text).name for name, text in NUMPY_DTYPES.items()} | {"BF16": "bfloat16"}


class _Layout(NamedTuple):
    scheme: str
    bits: int | None
    group_size: int | None  # none: per channel or per tensor
    dtype: str = ""  # where it is not the integer type of this width

    def __str__(self) -> str:
        width = self.dtype or ("bits not said" if self.bits is None else f"int{self.bits}")
        return width + (f", groups of {self.group_size}" if self.group_size else "")


def inspect_checkpoint(path: Path) -> Inspection:
    """The tensors of a file, a folder or an index, with the quantization that config.json describes."""
    with Checkpoint.open(path) as checkpoint:
        tensors, metadata, size, files = checkpoint.tensors, checkpoint.metadata, checkpoint.nbytes, checkpoint.files
    # config.json describes a lone file only if that is the model.
    beside = path.is_dir() or path.name.endswith((".index.json", "model.safetensors"))
    config = _config(checkpoint.folder) if beside else {}
    facts = {"files": str(len(files))} if len(files) > 1 else {}
    if metadata.get("format") == "lowbit":
        return _lowbit(path, size, tensors, metadata)
    said, layouts = _recognised(tensors, config)
    if config.get("quant_method"):
        if not isinstance(config["quant_method"], str):
            raise FormatError(f"{path}: quant_method of the config is no text")
        facts["quant_method"] = config["quant_method"]
        if isinstance(config.get("format"), str):
            facts["format"] = config["format"]
    stored = tuple(replace(_stored(t), quantized=said.get(name, "")) for name, t in tensors.items())
    found = [QuantizationFound(x.scheme, str(x), n, x.bits, x.group_size) for x, n in layouts.most_common()]
    return Inspection(os.fspath(path), "safetensors", size, stored, tuple(found), facts)


def _stored(t: TensorInfo) -> StoredTensor:
    return StoredTensor(t.name, _NUMPY_NAMES.get(t.dtype, t.dtype.lower()), t.shape, t.nbytes)


def _recognised(
    tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> tuple[dict[str, str], Counter[_Layout]]:
    """What each tensor is, and how many weights have each layout: by the names that the layouts give their parts."""
    said: dict[str, str] = {}
    layouts: Counter[_Layout] = Counter()
    for name, t in tensors.items():
        module, _, part = name.rpartition(".")
        prefix = f"{module}." if module else ""

        def at(other: str, prefix: str = prefix) -> TensorInfo | None:
            return tensors.get(prefix + other)

        layout = None
        if part == "weight_packed" and at("weight_scale"):
            layout = _compressed(t, config)
        elif part == "weight" and t.dtype in ("I8", "F8_E4M3", "F8_E5M2") and (at("weight_scale") or at("SCB")):
            compressed = config.get("quant_method") == "compressed-tensors"
            scheme = "bitsandbytes" if at("SCB") else "compressed-tensors" if compressed else "weight_scale"
            layout = _Layout(scheme, 8, None, "" if t.dtype == "I8" else t.dtype.lower())
        elif part == "weight" and t.dtype == "U8" and f"{name}.absmax" in tensors:
            layout = _Layout("bitsandbytes", 4, None, "4-bit codes")
        elif part == "qweight":
            layout = _packed_words(t, at("qzeros"), at("scales"), config)
        if layout is not None:
            layouts[layout] += 1
            said[name] = str(layout)
        elif part in _PARTS and any(at(w) for w in _PARTS[part][1]):
            said[name] = _PARTS[part][0]
        elif part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map"):
            said[name] = "scales"
    return said, layouts


_PARTS = {
    "weight_scale": ("scales", ("weight", "weight_packed")),
    "weight_shape": ("shape", ("weight_packed",)),
    "weight_zero_point": ("zero points", ("weight", "weight_packed")),
    "weight_global_scale": ("scales", ("weight", "weight_packed")),
    "scales": ("scales", ("qweight",)),
    "qzeros": ("zero points", ("qweight",)),
    "g_idx": ("groups", ("qweight",)),
    "SCB": ("scales", ("weight",)),
    "input_scale": ("activations", ("weight", "weight_packed")),
}


def _compressed(t: TensorInfo, config: Mapping[str, Any]) -> _Layout:
    """Bits and group size of packed weights, known only where all config groups agree."""
    groups = config.get("config_groups")
    weights = [g.get("weights") for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    settings = {
        (_natural(w.get("num_bits")), _natural(w.get("group_size")), w.get("type") == "float")
        for w in weights
        if isinstance(w, dict)
    }
    bits, group, floating = settings.pop() if len(settings) == 1 else (None, None, t.dtype == "U8")
    return _Layout("compressed-tensors", bits, group, f"float{bits or 4}" if floating else "")


def _packed_words(
    t: TensorInfo, zeros: TensorInfo | None, scales: TensorInfo | None, config: Mapping[str, Any]
) -> _Layout | None:
    """GPTQ packs rows of qweight, AWQ columns. Shapes imply bits and group size where the config lacks them."""
    bits, group = _natural(config.get("bits")), _natural(config.get("group_size"))
    if scales is None or len(t.shape) != 2 or len(scales.shape) != 2:
        return None
    if zeros is not None and len(zeros.shape) != 2:
        raise FormatError(f"{zeros.file}: {zeros.name!r} has shape {zeros.shape}; zero points are a matrix")
    by_columns = zeros is not None and t.shape[1] == zeros.shape[-1] != scales.shape[1]
    scheme = "AWQ" if by_columns else "GPTQ"
    if bits is None and zeros is not None and scales.shape[1]:
        words = 32 * zeros.shape[-1]
        bits = words // scales.shape[1] if words % scales.shape[1] == 0 else None
    if bits and scales.shape[0]:
        inputs = t.shape[0] if by_columns else t.shape[0] * 32 // bits
        group = group or -(-inputs // scales.shape[0])
    return _Layout(scheme, bits, group)


def _natural(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _config(folder: Path) -> dict[str, Any]:
    """quantization_config of config.json, or quantize_config.json; empty without either."""
    for name, key in (("config.json", "quantization_config"), ("quantize_config.json", "")):
        found = read_config(folder, name)
        if not found:
            continue
        inner = found.get(key) if key else {"quant_method": "gptq"} | found
        if isinstance(inner, dict):
            return inner
        if inner is not None:
            raise FormatError(f"{folder / name}: {key} is no JSON object")
    return {}


def _lowbit(path: Path, size: int, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> Inspection:
    """A tensor saved by lowbit, which the header describes."""
    fields = read_description(metadata, str(path))
    shape, group = fields.get("shape"), _natural(fields.get("block_size"))
    try:
        dtype = QuantizedDType.from_json(fields["dtype"])
        scheme = QuantizationScheme.of(fields["scheme"])
    except (KeyError, TypeError, ValueError, NotImplementedError, OverflowError) as error:
        raise FormatError(f"{path}: no dtype or scheme of lowbit's ({str(error)[:200]})") from None
    if not isinstance(shape, list) or not all(n == 0 or _natural(n) for n in shape):
        raise FormatError(f"{path}: the tensor's shape is not a list of sizes")
    scope = f"groups of {group}" if group else "per tensor" if fields.get("axis") is None else "per channel"
    said = f"{'mixed widths' if dtype.is_mixed else dtype} {scheme.value}, {scope}"
    parts = {"codes": said, "scale": "scales", "zero_point": "zero points"}
    stored = tuple(replace(_stored(t), quantized=parts.get(n, "")) for n, t in tensors.items())
    found = QuantizationFound("lowbit", said, 1, None if dtype.is_mixed else dtype.bits, group)
    return Inspection(os.fspath(path), "lowbit tensor", size, stored, (found,), {"shape": " × ".join(map(str, shape))})
