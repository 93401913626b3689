"""Folders of statistics: the same bytes however they come about, read lazily, merged exactly, and every fault named."""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowbit.calibration import Moments
from lowbit.formats import statistics
from lowbit.formats.statistics import (
    DataDigest,
    DataPart,
    Shard,
    StatisticsWriter,
    merge_statistics,
    model_fingerprint,
    open_statistics,
    save_statistics,
)
from lowbit.formats.statistics.data import joined
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.container import write_arrays

WHOLE = DataPart("d", 30)
THIRDS = [DataPart("d", 30, 3, (i,), "o") for i in (1, 2, 3)]


def rows(count: int = 30, width: int = 5, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, width)) * 10.0 ** rng.integers(-3, 3, (count, 1))).astype(np.float32)


def moments(x: np.ndarray[Any, Any], **options: Any) -> Moments:
    made = Moments(x.shape[1], name="x", **options)
    made.add(x)
    return made


def of_layers(index: slice = slice(None), gram: bool = True) -> dict[str, Moments]:
    """q and k share their inputs; up is wider."""
    narrow, wide = moments(rows()[index], gram=gram), moments(rows(width=9, seed=1)[index], gram=gram)
    return {"q": narrow, "k": narrow, "up": wide}


def save(found: dict[str, Moments], folder: Path, data: Any = WHOLE, **options: Any) -> Path:
    save_statistics(found, folder, **{"model": "m", "data": data, "options": {"gram": True}} | options)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def same(a: Moments, b: Moments) -> bool:
    (mine, about), (theirs, other) = a.to_arrays(), b.to_arrays()
    return about == other and mine.keys() == theirs.keys() and all(np.array_equal(mine[n], theirs[n]) for n in mine)


# ---- written and read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gram", [True, False])
def test_what_is_saved_is_what_is_read(gram: bool, tmp_path: Path) -> None:
    found = of_layers(gram=gram)
    stats = open_statistics(save(found, tmp_path / "s"))
    assert list(stats) == ["k", "q", "up"]
    assert all(same(stats[name], found[name]) for name in found)
    assert [group.names for group in stats.shared()] == [("k", "q"), ("up",)]
    group = stats.of("up")
    assert (group.width, group.groups, group.rows, group.has_gram) == (9, 1, 30, gram)
    assert stats.nbytes == sum(f.stat().st_size for f in (tmp_path / "s").glob("*.safetensors"))
    assert (stats.model, stats.data, stats.options, stats.records) == ("m", (WHOLE,), {"gram": True}, 30)


def test_layers_that_share_inputs_share_an_object_and_one_is_in_memory(tmp_path: Path) -> None:
    stats = open_statistics(save(of_layers(), tmp_path / "s"))
    held = weakref.ref(stats["q"])
    assert stats["k"] is held()
    assert stats["up"].width == 9
    gc.collect()
    assert held() is None
    kept = stats["q"]
    assert stats["up"].width == 9
    assert stats["k"] is kept  # as long as the caller holds it


def test_bytes_do_not_depend_on_the_order_of_layers_or_rows(tmp_path: Path) -> None:
    first = contents(save(of_layers(), tmp_path / "a"))
    turned = of_layers(slice(None, None, -1))
    assert contents(save(dict(reversed(turned.items())), tmp_path / "b")) == first
    assert len(first) == 4  # two files, the index and the manifest
    other = contents(save(of_layers(slice(1, None)), tmp_path / "c"))
    assert other != first


def test_a_writer_refuses_what_would_be_lost(tmp_path: Path) -> None:
    with StatisticsWriter(tmp_path / "s", model="m", data=WHOLE, options={}) as writer:
        writer.put(["a"], moments(rows()))
        for names, message in ((["a", "b"], "'a' twice"), (["c", "c"], "'c' twice"), ([], "none")):
            with pytest.raises(InvalidProblem, match=message):
                writer.put(names, moments(rows()))
        with pytest.raises(InvalidProblem, match="b: no rows"):
            writer.put(["b"], Moments(4))
        writer.commit()
    assert list(open_statistics(tmp_path / "s")) == ["a"]
    with pytest.raises(InvalidProblem, match="no layer"):
        save({}, tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


# ---- resumed ------------------------------------------------------------------------------------------


def interrupted(folder: Path, **options: Any) -> None:
    def run() -> None:
        with writer_of(folder, **options) as writer:
            writer.put(["q", "k"], of_layers()["q"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


def writer_of(folder: Path, **options: Any) -> StatisticsWriter:
    return StatisticsWriter(folder, **{"model": "m", "data": WHOLE, "options": {"gram": True}} | options)


def test_a_resumed_run_goes_on_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    expected = contents(save(of_layers(), tmp_path / "s"))
    interrupted(tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(InvalidProblem, match=r"an unfinished run is in \.r\.partial; resume it"):
        open_statistics(tmp_path / "r")
    with writer_of(tmp_path / "r", resume=True) as writer:
        assert set(writer.finished) == {"q", "k"}
        writer.put(["up"], of_layers()["up"])
        writer.commit()
    assert contents(tmp_path / "r") == expected
    assert not (tmp_path / ".r.partial").exists()
    with writer_of(tmp_path / "r", resume=True) as writer:
        assert writer.complete
        assert set(writer.finished) == {"q", "k", "up"}


def test_a_damaged_file_is_not_resumed(tmp_path: Path) -> None:
    interrupted(tmp_path / "r")
    (file,) = (tmp_path / ".r.partial").glob("*.safetensors")
    flip(file, -3)
    with writer_of(tmp_path / "r", resume=True) as writer:
        assert not writer.finished
        for names, found in ((["k", "q"], of_layers()["q"]), (["up"], of_layers()["up"])):
            writer.put(names, found)
        writer.commit()
    assert contents(tmp_path / "r") == contents(save(of_layers(), tmp_path / "s"))


@pytest.mark.parametrize("change", [{"model": "n"}, {"data": DataPart("e", 30)}, {"options": {"gram": False}}])
def test_another_run_is_not_resumed(change: dict[str, Any], tmp_path: Path) -> None:
    interrupted(tmp_path / "r")
    with (
        pytest.raises(InvalidProblem, match="of another source, recipe or version"),
        writer_of(tmp_path / "r", resume=True, **change),
    ):
        pass
    save(of_layers(), tmp_path / "s")
    with pytest.raises(InvalidProblem, match="not empty"), writer_of(tmp_path / "s", resume=True, **change):
        pass


def test_what_is_there_is_replaced_only_on_request_and_never_a_foreign_folder(tmp_path: Path) -> None:
    save(of_layers(), tmp_path / "s")
    before = contents(tmp_path / "s")
    with pytest.raises(InvalidProblem, match="already there"):
        save(of_layers(gram=False), tmp_path / "s")
    assert contents(tmp_path / "s") == before
    save(of_layers(gram=False), tmp_path / "s", overwrite=True)
    assert not open_statistics(tmp_path / "s").of("q").has_gram
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(InvalidProblem, match="not written by lowbit"):
        save(of_layers(), tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "file").read_text() == "x"


# ---- merged -------------------------------------------------------------------------------------------


def thirds(tmp_path: Path) -> list[Path]:
    return [save(of_layers(slice(i, None, 3)), tmp_path / f"p{i}", THIRDS[i]) for i in range(3)]


def test_shards_merge_to_the_bytes_of_one_run(tmp_path: Path) -> None:
    whole, parts = save(of_layers(), tmp_path / "s"), thirds(tmp_path)
    merge_statistics([parts[2], parts[0], parts[1]], tmp_path / "m")
    assert contents(tmp_path / "m") == contents(whole)
    some = merge_statistics([parts[2], parts[0]], tmp_path / "some")
    assert any("lack shard 2/3" in note for note in some.notes())
    assert some.records == 20
    merge_statistics([tmp_path / "some", parts[1]], tmp_path / "late")
    assert contents(tmp_path / "late") == contents(whole)


def test_other_data_are_added(tmp_path: Path) -> None:
    save(of_layers(slice(0, 10)), tmp_path / "a", DataPart("a", 10))
    save(of_layers(slice(10, None)), tmp_path / "b", DataPart("b", 20))
    both = merge_statistics([tmp_path / "b", tmp_path / "a"], tmp_path / "ab")
    assert same(both["up"], of_layers()["up"])
    assert both.data == (DataPart("a", 10), DataPart("b", 20))
    with pytest.raises(InvalidProblem, match="a: data: the same data twice"):
        merge_statistics([tmp_path / "ab", tmp_path / "a"], tmp_path / "aba")
    assert not (tmp_path / "aba").exists()


def test_a_layer_that_only_some_shards_reached_is_kept(tmp_path: Path) -> None:
    parts = thirds(tmp_path)
    save({"up": of_layers(slice(0, None, 3))["up"]}, parts[0], THIRDS[0], overwrite=True)
    found = merge_statistics(parts, tmp_path / "m")
    assert (found.of("up").rows, found.of("q").rows) == (30, 20)


def test_merging_leaves_its_inputs_alone_and_can_be_resumed(tmp_path: Path) -> None:
    parts = thirds(tmp_path)
    before = [contents(part) for part in parts]

    def stop(done: int, total: int) -> None:
        assert total == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_statistics(parts, tmp_path / "m", progress=stop)
    with pytest.raises(InvalidProblem, match="resume it, or overwrite"):
        merge_statistics(parts, tmp_path / "m")
    merge_statistics(parts, tmp_path / "m", resume=True)
    assert [contents(part) for part in parts] == before
    assert contents(tmp_path / "m") == contents(save(of_layers(), tmp_path / "s"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "n"}, "p: statistics of another model"),
        ({"options": {"gram": True, "batch_size": 4}}, r"p: collected with batch_size 4 \(not None\)"),
        ({"data": DataPart("d", 30, 3, (1,), "o")}, "p: data: shard 1/3 twice"),
        ({"data": DataPart("d", 30, 4, (2,), "o")}, "shards of 1/3 and 1/4"),
        ({"data": DataPart("d", 30, 3, (2,), "turned")}, "the same data in another order"),
        ({"found": {"q": moments(rows()), "k": moments(rows()), "up": moments(rows())}}, "other layers share"),
        ({"found": of_layers(gram=False)}, "it does not fit"),
    ],
)
def test_what_does_not_belong_together_is_not_merged(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    first = save(of_layers(), tmp_path / "f", THIRDS[0])
    given = {"found": of_layers(), "data": THIRDS[1]} | change
    second = save(given.pop("found"), tmp_path / "p", **given)
    with pytest.raises(InvalidProblem, match=message):
        merge_statistics([first, second], tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "p"]


def test_a_merge_needs_two_folders_and_another_name(tmp_path: Path) -> None:
    parts = thirds(tmp_path)
    with pytest.raises(InvalidProblem, match="folders: 1"):
        merge_statistics(parts[:1], tmp_path / "m")
    with pytest.raises(InvalidProblem, match="one of the folders to merge"):
        merge_statistics(parts, parts[0], overwrite=True)
    (tmp_path / "link").symlink_to(parts[0])
    with pytest.raises(InvalidProblem, match="one of the folders to merge"):
        merge_statistics(parts, tmp_path / "link", overwrite=True)


# ---- faults -------------------------------------------------------------------------------------------


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("at", [0, 9, 200, -1])
def test_a_flipped_bit_is_found_and_the_file_named(at: int, tmp_path: Path) -> None:
    stats = open_statistics(save(of_layers(), tmp_path / "s"))
    file = tmp_path / "s" / stats.of("up").file
    flip(file, at)
    with pytest.raises(FormatError, match=file.name):
        stats["up"]
    assert stats["q"].width == 5  # the others can still be read
    with pytest.raises(FormatError, match=file.name):
        merge_statistics([tmp_path / "s", save(of_layers(), tmp_path / "t", DataPart("e", 1))], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_truncated_or_missing_file_is_named(tmp_path: Path) -> None:
    stats = open_statistics(save(of_layers(), tmp_path / "s"))
    file = tmp_path / "s" / stats.of("up").file
    os.truncate(file, file.stat().st_size - 8)
    with pytest.raises(FormatError, match=f"{file.name}: {file.stat().st_size} bytes; expected"):
        stats["up"]
    file.unlink()
    with pytest.raises(FormatError, match=f"{file.name}.*no such file"):
        stats["up"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an index"), ("[]", "not an index"), ("[" * 100_000, "not an index"),
        (json.dumps({"version": 2}), "version 2; this lowbit reads 1"),
        (json.dumps({"version": 1, "files": {"x": {}}}), "not an index"),
        (json.dumps({"version": 1, "files": {}, "data": [{"digest": "d", "records": -1}]}), "not a set of records"),
        (json.dumps({"version": 1, "files": {}, "data": [], "model": 3, "options": {}}), "model and options"),
    ],
)  # fmt: skip
def test_an_index_that_is_none_is_named(text: str, message: str, tmp_path: Path) -> None:
    index = save(of_layers(), tmp_path / "s") / "statistics.json"
    index.write_text(text)
    with pytest.raises(FormatError, match=message) as raised:
        open_statistics(tmp_path / "s")
    assert str(index) in str(raised.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link.safetensors"])
def test_an_index_does_not_lead_out_of_its_folder(name: str, tmp_path: Path) -> None:
    folder = save(of_layers(), tmp_path / "s")
    write_arrays(tmp_path / "secret", {"a": rows()}, {})
    (folder / "link.safetensors").symlink_to(tmp_path / "secret")
    index = json.loads((folder / "statistics.json").read_text())
    index["files"] = {name: next(iter(index["files"].values()))}
    (folder / "statistics.json").write_text(json.dumps(index))
    stats = open_statistics(folder)
    with pytest.raises(FormatError, match="out of the folder"):
        stats[next(iter(stats))]


def test_folders_without_statistics_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match="none: not there"):
        open_statistics(tmp_path / "none")
    with pytest.raises(InvalidProblem, match="not a folder of statistics"):
        open_statistics(tmp_path)
    assert not statistics.is_statistics(tmp_path)
    stats = open_statistics(save(of_layers(), tmp_path / "s"))
    stats.refuse_other("m")
    with pytest.raises(InvalidProblem, match="another model"):
        stats.refuse_other("n")


def test_few_rows_are_noted_with_their_consequence(tmp_path: Path) -> None:
    (note,) = open_statistics(save(of_layers(slice(0, 6)), tmp_path / "s")).notes()
    assert "1 layer has more inputs than rows of data (up: 9 inputs, 6 rows)" in note
    assert "singular" in note
    assert open_statistics(save(of_layers(slice(0, 6), gram=False), tmp_path / "d")).notes() == []


# ---- fingerprints -------------------------------------------------------------------------------------


def test_a_digest_of_data_sees_every_change_and_no_order() -> None:
    def digest(*records: dict[str, Any]) -> str:
        made = DataDigest()
        for record in records:
            made.add(record)
        return made.part().digest

    a, b = {"x": np.int64([1, 2]), "y": np.float32([0.5])}, {"x": np.int64([3]), "y": np.float32([1])}
    turned = {"y": np.ascontiguousarray(a["y"]), "x": np.arange(1, 5)[:2][::1].astype(">i8")}
    assert digest(a, b) == digest(b, a) == digest(b, turned)
    others = [
        (a,), (a, a), (a, a, b), (a, {**b, "x": np.int64([4])}), (a, {**b, "x": np.int32([3])}),
        (a, {**b, "x": np.int64([[3]])}), (a, {"z": b["x"], "y": b["y"]}), (a, {"x": b["x"]}),
        (a, {"x": np.array(["3"]), "y": b["y"]}), (a, {"x": np.array(["4"]), "y": b["y"]}),
    ]  # fmt: skip
    found = [digest(a, b), *(digest(*other) for other in others)]
    assert len(set(found)) == len(found)


def test_shards_part_the_records() -> None:
    taken = [(i, k) for k in range(1, 5) for i in range(11) if Shard(k, 4).takes(i)]
    assert sorted(taken) == [(i, i % 4 + 1) for i in range(11)]
    for text in ("0/3", "4/3", "1", "a/b", "1/", "-1/3", "1/3/5", "1/99999999", "１/３" * 9):
        with pytest.raises(InvalidProblem, match="shard: "):
            Shard.parse(text)
    digest = DataDigest()
    digest.add({"x": np.zeros(1)})
    with pytest.raises(InvalidProblem, match="2/2; the data have 1 record,"):
        digest.part(Shard(2, 2))


def test_parts_of_data_are_joined_to_one_form() -> None:
    assert joined(THIRDS) == joined([*reversed(THIRDS)]) == (DataPart("d", 30),)
    assert joined([THIRDS[2]]) == (THIRDS[2],)
    assert DataPart.from_dict(THIRDS[2].to_dict()) == THIRDS[2]
    assert DataPart.from_dict(WHOLE.to_dict()) == WHOLE
    for change in ({"of": 2}, {"parts": [3, 1]}, {"parts": [1, 1]}, {"order": ""}, {"parts": []}, {"records": 0}):
        with pytest.raises(FormatError):
            DataPart.from_dict(THIRDS[2].to_dict() | change)


def test_the_fingerprint_of_a_checkpoint_is_of_its_content(tmp_path: Path) -> None:
    arrays = {name: rows(seed=i) for i, name in enumerate("ab")}

    def made(folder: str, files: dict[str, list[str]], config: str = '{"layers": 2}', **change: Any) -> str:
        (tmp_path / folder).mkdir()
        for file, names in files.items():
            write_arrays(tmp_path / folder / file, {n: (arrays | change)[n] for n in names}, {"of": folder})
        (tmp_path / folder / "config.json").write_text(config)
        return model_fingerprint(tmp_path / folder)

    one = made("one", {"model.safetensors": ["a", "b"]})
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    os.utime(tmp_path / "copy" / "model.safetensors", (1, 1))
    assert model_fingerprint(tmp_path / "copy") == one
    assert made("two", {"y.safetensors": ["b"], "x.safetensors": ["a"]}) == one
    assert made("later", {"m.safetensors": ["a", "b"]}, '{"transformers_version": "5", "layers": 2}') == one
    changed = arrays["b"].copy()
    changed[3, 3] = np.nextafter(changed[3, 3], np.float32(9))
    assert made("bit", {"m.safetensors": ["a", "b"]}, b=changed) != one
    assert made("shape", {"m.safetensors": ["a", "b"]}, b=arrays["b"].reshape(5, -1)) != one
    assert made("config", {"m.safetensors": ["a", "b"]}, '{"layers": 3}') != one
    assert made("less", {"m.safetensors": ["a"]}) != one


def test_the_fingerprint_of_an_onnx_model_is_of_its_external_data_too(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnx_models as made
    from lowbit.formats.onnx.graph import Graph

    Graph.load(made.matmul()).save(tmp_path / "a.onnx", external_data=True)
    (data,) = (p for p in tmp_path.iterdir() if p.name != "a.onnx")
    first = model_fingerprint(tmp_path / "a.onnx")
    os.utime(data, (1, 1))
    assert model_fingerprint(tmp_path / "a.onnx") == first
    flip(data, 5)
    assert model_fingerprint(tmp_path / "a.onnx") != first


def test_layers_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"layers.{i}.{part}.weight" for i in (0, 2, 10) for part in ("down", "up")]
    found = {name: moments(rows(2)) for name in reversed(names)}
    assert list(open_statistics(save(found, tmp_path / "s"))) == names
