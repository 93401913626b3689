"""Files that are nearly models: whatever is inspected, the answer is an Inspection or one line, never a traceback."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit.formats.inspection import inspect_file
from lowbit.formats.safetensors.checkpoint import INDEX

ROUNDS = 400
NESTED: Any = []
for _ in range(400):
    NESTED = [NESTED]
ODD = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 2**64, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"), "",
    "int8", "int²", "int" + "9" * 5000, "८", "\ud800", "\x1b[2J", "a" * 5000, [], [0], [1, 1], [[]], {}, {"a": []},
    NESTED, "I32", "gptq", "../x", "/etc/passwd",
]  # fmt: skip


def inspected(path: Path) -> bool:
    """Whether there is an answer, which must also be one that can be printed, and not one of lowbit's errors."""
    try:
        found = inspect_file(path)
    except (lb.FormatError, lb.Unsupported):
        return False
    json.dumps(found.to_dict())
    str(found)
    return True


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, v in inner:
        yield from places(v, (*path, key))


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy in which one or two places hold something else, are gone, or are there under another name."""
    made = {"root": copy.deepcopy(value)}
    for _ in range(rng.choice((1, 1, 2))):
        where = ("root", *rng.choice(list(places(made["root"]))))
        holder: Any = made
        for key in where[:-1]:
            holder = holder[key]
        last, odd = where[-1], copy.copy(rng.choice(ODD))
        action = rng.randrange(4)
        if action == 0 and len(where) > 1:
            del holder[last]
        elif action == 1 and isinstance(holder, dict) and len(where) > 1:
            holder[odd if isinstance(odd, str) else "x"] = holder.pop(last)
        else:
            holder[last] = odd
    return made["root"]


def safetensors(header: Any, body: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


QUANTIZED = {
    "a.qweight": entry("I32", [8, 64], 0, 2048), "a.qzeros": entry("I32", [1, 8], 2048, 2080),
    "a.scales": entry("F16", [1, 64], 2080, 2208), "b.weight": entry("I8", [4, 4], 2208, 2224),
    "b.weight_scale": entry("F32", [4, 1], 2224, 2240), "c.weight_packed": entry("I32", [4, 1], 2240, 2256),
    "c.weight_scale": entry("F32", [4, 1], 2256, 2272), "d.qweight": entry("I32", [2, 2], 2272, 2288),
    "d.qzeros": entry("I32", [], 2288, 2292), "d.scales": entry("F16", [1, 2], 2292, 2296),
}  # fmt: skip
CONFIG = {
    "model_type": "llama",
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 128,
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
    },
}  # fmt: skip


def test_headers(tmp_path):
    rng, answers = random.Random(0), 0
    for _ in range(ROUNDS):
        (tmp_path / "m.safetensors").write_bytes(safetensors(mutated(QUANTIZED, rng), 2296))
        answers += inspected(tmp_path / "m.safetensors")
    assert 0 < answers < ROUNDS


def test_configs(tmp_path):
    sound = {name: value for name, value in QUANTIZED.items() if not name.startswith("d.")}
    (tmp_path / "model.safetensors").write_bytes(safetensors(sound, 2272))
    rng, answers = random.Random(1), 0
    for i in range(ROUNDS):
        made = mutated(CONFIG if i % 2 else CONFIG["quantization_config"], rng)
        (tmp_path / "config.json").write_text(json.dumps(made if i % 2 else {}), "utf-8", "replace")
        (tmp_path / "quantize_config.json").write_text(json.dumps(made), "utf-8", "replace")
        answers += inspected(tmp_path)
    assert 0 < answers < ROUNDS


def test_indices(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(safetensors({"x": entry("U8", [2], 0, 2)}, 2))
    (tmp_path / "b.safetensors").write_bytes(safetensors({"y": entry("U8", [2], 0, 2)}, 2))
    sound = {"metadata": {"total_size": 4}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    rng, answers = random.Random(2), 0
    for _ in range(ROUNDS):
        (tmp_path / INDEX).write_text(json.dumps(mutated(sound, rng)), "utf-8", "replace")
        answers += inspected(tmp_path)
    assert 0 < answers < ROUNDS


@pytest.mark.parametrize("dtype", ["int4", "uint8", "mixed"])
def test_descriptions_of_lowbits_tensors(dtype, tmp_path):
    kind = lb.QuantizedDType.mixed([8, 4]) if dtype == "mixed" else dtype
    q = lb.quantize(np.ones((2, 64), np.float32), kind, axis=0)
    q.save(tmp_path / "q.safetensors")
    content = (tmp_path / "q.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    described = json.loads(header["__metadata__"]["tensor"])
    rng, answers = random.Random(3), 0
    for _ in range(ROUNDS):
        header["__metadata__"]["tensor"] = json.dumps(mutated(described, rng))
        text = json.dumps(header).encode()
        made = struct.pack("<Q", len(text)) + text + content[8 + length :]
        (tmp_path / "q.safetensors").write_bytes(made)
        answers += inspected(tmp_path / "q.safetensors")
    assert 0 < answers < ROUNDS


def in_bytes(whole: bytes, path: Path, seed: int, fix: Callable[[bytearray], None] = lambda _: None) -> None:
    """Bytes of a file replaced, cut out and repeated."""
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        made = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            at = rng.randrange(len(made))
            action = rng.randrange(4)
            if action == 0:
                made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            elif action == 1:
                made[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            elif action == 2:
                del made[at : at + rng.randrange(1, 40)]
            else:
                made[at:at] = made[at : at + rng.randrange(1, 40)]
        fix(made)
        path.write_bytes(made)
        inspected(path)


def test_gguf(tmp_path):
    text = lambda s: struct.pack("<Q", len(s)) + s  # noqa: E731
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 4)
    head += text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    head += text(b"general.alignment") + struct.pack("<II", 4, 32)
    head += text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"b")
    head += text(b"nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQB", 0, 1, 7)
    for name, kind, offset in ((b"w", 0, 0), (b"q", 8, 256)):
        head += text(name) + struct.pack("<IQQIQ", 2, 32, 2, kind, offset)
    in_bytes(head + bytes(-len(head) % 32) + bytes(256 + 68), tmp_path / "m.gguf", 4)


def test_numpy(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    in_bytes((tmp_path / "a.npy").read_bytes(), tmp_path / "a.npy", 5)
    np.savez(tmp_path / "a.npz", a=np.zeros((2, 3), np.float32), b=np.zeros(4, np.int8))
    in_bytes((tmp_path / "a.npz").read_bytes(), tmp_path / "a.npz", 6)


def test_onnx(tmp_path):
    pytest.importorskip("onnx")
    import onnx_models as made
    from lowbit.formats.onnx.graph import Graph

    Graph.load(made.two_layers()).save(tmp_path / "b.onnx", external_data=True)
    in_bytes((tmp_path / "b.onnx").read_bytes(), tmp_path / "b.onnx", 7)
    from lowbit.formats.onnx.convert import quantize_onnx

    source = made.saved(made.two_layers(), tmp_path)
    quantize_onnx(source, tmp_path / "q.onnx", "W4A16", progress=False)
    in_bytes((tmp_path / "q.onnx").read_bytes()[-3000:], tmp_path / "m.onnx", 8)
    in_bytes((tmp_path / "q.onnx").read_bytes()[:3000], tmp_path / "m.onnx", 9)
