"""Checkpoints on disk: what is sound comes back to the bit, what is not is one line naming file and tensor."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lowbit.formats.safetensors.checkpoint import INDEX, SINGLE, Checkpoint, read_index
from lowbit.formats.safetensors.writer import ShardWriter, Stored, checksum, shard_entries
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.runtime.files.container import DTYPE_BITS, Entry, header_bytes
from lowbit.runtime.files.json_members import unique_keys

ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f16": np.arange(5, dtype=np.float16),
    "bf16": np.arange(7).astype(ml_dtypes.bfloat16),
    "i8": np.arange(3, dtype=np.int8),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5, np.float32),
}


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def sharded(folder: Path, shards: dict[str, dict[str, np.ndarray]], **changes: str | None) -> Path:
    """Shards and their index, in which names may be given another file, or none."""
    index = {}
    for file, arrays in shards.items():
        save_file(arrays, folder / file)
        index |= dict.fromkeys(arrays, file)
    index |= changes
    named = {k: v for k, v in index.items() if v is not None}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return folder


def refused(path: Path, *words: str) -> None:
    with pytest.raises(FormatError) as caught:
        Checkpoint.open(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# ---- reading -------------------------------------------------------------------------------------------


def test_every_array_of_the_package_comes_back(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    for given in (tmp_path, tmp_path / "model.safetensors"):
        with Checkpoint.open(given) as checkpoint:
            assert set(checkpoint.tensors) == set(ARRAYS)
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(checkpoint.read(name), array, strict=True)
                info = checkpoint.tensors[name]
                stored = (tmp_path / "model.safetensors").read_bytes()[info.offset : info.offset + info.nbytes]
                assert stored == array.tobytes()


def test_shards_are_one_checkpoint(tmp_path):
    sharded(tmp_path, {"a.safetensors": {"x": ARRAYS["f32"]}, "b.safetensors": {"y": ARRAYS["bf16"]}})
    for given in (tmp_path, tmp_path / INDEX):
        with Checkpoint.open(given) as checkpoint:
            assert {n: t.file.name for n, t in checkpoint.tensors.items()} == {
                "x": "a.safetensors",
                "y": "b.safetensors",
            }
            np.testing.assert_array_equal(checkpoint.read("y"), ARRAYS["bf16"])


def test_a_released_tensor_can_be_read_again(tmp_path):
    big = np.arange(1 << 18, dtype=np.float32)
    save_file({"a": ARRAYS["f32"], "big": big}, tmp_path / "model.safetensors")
    with Checkpoint.open(tmp_path) as checkpoint:
        view = checkpoint.read("big")
        checkpoint.release("big")
        checkpoint.release("a")
        np.testing.assert_array_equal(view, big)


def test_read_into_gives_any_part(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    with Checkpoint.open(tmp_path) as checkpoint:
        buffer = np.empty(8, np.uint8)
        checkpoint.read_into("f32", 4, buffer)
        assert buffer.view(np.float32).tolist() == [1.0, 2.0]


def test_a_file_that_shrank_is_an_error_not_a_signal(tmp_path):
    save_file({"x": np.zeros(1 << 16, np.float32)}, tmp_path / "model.safetensors")
    with Checkpoint.open(tmp_path) as checkpoint:
        os.truncate(tmp_path / "model.safetensors", 4096)
        with pytest.raises(FormatError, match=r"model\.safetensors.*ends early.*'x'"):
            checkpoint.read_into("x", 0, np.empty(1 << 18, np.uint8))


def test_types_numpy_lacks_are_found_and_not_read(tmp_path):
    path = write(
        tmp_path / "m.safetensors", {"w": entry("F8_E4M3", [4], 0, 4), "v": entry("F4", [2, 4], 4, 8)}, bytes(8)
    )
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.tensors["w"].dtype == "F8_E4M3"
        assert checkpoint.tensors["v"].nbytes == 4
        with pytest.raises(Unsupported, match="w: F8_E4M3"):
            checkpoint.read("w")


def test_links_within_a_hub_cache_are_followed(tmp_path):
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    save_file({"x": ARRAYS["f32"]}, tmp_path / "blobs" / "sum")
    (snapshot / "model.safetensors").symlink_to("../../blobs/sum")
    assert set(Checkpoint.open(snapshot).tensors) == {"x"}


# ---- bad files -----------------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, bytes, str]] = {
    "wrong-offset": ({"w": entry("F32", [2], 4, 12)}, bytes(12), "'w'"),
    "beyond-the-file": ({"w": entry("F32", [4], 0, 16)}, bytes(8), "'w'"),
    "overlap": ({"v": entry("U8", [4], 0, 4), "w": entry("U8", [4], 2, 6)}, bytes(6), "'w'"),
    "gap": ({"v": entry("U8", [2], 0, 2), "w": entry("U8", [2], 4, 6)}, bytes(6), "'w'"),
    "trailing-bytes": ({"w": entry("U8", [2], 0, 2)}, bytes(9), "7 bytes"),
    "shape-and-size-differ": ({"w": entry("BF16", [3], 0, 4)}, bytes(4), "'w'"),
    "half-an-element": ({"w": entry("F4", [3], 0, 1)}, bytes(1), "'w'"),
    "unknown-dtype": ({"w": entry("F12", [2], 0, 3)}, bytes(3), "'F12'"),
    "negative-size": ({"w": entry("U8", [-1], 0, 1)}, bytes(1), "'w'"),
    "duplicate-name": (b'{"w": {"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                       b' "w": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", "twice"),
    "not-json": (b"{", b"", "JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_name_file_and_tensor(case, tmp_path):
    header, body, word = BAD[case]
    refused(write(tmp_path / "m.safetensors", header, body), "m.safetensors", word)


def test_every_truncation_is_refused(tmp_path):
    save_file(ARRAYS, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        refused(tmp_path / "cut.safetensors", "cut.safetensors")


def test_a_folder_without_weights_is_refused(tmp_path):
    refused(tmp_path, "no .safetensors file")
    refused(tmp_path / "missing", "no such file")


# ---- bad indices ---------------------------------------------------------------------------------------

ONE = {"a.safetensors": {"x": ARRAYS["f32"]}}


def test_missing_shard(tmp_path):
    refused(sharded(tmp_path, ONE, y="b.safetensors"), INDEX, "b.safetensors")


def test_tensor_that_is_not_in_its_shard(tmp_path):
    refused(sharded(tmp_path, ONE, y="a.safetensors"), "a.safetensors", "'y'")


def test_tensor_that_is_in_another_shard(tmp_path):
    two = {**ONE, "b.safetensors": {"y": ARRAYS["f32"]}}
    refused(sharded(tmp_path, two, x="b.safetensors", z="a.safetensors"), "'x'")


def test_tensor_that_the_index_does_not_name(tmp_path):
    refused(sharded(tmp_path, {"a.safetensors": {"x": ARRAYS["f32"], "y": ARRAYS["f16"]}}, y=None), "'y'")


def test_tensor_in_two_shards(tmp_path):
    x, y, z = ({n: ARRAYS["f32"]} for n in "xyz")
    refused(sharded(tmp_path, {"a.safetensors": x | y, "b.safetensors": x | z}), "b.safetensors", "'x'")


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "sub/../../a.safetensors", "..\\a", "a\0b", ""])
def test_an_index_cannot_lead_out_of_its_folder(name, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    save_file({"x": ARRAYS["f32"]}, tmp_path / "a.safetensors")
    refused(sharded(inner, ONE, x=name), INDEX, "leads out of the folder")


def test_a_link_cannot_lead_out_of_the_folder(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    save_file({"x": ARRAYS["f32"]}, tmp_path / "a.safetensors")
    (inner / "model.safetensors").symlink_to("../a.safetensors")
    refused(inner, "a link that leads out")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"x": 1}}', '{"weight_map": {"x":"a","x":"b"}}']
)
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / INDEX).write_text(text)
    refused(tmp_path, INDEX)


def test_an_index_of_many_tensors_with_one_named_twice(tmp_path):
    """100,000 names: a check that compares each with all before it would take an hour."""
    names = [f'"model.layers.{i}.weight":"a.safetensors"' for i in range(100_000)]
    (tmp_path / INDEX).write_text('{"weight_map":{' + ",".join([*names, names[-1]]) + "}}")
    refused(tmp_path, "'model.layers.99999.weight' occurs twice")
    (tmp_path / INDEX).write_text('{"weight_map":{' + ",".join(names) + "}}")
    assert len(read_index(tmp_path / INDEX)) == 100_000


def test_the_duplicate_name_is_found_in_a_step_for_each_name():
    looked = 0

    class Name(str):
        __slots__ = ()

        def __hash__(self):
            nonlocal looked
            looked += 1
            return super().__hash__()

        __eq__ = str.__eq__

    with pytest.raises(ValueError, match="'999' occurs twice"):
        unique_keys([(Name(i), 0) for i in [*range(1000), 999]])
    assert looked <= 4004


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata":[' + ",".join(["{}"] * 40_000) + '],"weight_map":{"x":"a"}}',
        '{"weight_map":{' + ",".join(f'"{i:x}":"b"' for i in range(20_000)) + "}}",
        '{"weight_map":{"x":[' + ",".join(["{}"] * 40_000) + "]}}",
        '{"weight_map":[' + ",".join(["{}"] * 40_000) + "]}",
        "{" + ",".join(f'"{i:x}":[]' for i in range(20_000)) + "}",
    ],
    ids=["notes", "tensors", "a-file-name", "a-list", "many-notes"],
)
def test_an_index_takes_a_few_times_its_own_size_in_memory(text, tmp_path):
    (tmp_path / INDEX).write_text(text)
    tracemalloc.start()
    try:
        refused(tmp_path, INDEX)
        assert tracemalloc.get_traced_memory()[1] < 12 * len(text) + (1 << 18)
    finally:
        tracemalloc.stop()


def test_a_checkpoint_takes_a_few_times_the_size_of_its_header_in_memory(tmp_path):
    name, size = "model.layers.{}.self_attn.q_proj.weight", 4000
    path = write(tmp_path / SINGLE, {name.format(i): entry("U8", [1, 1], i, i + 1) for i in range(size)}, bytes(size))
    tracemalloc.start()
    try:
        assert len(Checkpoint.open(path).tensors) == size
        assert tracemalloc.get_traced_memory()[1] < 7 * (path.stat().st_size - size)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text", ['{"weight_map":{"x":"a"},"weight_map":{"y":"a"}}', '{"metadata":{"a":1,"a":2},"weight_map":{"x":"a"}}',
             '{"metadata":1,"metadata":2,"weight_map":{"x":"a"}}'],
)  # fmt: skip
def test_no_name_of_an_index_occurs_twice(text, tmp_path):
    (tmp_path / INDEX).write_text(text)
    refused(tmp_path, INDEX, "twice")


# ---- writing -------------------------------------------------------------------------------------------


def stored(array: np.ndarray, name: str) -> Stored:
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
    return Stored(name, kinds[array.dtype.name], array.shape)


def test_the_package_reads_what_is_written_in_pieces(tmp_path):
    path = tmp_path / "m.safetensors"
    with ShardWriter(path, [stored(a, n) for n, a in ARRAYS.items()], {"format": "pt"}) as shard:
        for name in ("bf16", "i8", "f32", "f16", "scalar"):
            flat = ARRAYS[name].reshape(-1)
            for start in range(0, flat.size, 2):
                shard.write(name, flat[start : start + 2])
        assert not path.exists()
    assert [f.name for f in tmp_path.iterdir()] == ["m.safetensors"]
    theirs = load_file(path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(theirs[name], array, strict=True)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert shard.checksum == checksum(path)
    assert shard.nbytes == path.stat().st_size


def test_every_tensor_is_aligned():
    tensors = [Stored(f"{d}{i}", d, (i,)) for i in (1, 3, 0, 2) for d in ("I8", "BF16", "F32", "I64", "F16", "I32")]
    for name, e in shard_entries(tensors).items():
        assert e.begin % (DTYPE_BITS[e.dtype] // 8) == 0, name
    header = header_bytes({"a": Entry("I64", (1,), 0, 8)}, {})
    assert len(header) % 8 == 0


def test_a_changed_byte_changes_the_checksum(tmp_path):
    path = tmp_path / "m.safetensors"
    with ShardWriter(path, [stored(ARRAYS["f32"], "x")], {}) as shard:
        shard.write("x", ARRAYS["f32"])
    data = bytearray(path.read_bytes())
    for at in (-1, 20):
        changed = bytearray(data)
        changed[at] ^= 1
        (tmp_path / "other").write_bytes(changed)
        try:
            assert checksum(tmp_path / "other") != shard.checksum
        except FormatError:
            assert at == 20


def write_pieces(path: Path, pieces: list[Any]) -> None:
    with ShardWriter(path, [stored(ARRAYS["f32"], "x")], {}) as shard:
        for piece in pieces:
            if isinstance(piece, BaseException):
                raise piece
            shard.write("x", piece)


@pytest.mark.parametrize("pieces", [[], [4], [16, 16]])
def test_too_few_or_too_many_bytes_leave_nothing(pieces, tmp_path):
    with pytest.raises(InvalidProblem, match=r"^x: "):
        write_pieces(tmp_path / "m", [bytes(count) for count in pieces])
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_pieces(path, [ARRAYS["f32"], KeyboardInterrupt()])
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_two_tensors_of_one_name_are_refused(tmp_path):
    with pytest.raises(InvalidProblem, match="x: two tensors"):
        ShardWriter(tmp_path / "m", [stored(ARRAYS["f32"], "x")] * 2, {})
