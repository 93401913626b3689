"""Files: every tensor comes back to the bit; a broken file, however broken, raises FormatError, no more."""

from __future__ import annotations

import json
import os
import random
import stat
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import lowbit as lb
from lowbit.runtime.files.container import read_arrays, write_arrays

DTYPES = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "binary"]
GRANULARITIES: dict[str, dict[str, Any]] = {
    "tensor": {},
    "first-axis": {"axis": 0},
    "last-axis": {"axis": -1},
    "blocks-short-last": {"group_size": 4},
    "blocks-of-axis-0": {"axis": 0, "group_size": 2},
}
MEBIBYTE = 1 << 20


def numbers(shape: tuple[int, ...], kind: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.3, 1.0, shape).astype(kind)


def mixed_params(axis: int, scale: Any = 1.0) -> lb.QuantizationParams:
    return lb.QuantizationParams.mixed([16, 8, 4, 2, 1], scale, axis=axis)


def special_tensors() -> dict[str, lb.QuantizedTensor]:
    """The ones that are no plain (dtype, scheme, granularity) of a 5 x 7 array."""
    P = lb.QuantizationParams
    x = numbers((5, 7))
    blocks = np.float32([[0.5, 0.25], [2.0, 1.0]])
    given = {
        "python-number-scale": lb.quantize(x, params=P("int8", scale=0.1, zero_point=3)),
        "narrow-codes": lb.quantize(x, "int8", qmin=-5, qmax=9),
        "mixed-axis-0": lb.quantize(x, lb.QuantizedDType.mixed([16, 8, 4, 2, 1]), axis=0),
        "mixed-axis-1": lb.quantize(x.T.copy(), lb.QuantizedDType.mixed([16, 8, 4, 2, 1]), axis=1),
        "mixed-all-narrow": lb.quantize(x, lb.QuantizedDType.mixed([4, 2, 1, 4, 2]), axis=0),
        "mixed-float64": lb.quantize(x.astype(float), lb.QuantizedDType.mixed([16, 8, 4, 2, 1]), axis=0),
        "packed-zero-points": lb.quantize(
            numbers((2, 8)),
            params=P("uint4", "asymmetric", blocks, [[1, 15], [7, 0]], axis=1, group_size=4),
        ),
        "negative-packed-zero-points": lb.quantize(
            numbers((3, 4)), params=P("int2", "asymmetric", np.ones(3, np.float32), [-2, 1, -1], axis=0)
        ),
        "0-d": lb.quantize(np.array(1.5, np.float32)),
        "0-d-packed": lb.quantize(np.array(-1.5, np.float32), "int4"),
        "0-d-float64": lb.quantize(np.array(1.5)),
        "zero-size": lb.quantize(np.zeros((0, 3), np.float32), params=P("int8", scale=0.5)),
        "zero-size-packed": lb.quantize(np.zeros((3, 0), np.float32), params=P("int4", scale=0.5)),
        "zero-channels": lb.quantize(
            np.zeros((0, 3), np.float32), params=P("uint4", "asymmetric", np.ones(0, np.float32), axis=0)
        ),
        "zero-blocks": lb.quantize(
            np.zeros((3, 0), np.float32),
            params=P("int4", scale=np.ones((3, 0), np.float32), axis=1, group_size=4),
        ),
        "zero-size-mixed": lb.quantize(np.zeros((5, 0), np.float32), params=mixed_params(0)),
        "strided-view": lb.quantize(x, "int16")[::2, 1:6:3],
    }
    for n in range(1, 10):
        given[f"length-{n}-binary"] = lb.quantize(numbers((n,)), "binary")
        given[f"length-{n}-int2"] = lb.quantize(numbers((n,)), "int2")
    for dtype in ("int8", "int16", "int4", "int2"):
        given[f"logarithmic-{dtype}"] = lb.quantize(x, dtype, scheme="logarithmic")
    given["logarithmic-steps"] = lb.quantize(x, "int8", scheme="logarithmic", steps_per_octave=7.3, axis=1)
    given["logarithmic-float64"] = lb.quantize(x.astype(float), "int4", scheme="logarithmic", group_size=3)
    return given


SPECIAL = special_tensors()


def assert_same_to_the_bit(a: lb.QuantizedTensor, b: lb.QuantizedTensor) -> None:
    assert a == b
    assert (a.shape, a.params, a.data.dtype, a.data.shape) == (b.shape, b.params, b.data.dtype, b.data.shape)
    for x, y in (
        (a.data, b.data),
        (a.params.scale, b.params.scale),
        (a.params.zero_point, b.params.zero_point),
    ):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()
    assert a.dequantize().tobytes() == b.dequantize().tobytes()


def round_trip(q: lb.QuantizedTensor, path: Path) -> None:
    q.save(path)
    assert_same_to_the_bit(lb.QuantizedTensor.load(path), q)
    prefix = path.read_bytes()[:8]
    header = 8 + struct.unpack("<Q", prefix)[0]
    in_header = len(q.dtype.widths)  # the widths of mixed channels are metadata, not an array
    assert path.stat().st_size == header + q.nbytes - in_header
    assert header % 8 == 0


# ---- round trips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_scheme_and_granularity_round_trips(dtype, granularity, scheme, kind, tmp_path):
    if dtype == "binary" and scheme == "asymmetric":
        scheme = "linear"
    x = numbers((5, 7), kind)
    if scheme == "symmetric" and dtype.startswith("u"):
        x = abs(x)
    q = lb.quantize(x, dtype, scheme=scheme, **GRANULARITIES[granularity])
    assert q.params.scale.dtype == kind
    round_trip(q, tmp_path / "q")


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tensors_round_trip(name, tmp_path):
    round_trip(SPECIAL[name], tmp_path / "q")


@pytest.mark.parametrize("scheme", ["linear", "channel_wise", "block_wise"])
def test_scheme_names_survive(scheme, tmp_path):
    q = lb.quantize(numbers((5, 64)), "uint8", scheme=scheme)
    round_trip(q, tmp_path / "q")
    assert str(lb.QuantizedTensor.load(tmp_path / "q").params.scheme) == scheme


def test_loaded_tensor_owns_writable_memory(tmp_path):
    SPECIAL["narrow-codes"].save(tmp_path / "q")
    loaded = lb.QuantizedTensor.load(tmp_path / "q")
    loaded.data[0, 0] = 1
    assert_same_to_the_bit(lb.QuantizedTensor.load(tmp_path / "q"), SPECIAL["narrow-codes"])


# ---- the safetensors format ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECIAL)
def test_safetensors_package_reads_our_files(name, tmp_path):
    q = SPECIAL[name]
    q.save(tmp_path / "q.safetensors")
    theirs = load_file(tmp_path / "q.safetensors")
    np.testing.assert_array_equal(theirs.pop("codes"), q.data, strict=True)
    np.testing.assert_array_equal(theirs.pop("scale"), q.params.scale, strict=True)
    assert set(theirs) == ({"zero_point"} if q.params.stores_zero_point else set())
    with safe_open(tmp_path / "q.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["version"]) == ("lowbit", "1")
    assert json.loads(metadata["tensor"])["shape"] == list(q.shape)


def test_packed_zero_points_are_stored_at_the_codes_width(tmp_path):
    SPECIAL["packed-zero-points"].save(tmp_path / "q.safetensors")
    assert load_file(tmp_path / "q.safetensors")["zero_point"].tolist() == [0xF1, 0x07]


def every_kind_of_array() -> dict[str, np.ndarray]:
    kinds = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    arrays = {f"{k}{n}": np.arange(n).astype(k) for k in kinds for n in (0, 1, 3)}
    return {
        **arrays,
        "0-d": np.array(2.5),
        "3-d": np.ones((2, 0, 3), "i2"),
        "odd/ключ": np.ones((3, 5), "u1"),
    }


def test_safetensors_package_agrees_on_every_array_type(tmp_path):
    arrays = every_kind_of_array()
    write_arrays(tmp_path / "a", arrays, {"note": 'ключ "quoted"'})
    theirs = load_file(tmp_path / "a")
    save_file(arrays, tmp_path / "b", {"note": 'ключ "quoted"'})
    ours, metadata = read_arrays(tmp_path / "b")
    assert metadata == {"note": 'ключ "quoted"'}
    assert set(theirs) == set(ours) == set(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(theirs[key], array, strict=True)
        np.testing.assert_array_equal(ours[key], array, strict=True)


def test_foreign_files_with_unaligned_arrays_load_aligned(tmp_path):
    body = b"\x07" + np.float64([1.5, -2.0]).tobytes()
    header = {"a": entry("U8", [1], 0, 1), "b": entry("F64", [2], 1, 17)}
    arrays, metadata = read_arrays(write(tmp_path / "q", header, body))
    assert metadata == {}
    assert arrays["b"].tolist() == [1.5, -2.0]
    assert arrays["b"].flags.aligned


def test_strided_and_big_endian_arrays_are_written_in_c_order_little_endian(tmp_path):
    x = np.arange(12, dtype=">i4").reshape(3, 4)
    write_arrays(tmp_path / "q", {"x": x.T, "y": x[::2, ::-1]}, {})
    arrays, _ = read_arrays(tmp_path / "q")
    assert arrays["x"].tolist() == x.T.tolist()
    assert arrays["y"].tolist() == x[::2, ::-1].tolist()


# ---- the file system -----------------------------------------------------------------------------------


def test_overwriting_replaces_a_longer_and_a_shorter_file(tmp_path):
    long, short = lb.quantize(numbers((500,))), lb.quantize(numbers((5,)), "int4")
    for q in (long, short, long):
        round_trip(q, tmp_path / "q")
    assert os.listdir(tmp_path) == ["q"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o000, 0o666)])
def test_file_permissions_follow_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        SPECIAL["0-d"].save(tmp_path / "q")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "q").stat().st_mode) == mode


def test_missing_directory_raises_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        SPECIAL["0-d"].save(tmp_path / "missing" / "q")
    assert os.listdir(tmp_path) == []


def test_a_directory_in_the_way_raises_and_leaves_nothing(tmp_path):
    (tmp_path / "q").mkdir()
    with pytest.raises(OSError, match="q"):
        SPECIAL["0-d"].save(tmp_path / "q")
    assert os.listdir(tmp_path) == ["q"]


def test_missing_file_is_an_os_error_not_a_format_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        lb.QuantizedTensor.load(tmp_path / "q")


def test_path_may_be_text_or_path_and_any_unicode(tmp_path):
    path = tmp_path / "вес é.q"
    SPECIAL["0-d"].save(str(path))
    assert lb.QuantizedTensor.load(str(path)) == lb.QuantizedTensor.load(path) == SPECIAL["0-d"]


# ---- corruption: helpers -------------------------------------------------------------------------------


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, body: bytes = b"") -> Path:
    """A file with this header: bytes as they are, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def overwrite(path: Path, data: bytes) -> None:
    """Other bytes in a file of the same length; without truncating it, which some file systems sync."""
    with open(path, "r+b") as file:
        file.write(data)


def parts(q: lb.QuantizedTensor, path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and body of the file q makes."""
    q.save(path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def described(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The header with fields of the tensor's description changed; `...` removes one."""
    fields = {**json.loads(header["__metadata__"]["tensor"]), **changes}
    text = json.dumps({k: v for k, v in fields.items() if v is not ...})
    return {**header, "__metadata__": {**header["__metadata__"], "tensor": text}}


def refused(path: Path) -> str:
    with pytest.raises(lb.FormatError) as caught:
        lb.QuantizedTensor.load(path)
    assert type(caught.value) is lb.FormatError
    assert str(path) in str(caught.value)
    return str(caught.value)


def load_or_refuse(path: Path) -> lb.QuantizedTensor | None:
    """What load gives if it does not refuse: a tensor that keeps every invariant and can be computed with."""
    try:
        q = lb.QuantizedTensor.load(path)
    except lb.FormatError:
        return None
    assert lb.QuantizedTensor(q.data, q.params, q.shape) == q
    assert q.unpack().shape == q.shape
    assert q.dequantize().shape == q.shape
    return q


BROKEN = ["packed-zero-points", "mixed-axis-0", "logarithmic-steps", "0-d", "length-9-binary"]


# ---- corruption: damaged bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", BROKEN)
def test_every_truncation_is_refused(name, tmp_path):
    path = tmp_path / "q"
    SPECIAL[name].save(path)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        refused(path)


def test_bytes_after_the_end_are_refused(tmp_path):
    path = tmp_path / "q"
    SPECIAL["0-d"].save(path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "belong to no entry" in refused(path)


@pytest.mark.parametrize("name", BROKEN)
def test_any_flipped_bit_of_the_header_is_refused_or_leaves_the_codes_alone(name, tmp_path):
    path, q = tmp_path / "q", SPECIAL[name]
    _, body = parts(q, path)
    whole = bytearray(path.read_bytes())
    start = len(whole) - len(body)
    loads = 0
    for at in range(start):
        for bit in range(8):
            whole[at] ^= 1 << bit
            overwrite(path, whole)
            whole[at] ^= 1 << bit
            found = load_or_refuse(path)
            if found is not None:
                loads += 1
                assert found.data.tobytes() == q.data.tobytes()
    assert loads < start * 8 // 10, "most of a header carries meaning: damage to it must show"


@pytest.mark.parametrize("name", BROKEN)
def test_random_damage_anywhere_is_refused_or_gives_a_sound_tensor(name, tmp_path):
    path = tmp_path / "q"
    SPECIAL[name].save(path)
    whole = path.read_bytes()
    rng = random.Random(name)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        overwrite(path, damaged)
        load_or_refuse(path)


def test_random_swaps_of_header_tokens_are_refused_or_give_a_sound_tensor(tmp_path):
    """Damage a byte flip cannot make: well-formed JSON with other values in it."""
    path = tmp_path / "q"
    header, body = parts(SPECIAL["packed-zero-points"], path)
    odd = [None, True, -1, 0, 1, 2, 4, 8, 2**31, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf"),
           "", "int8", "mixed", "mixed([4])", [], [1], [2, 8], [[4]], {}, {"mixed": [4, 4]}, {"mixed": []},
           {"mixed": 4}, {"a": 1}]  # fmt: skip
    fields = json.loads(header["__metadata__"]["tensor"])
    for key in fields:
        for value in odd:
            load_or_refuse(write(path, described(header, **{key: value}), body))
    for key in ("codes", "scale", "zero_point"):
        for field in ("dtype", "shape", "data_offsets"):
            for value in odd:
                changed = {**header, key: {**header[key], field: value}}
                load_or_refuse(write(path, changed, body))


def test_noise_is_refused(tmp_path):
    rng = random.Random(1)
    for _ in range(200):
        refused(write(tmp_path / "q", rng.randbytes(rng.randrange(60)), rng.randbytes(rng.randrange(60))))


# ---- corruption: lying headers -------------------------------------------------------------------------

JSON_HEADERS: dict[str, bytes] = {
    "empty": b"",
    "not-utf-8": b'{"\xff": 1}',
    "not-json": b"{codes: 1}",
    "a-list": b"[]",
    "a-number": b"7",
    "null": b"null",
    "text-after": b"{} {}",
    "duplicate-entry": b'{"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
    b' "a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "duplicate-field": b'{"a": {"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "duplicate-metadata": b'{"__metadata__": {"a": "1", "a": "2"}}',
    "deep-lists": b"[" * 100_000,
    "deep-objects": b'{"a":' * 100_000,
    "deep-entry": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "integer-of-5000-digits": b'{"a": ' + b"9" * 5000 + b"}",
    "lone-surrogate": b'{"\\ud800": 1}',
    "metadata-not-text": b'{"__metadata__": {"format": 1}}',
    "metadata-a-list": b'{"__metadata__": []}',
}


@pytest.mark.parametrize("name", JSON_HEADERS)
def test_headers_that_are_no_sound_json_are_refused(name, tmp_path):
    path = write(tmp_path / "q", JSON_HEADERS[name])
    with pytest.raises(lb.FormatError):
        read_arrays(path)
    refused(path)


@pytest.mark.parametrize("depth", [10, 100, 300, 500, 700, 900, 940, 960, 980, 990, 1000, 3000])
def test_nesting_that_just_parses_is_refused_when_it_is_printed(depth, tmp_path):
    nested = b"[" * depth + b"]" * depth
    refused(write(tmp_path / "q", b'{"a": {"dtype": ' + nested + b', "shape": [], "data_offsets": [0, 0]}}'))
    tensor = '{"dtype": ' + nested.decode() + "}"
    fields = json.dumps({"tensor": tensor, "format": "lowbit", "version": "1"})
    refused(write(tmp_path / "q", b'{"__metadata__": ' + fields.encode() + b"}"))


@pytest.mark.parametrize("length", [0, 1, 17, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_header_lengths_that_do_not_fit_the_file_are_refused(length, tmp_path):
    (tmp_path / "q").write_bytes(struct.pack("<Q", length) + b'{"__metadata__":')
    refused(tmp_path / "q")


ENTRIES: dict[str, tuple[dict[str, Any], int]] = {  # entries, and the bytes of the body
    "negative-begin": ({"a": entry("U8", [4], -4, 0)}, 0),
    "negative-size": ({"a": entry("U8", [4], 4, 0)}, 4),
    "reversed": ({"a": entry("U8", [0], 4, 0), "b": entry("U8", [4], 0, 4)}, 4),
    "overlap": ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, 6),
    "same-place-twice": ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, 4),
    "gap-between": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, 6),
    "gap-at-start": ({"a": entry("U8", [2], 2, 4)}, 4),
    "gap-at-end": ({"a": entry("U8", [2], 0, 2)}, 4),
    "no-entries-but-bytes": ({}, 4),
    "beyond-the-file": ({"a": entry("U8", [5], 0, 5)}, 4),
    "size-is-not-shape": ({"a": entry("F32", [4], 0, 4)}, 4),
    "product-wraps-to-4": ({"a": entry("U8", [2**32 + 1, 2**32, 4], 0, 4)}, 4),
    "product-wraps-to-0": ({"a": entry("U8", [2**32, 2**32], 0, 0)}, 0),
    "bytes-wrap": ({"a": entry("F64", [2**61 + 1], 0, 8)}, 8),
    "one-size-beyond-64-bits": ({"a": entry("U8", [2**64, 0], 0, 0)}, 0),
    "empty-yet-beyond-64-bits": ({"a": entry("U8", [2**40, 2**40, 0], 0, 0)}, 0),
    "empty-with-400-digits": ({"a": entry("U8", [10**400, 0], 0, 0)}, 0),
    "offsets-beyond-64-bits": ({"a": entry("U8", [4], 2**64, 2**64 + 4)}, 4),
    "bool-in-shape": ({"a": entry("U8", [True, 4], 0, 4)}, 4),
    "bool-in-offsets": ({"a": entry("U8", [1], False, True)}, 1),
    "float-in-shape": ({"a": entry("U8", [4.0], 0, 4)}, 4),
    "float-in-offsets": ({"a": entry("U8", [4], 0, 4.0)}, 4),
    "nan-in-shape": ({"a": entry("U8", [float("nan")], 0, 4)}, 4),
    "text-in-shape": ({"a": entry("U8", ["4"], 0, 4)}, 4),
    "shape-is-text": ({"a": entry("U8", "4", 0, 4)}, 4),
    "shape-is-null": ({"a": entry("U8", None, 0, 4)}, 4),
    "100-dimensions": ({"a": entry("U8", [1] * 100, 0, 1)}, 1),
    "one-offset": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4]}}, 4),
    "three-offsets": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 2, 4]}}, 4),
    "offsets-an-object": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": {"0": 0, "1": 4}}}, 4),
    "unknown-dtype": ({"a": entry("F8_E4M3", [4], 0, 4)}, 4),
    "dtype-of-numpy": ({"a": entry("uint8", [4], 0, 4)}, 4),
    "dtype-null": ({"a": entry(None, [4], 0, 4)}, 4),
    "dtype-a-list": ({"a": entry(["U8"], [4], 0, 4)}, 4),
    "no-dtype": ({"a": {"shape": [4], "data_offsets": [0, 4]}}, 4),
    "no-shape": ({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, 4),
    "no-offsets": ({"a": {"dtype": "U8", "shape": [4]}}, 4),
    "one-key-too-many": ({"a": {**entry("U8", [4], 0, 4), "order": "F"}}, 4),
    "entry-a-number": ({"a": 4}, 4),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_that_do_not_describe_the_file_are_refused(name, tmp_path):
    header, size = ENTRIES[name]
    path = write(tmp_path / "q", header, bytes(size))
    with pytest.raises(lb.FormatError):
        read_arrays(path)
    refused(path)


# ---- corruption: a sound container with an unsound tensor ----------------------------------------------

FIELD_CHANGES: dict[str, dict[str, Any]] = {
    "dtype-unknown": {"dtype": "int3"},
    "dtype-of-other-storage": {"dtype": "int8"},
    "dtype-null": {"dtype": None},
    "dtype-mixed-without-widths": {"dtype": "mixed"},
    "dtype-mixed-width-3": {"dtype": {"mixed": [4, 3]}},
    "dtype-mixed-not-a-list": {"dtype": {"mixed": 4}},
    "dtype-empty-object": {"dtype": {}},
    "scheme-unknown": {"scheme": "cubic"},
    "scheme-null": {"scheme": None},
    "axis-beyond": {"axis": 2},
    "many-scales-without-axis": {"axis": None, "block_size": None},
    "axis-huge": {"axis": 10**30},
    "axis-of-another-length": {"axis": 0},
    "block-size-zero": {"block_size": 0},
    "block-size-text": {"block_size": "four"},
    "block-size-that-does-not-fit": {"block_size": 3},
    "qmin-above-qmax": {"qmin": 12, "qmax": 3},
    "qmin-beyond-dtype": {"qmin": -1},
    "qmax-infinite": {"qmax": float("inf")},
    "qmin-nan": {"qmin": float("nan")},
    "qmax-below-zero-points": {"qmax": 9},
    "steps-without-logarithm": {"steps_per_octave": 2.0},
    "shape-longer": {"shape": [2, 9]},
    "shape-transposed": {"shape": [8, 2]},
    "shape-flat": {"shape": [16]},
    "shape-negative": {"shape": [-2, -8]},
    "shape-bool": {"shape": [2, True, 8]},
    "shape-float": {"shape": [2.0, 8]},
    "shape-text": {"shape": ["2", "8"]},
    "shape-one-text": {"shape": "28"},
    "shape-null": {"shape": None},
    "shape-huge": {"shape": [2**40, 2**40]},
    "shape-400-digits": {"shape": [10**400, 8]},
    "a-field-too-many": {"bias": 1},
    "scale-said-twice": {"scale": 1.0},
    **{f"no-{key}": {key: ...} for key in
       ("dtype", "scheme", "axis", "block_size", "qmin", "qmax", "steps_per_octave", "shape")},
}  # fmt: skip


@pytest.mark.parametrize("name", FIELD_CHANGES)
def test_descriptions_that_do_not_fit_are_refused(name, tmp_path):
    header, body = parts(SPECIAL["packed-zero-points"], tmp_path / "q")
    refused(write(tmp_path / "q", described(header, **FIELD_CHANGES[name]), body))


@pytest.mark.parametrize("text", ["", "1", "null", '"shape"', "[]", '["shape"]', "{}", "{", "[" * 100_000, "9" * 5000])
def test_descriptions_that_are_no_objects_are_refused(text, tmp_path):
    header, body = parts(SPECIAL["0-d"], tmp_path / "q")
    header["__metadata__"]["tensor"] = text
    refused(write(tmp_path / "q", header, body))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2"},
        {"version": "1.0"},
        {"version": ...},
        {"format": "pt"},
        {"format": ...},
        {"tensor": ...},
    ],
    ids=str,
)
def test_other_formats_and_versions_are_refused(changes, tmp_path):
    header, body = parts(SPECIAL["0-d"], tmp_path / "q")
    metadata = {**header["__metadata__"], **changes}
    header["__metadata__"] = {k: v for k, v in metadata.items() if v is not ...}
    refused(write(tmp_path / "q", header, body))


def test_a_file_without_arrays_is_refused(tmp_path):
    header, _ = parts(SPECIAL["0-d"], tmp_path / "q")
    refused(write(tmp_path / "q", {"__metadata__": header["__metadata__"]}))


def test_true_is_no_size(tmp_path):
    header, body = parts(lb.quantize(numbers((1, 4)), "int4"), tmp_path / "q")
    assert load_or_refuse(write(tmp_path / "q", described(header, shape=[1, 4]), body)) is not None
    refused(write(tmp_path / "q", described(header, shape=[True, 4]), body))


def test_files_of_other_writers_are_refused(tmp_path):
    save_file({"weight": np.ones(3, np.float32)}, tmp_path / "q")
    assert "not a tensor saved by lowbit" in refused(tmp_path / "q")


def array_changes() -> dict[str, dict[str, np.ndarray | None]]:
    """Changes to the arrays of "packed-zero-points": codes u1[8], scale f4[2, 2], zero_point u1[2]."""
    scale = np.float32([[0.5, 0.25], [2.0, 1.0]])
    bad = {f"scale-{v}": {"scale": np.where(scale == 2, np.float32(v), scale)} for v in (0, -1, np.nan, np.inf)}
    return {
        **bad,
        "no-codes": {"codes": None},
        "no-scale": {"scale": None},
        "no-zero-point": {"zero_point": None},
        "one-array-too-many": {"bias": np.ones(2, np.float32)},
        "scale-below-least": {"scale": scale * np.float32(2.0**-126)},
        "scale-of-integers": {"scale": np.ones((2, 2), np.int32)},
        "scale-of-bools": {"scale": np.ones((2, 2), bool)},
        "scale-flat": {"scale": scale.reshape(-1)},
        "scale-scalar-with-four-zero-points": {"scale": np.array(1, np.float32)},
        "codes-int8": {"codes": np.zeros(8, np.int8)},
        "codes-too-few": {"codes": np.zeros(7, np.uint8)},
        "codes-too-many": {"codes": np.zeros(9, np.uint8)},
        "zero-point-float": {"zero_point": np.zeros(2, np.float32)},
        "zero-point-wide": {"zero_point": np.zeros(2, np.uint16)},
        "zero-point-too-few": {"zero_point": np.zeros(1, np.uint8)},
        "zero-point-too-many": {"zero_point": np.zeros(3, np.uint8)},
        "zero-point-unpacked": {"zero_point": np.zeros((2, 2), np.uint8)},
    }


ARRAY_CHANGES = array_changes()


@pytest.mark.parametrize("name", ARRAY_CHANGES)
def test_arrays_that_do_not_fit_the_description_are_refused(name, tmp_path):
    SPECIAL["packed-zero-points"].save(tmp_path / "q")
    arrays, metadata = read_arrays(tmp_path / "q")
    changed = {k: v for k, v in {**arrays, **ARRAY_CHANGES[name]}.items() if v is not None}
    write_arrays(tmp_path / "q", changed, metadata)
    refused(tmp_path / "q")


@pytest.mark.parametrize("name", ["length-9-binary", "length-3-int2", "0-d-packed", "mixed-axis-0"])
def test_padding_bits_in_codes_are_refused(name, tmp_path):
    SPECIAL[name].save(tmp_path / "q")
    arrays, metadata = read_arrays(tmp_path / "q")
    arrays["codes"][-1] |= 0x80
    write_arrays(tmp_path / "q", arrays, metadata)
    assert "padding" in refused(tmp_path / "q")


@pytest.mark.parametrize("shape", [[2**70, 0], [0, 2**40, 2**40], [0] * 65])
def test_empty_shapes_no_array_can_have_are_refused(shape, tmp_path):
    header, body = parts(SPECIAL["zero-size-packed"], tmp_path / "q")
    refused(write(tmp_path / "q", described(header, shape=shape), body))


# ---- memory --------------------------------------------------------------------------------------------


def peak_of_load(path: Path, sound: bool) -> int:
    tracemalloc.start()
    try:
        if sound:
            lb.QuantizedTensor.load(path)
        else:
            with pytest.raises(lb.FormatError):
                lb.QuantizedTensor.load(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def claims_of_terabytes(path: Path) -> dict[str, tuple[Any, bytes]]:
    header, body = parts(SPECIAL["packed-zero-points"], path)
    tensor = described(header, shape=[2**20, 2**21])
    deep = {**tensor, "codes": entry("U8", [2**40], 0, 2**40)}
    return {
        "an-entry": ({"a": entry("U8", [2**42], 0, 2**42)}, b""),
        "many-entries": (
            {str(i): entry("F64", [2**40], i * 2**43, (i + 1) * 2**43) for i in range(100)},
            b"",
        ),
        "the-description": (tensor, body),
        "both": (deep, body),
        "blocks": (described(header, shape=[2, 2**42], block_size=1), body),
    }


@pytest.mark.parametrize("name", ["an-entry", "many-entries", "the-description", "both", "blocks"])
def test_a_file_claiming_terabytes_takes_no_more_memory_than_it_has_bytes(name, tmp_path):
    path = write(tmp_path / "q", *claims_of_terabytes(tmp_path / "q")[name])
    assert peak_of_load(path, sound=False) < path.stat().st_size + MEBIBYTE


@pytest.mark.parametrize("length", [100_000_001, 2**31])
def test_a_header_claiming_gigabytes_is_not_read(length, tmp_path):
    with open(tmp_path / "q", "wb") as file:  # sparse: the bytes are there, and none is on disk
        file.write(struct.pack("<Q", length))
        file.truncate(length + 8)
    assert peak_of_load(tmp_path / "q", sound=False) < MEBIBYTE


HEADERS: dict[str, tuple[str, int]] = {  # text, and the bytes of the body
    "a checkpoint": (
        ",".join(
            f'"model.layers.{i}.self_attn.q_proj.weight":{{"dtype":"BF16","shape":[4096,0],"data_offsets":[0,0]}}'
            for i in range(4000)
        ),
        0,
    ),
    "short names": (
        ",".join(f'"{i:x}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{i + 1}]}}' for i in range(4000)), 4000,
    ),
    "objects in an array": ('"a":[' + ",".join(["{}"] * 40_000) + "]", 0),
    "arrays in a shape": (
        '"a":{"dtype":"U8","shape":[' + ",".join(["[]"] * 40_000) + '],"data_offsets":[0,0]}', 0,
    ),
    "arrays in a name's value": ('"__metadata__":{"a":[' + ",".join(["[]"] * 40_000) + "]}", 0),
    "names in the metadata": ('"__metadata__":{' + ",".join(f'"{i:x}":""' for i in range(20_000)) + "}", 0),
    "wide characters": ('"__metadata__":{"a":"' + "x" * 300_000 + '\U0001f600"}', 0),
    "a description": (
        '"__metadata__":{"format":"lowbit","version":"1","tensor":"[' + ",".join(["{}"] * 40_000) + ']"}', 0,
    ),
    "strings": ('"__metadata__":{"a":"' + "\\u00e9" * 40_000 + '"}', 0),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_takes_a_few_times_its_own_size_in_memory(name, tmp_path):
    text, body = HEADERS[name]
    path = write(tmp_path / "q", f"{{{text}}}".encode(), bytes(body))
    assert peak_of_load(path, sound=False) < 10 * (path.stat().st_size - body) + MEBIBYTE


def test_a_name_or_an_entry_that_is_too_long_is_refused(tmp_path):
    sound = entry("U8", [0], 0, 0)
    for header, word in (
        ({"a" * 4097: sound}, "4097 characters"),
        ({"a": {**sound, "dtype": "x" * 5000}}, "not an object of"),
        ({"__metadata__": {str(i): "" for i in range(65537)}}, "65536"),
    ):
        with pytest.raises(lb.FormatError, match=word):
            read_arrays(write(tmp_path / "q", json.dumps(header).encode()))
    assert set(read_arrays(write(tmp_path / "q", json.dumps({"a" * 4096: sound}).encode()))[0]) == {"a" * 4096}


@pytest.mark.parametrize("dtype", ["int8", "int4", "int16"])
def test_loading_a_sound_file_copies_nothing(dtype, tmp_path):
    lb.quantize(numbers((1 << 22,)), dtype).save(tmp_path / "q")
    assert peak_of_load(tmp_path / "q", sound=True) < (tmp_path / "q").stat().st_size + MEBIBYTE
