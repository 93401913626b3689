"""Whole checkpoints: what is written, that it loads, and that nothing half-done is ever seen."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lowbit.formats.comparison import compare_files
from lowbit.formats.compressed_tensors import stream
from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed
from lowbit.formats.safetensors.checkpoint import INDEX, Checkpoint
from lowbit.formats.work_folder import MANIFEST, Assembly
from lowbit.models import Override, Recipe, WeightRecipe
from lowbit.models.weights import quantize_weight
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported

G32 = Recipe("g32", WeightRecipe("int4", group_size=32))


def numbers(*shape: int, seed: int = 0, kind: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.05).astype(kind)


def tensors(layers: int = 2, kind: Any = ml_dtypes.bfloat16) -> dict[str, np.ndarray]:
    made = {
        "model.embed_tokens.weight": numbers(40, 64, kind=kind),
        "lm_head.weight": numbers(40, 64, seed=1, kind=kind),
    }
    for i in range(layers):
        layer = f"model.layers.{i}"
        made |= {
            f"{layer}.self_attn.q_proj.weight": numbers(64, 64, seed=10 * i + 2, kind=kind),
            f"{layer}.mlp.up_proj.weight": numbers(96, 64, seed=10 * i + 3, kind=kind),
            f"{layer}.mlp.down_proj.weight": numbers(64, 96, seed=10 * i + 4, kind=kind),
            f"{layer}.input_layernorm.weight": numbers(64, seed=10 * i + 5, kind=kind),
            f"{layer}.mlp.up_proj.bias": numbers(96, seed=10 * i + 6, kind=kind),
        }
    return made


def saved(folder: Path, arrays: dict[str, np.ndarray] | None = None, config: Any = None, shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = tensors() if arrays is None else arrays
    if shards == 1:
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    else:
        names = sorted(arrays)
        index = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            save_file({n: arrays[n] for n in names[i::shards]}, folder / file, {"format": "pt"})
            index |= dict.fromkeys(names[i::shards], file)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama", "tie_word_embeddings": False}))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "notes.gguf").write_text("weights of another kind")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def listed(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


# ---- what is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shards", [1, 3])
def test_each_weight_is_what_its_rows_say(kind, shards, tmp_path):
    given = tensors(kind=kind)
    source = saved(tmp_path / "f", given, shards=shards)
    report = quantize_checkpoint(source, tmp_path / "q", G32, max_shard_bytes=6000)
    assert listed(tmp_path) == ["f", "q"]
    rows = {row.name: row for row in report.rows}
    assert set(rows) == {n for n, a in given.items() if a.ndim == 2}
    with Checkpoint.open(tmp_path / "q") as made:
        assert len(made.files) > 3
        for name, array in given.items():
            if name not in rows or not rows[name].treated:
                np.testing.assert_array_equal(made.read(name), array, strict=True)
                continue
            row = rows[name]
            scheme = Scheme(G32.weights)
            module = name.removesuffix(".weight")
            planned = scheme.stored(module, array.shape, row.dtype)
            local = {s.name.removeprefix(f"{module}."): np.array(made.read(s.name)) for s in planned}
            assert local["weight_shape"].tolist() == list(array.shape)
            assert row.bytes_after == sum(a.nbytes for a in local.values())
            found = decompressed(local, scheme, array.shape, row.dtype)
            expected = quantize_weight(array, G32.weights, scale_dtype=scheme.scale_dtype(row.dtype)).dequantize()
            np.testing.assert_array_equal(found, expected.astype(kind).astype(np.float32))
            wide = array.astype(np.float64)
            true = 10 * np.log10((wide**2).sum() / ((wide - expected) ** 2).sum())
            assert row.sqnr_db == pytest.approx(true, abs=1e-3)
    assert report.bytes_after == sum(f.stat().st_size for f in (tmp_path / "q").glob("*.safetensors"))
    assert {r.name for r in report.treated} == {n for n in rows if "layers" in n}
    assert not report.skipped


def test_blocks_of_rows_give_what_the_whole_gives(tmp_path, monkeypatch):
    source = saved(tmp_path / "f", {"a.q_proj.weight": numbers(70, 64), "a.k_proj.weight": numbers(33, 64, seed=1)})
    for name, recipe in {"sym": G32, "asym": G32.but(weights=WeightRecipe("uint4", "asymmetric", group_size=32)),
                         "tensor": G32.but(weights=WeightRecipe("int8", granularity="tensor"))}.items():  # fmt: skip
        quantize_checkpoint(source, tmp_path / f"{name}-whole", recipe)
        with monkeypatch.context() as small:
            small.setattr(stream, "_PIECE", 640)
            small.setattr(stream, "_BLOCK", 128)
            quantize_checkpoint(source, tmp_path / f"{name}-blocks", recipe)
        assert load_equal(tmp_path / f"{name}-whole", tmp_path / f"{name}-blocks")


def load_equal(a: Path, b: Path) -> bool:
    return (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


def test_bfloat16_without_ml_dtypes_gives_the_same_bytes(tmp_path, monkeypatch):
    source = saved(tmp_path / "f")
    quantize_checkpoint(source, tmp_path / "with", G32)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    quantize_checkpoint(source, tmp_path / "without", G32)
    assert load_equal(tmp_path / "with", tmp_path / "without")


def test_config_and_other_files(tmp_path):
    source = saved(tmp_path / "f")
    (source / "sub").mkdir()
    quantize_checkpoint(source, tmp_path / "q", G32)
    assert listed(tmp_path / "q") == [MANIFEST, "config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "q" / "tokenizer.json").read_text() == '{"a": 1}'
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["model_type"] == "llama"
    said = config["quantization_config"]
    assert (said["quant_method"], said["format"]) == ("compressed-tensors", "pack-quantized")
    assert said["quantization_status"] == "compressed"
    assert said["ignore"] == ["lm_head"]
    assert said["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert said["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_what_lies_beside_a_bare_file_is_not_copied(tmp_path):
    source = saved(tmp_path / "downloads")
    (source / "config.json").unlink()
    report = quantize_checkpoint(source / "model.safetensors", tmp_path / "q", G32)
    assert listed(tmp_path / "q") == [MANIFEST, "config.json", "model.safetensors"]
    assert any("no config.json" in note for note in report.notes)


def test_overrides_become_groups_of_their_own(tmp_path):
    recipe = G32.but(
        overrides=[
            Override("*.up_proj", WeightRecipe("int8")),
            Override("lm_head", WeightRecipe("int8")),
            Override("*.1.mlp.down_proj.weight", skip=True, reason="it is delicate"),
        ]
    )
    report = quantize_checkpoint(saved(tmp_path / "f"), tmp_path / "q", recipe)
    said = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    first, last = said["config_groups"].values()
    assert first["targets"] == ["lm_head", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]
    assert first["weights"]["num_bits"] == 8
    assert last["targets"] == ["Linear"]
    assert said["ignore"] == ["model.layers.1.mlp.down_proj"]
    rows = {row.name: row for row in report.rows}
    assert rows["lm_head.weight"].how == "int8 symmetric, per channel"
    assert rows["model.layers.1.mlp.down_proj.weight"].why_not == "it is delicate"
    assert not rows["model.layers.1.mlp.down_proj.weight"].asked


def test_patterns_match_the_module_or_its_tensor_and_the_later_override_wins(tmp_path):
    only = G32.but(skip=("*.weight",), overrides=[Override("*.q_proj")])
    report = quantize_checkpoint(saved(tmp_path / "f"), tmp_path / "q", only)
    assert {r.name.split(".")[-2] for r in report.treated} == {"q_proj"}
    assert "the recipe skips '*.weight'" in {r.why_not for r in report.rows}
    none = G32.but(overrides=[Override("*.q_proj"), Override("*.weight", skip=True)])
    with pytest.raises(InvalidProblem, match="the recipe skips"):
        quantize_checkpoint(tmp_path / "f", tmp_path / "q2", none)


def test_what_is_left_alone_and_why(tmp_path):
    given = tensors() | {
        "model.layers.0.mlp.gate.weight": numbers(8, 256),
        "model.layers.0.mlp.experts.gate_up_proj": numbers(4, 32, 64),
        "vision.patch.weight": numbers(8, 3, 14, 14),
        "odd.proj.weight": numbers(64, 60),
        "wide.proj.weight": numbers(64, 64, kind=np.float64),
        "small.proj.weight": numbers(4, 32),
        "none.proj.weight": numbers(0, 32),
        "model.wpe.weight": numbers(64, 64),
        "table": numbers(64, 64),
    }
    report = quantize_checkpoint(saved(tmp_path / "f", given), tmp_path / "q", G32)
    why = {row.name: (row.why_not, row.asked) for row in report.rows if not row.treated}
    assert {name for name, (_, asked) in why.items() if asked} == {row.name for row in report.skipped}
    odd = next(row for row in report.rows if row.name == "odd.proj.weight")
    assert (odd.how, odd.note) == (
        "int4 symmetric, groups of 30",
        "pack-quantized; groups of 30: 32 does not divide 60 inputs",
    )
    assert why.pop("wide.proj.weight") == ("dtype F64; expected F32, F16, BF16", True)
    assert why.pop("model.layers.0.mlp.experts.gate_up_proj") == (
        "3 dimensions; compressed-tensors stores matrices",
        True,
    )
    assert not any(asked for _, asked in why.values())
    assert "128 elements" in why["small.proj.weight"][0]
    assert "0 elements" in why["none.proj.weight"][0]
    assert "embeddings" in why["model.wpe.weight"][0]
    assert "routers" in why["model.layers.0.mlp.gate.weight"][0]
    assert "output head" in why["lm_head.weight"][0]
    theirs = load_file(tmp_path / "q" / "model.safetensors")
    for name in (*why, "wide.proj.weight"):
        np.testing.assert_array_equal(theirs[name], given[name], strict=True)
    with pytest.raises(InvalidProblem, match=r"^strict: wide.*F64.*, and 1 more$"):
        quantize_checkpoint(tmp_path / "f", tmp_path / "s", G32, strict=True)
    assert listed(tmp_path) == ["f", "q"]


def test_tied_heads_and_transposed_models_are_said(tmp_path):
    named = G32.but(overrides=[Override("lm_head"), Override("*.embed_tokens")])
    tied = saved(tmp_path / "f", config={"model_type": "llama", "tie_word_embeddings": True})
    report = quantize_checkpoint(tied, tmp_path / "q", named)
    assert [(r.name, r.why_not) for r in report.skipped] == [
        ("lm_head.weight", "it is one tensor with the embeddings (tie_word_embeddings)"),
        ("model.embed_tokens.weight", "transformers does not load quantized embeddings"),
    ]
    old = saved(tmp_path / "gpt2", {"h.0.attn.c_attn.weight": numbers(64, 192)}, {"model_type": "gpt2"})
    with pytest.raises(InvalidProblem, match="gpt2 has Conv1D modules"):
        quantize_checkpoint(old, tmp_path / "q2", G32)


def test_progress_counts_the_bytes_of_all_tensors(tmp_path):
    told: list[tuple[int, int, str]] = []
    quantize_checkpoint(saved(tmp_path / "f"), tmp_path / "q", G32, progress=lambda *now: told.append(now))
    total = sum(a.nbytes for a in tensors().values())
    assert told[-1][:2] == (total, total)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert {name for _, _, name in told} == set(tensors())


# ---- bad input: one line, nothing written --------------------------------------------------------------


def refused(source: Path, target: Path, error: type[Exception], *words: str, **options: Any) -> None:
    before = contents(source.parent)
    with pytest.raises(error) as caught:
        quantize_checkpoint(source, target, options.pop("recipe", G32), **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert contents(source.parent) == before
    assert not target.exists()
    assert not list(target.parent.glob(".*.partial"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_that_are_not_finite_are_named(bad, kind, tmp_path):
    given = tensors(kind=kind)
    given["model.layers.1.mlp.up_proj.weight"][70, 3] = bad
    place = "model.layers.1.mlp.up_proj.weight", "index (70, 3)", str(np.float32(bad))
    refused(saved(tmp_path / "f", given), tmp_path / "q", InvalidProblem, *place)


def test_the_index_of_a_bad_number_counts_all_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_PIECE", 1280)
    monkeypatch.setattr(stream, "_BLOCK", 128)
    given = {"a.q_proj.weight": numbers(64, 64)}
    given["a.q_proj.weight"][41, 5] = np.nan
    refused(saved(tmp_path / "f", given), tmp_path / "q", InvalidProblem, "a.q_proj.weight: nan at index (41, 5)")


def test_truncated_and_unknown_files(tmp_path):
    source = saved(tmp_path / "f")
    file = source / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    refused(source, tmp_path / "q", FormatError, "model.safetensors")
    file.write_bytes(whole.replace(b'"BF16"', b'"BF17"', 1))
    refused(source, tmp_path / "q", FormatError, "BF17")
    file.unlink()
    refused(source, tmp_path / "q", FormatError, "no .safetensors file")
    file.write_bytes(whole)
    (source / "config.json").write_text("{")
    refused(source, tmp_path / "q", FormatError, "config.json", "JSON")


@pytest.mark.parametrize(
    ("arrays", "config"),
    [
        (None, {"quantization_config": {"quant_method": "gptq"}}),
        ({"a.q_proj.weight": np.ones((64, 64), np.int8), "a.q_proj.weight_scale": np.ones((64, 1), np.float32)}, None),
        ({"a.q_proj.qweight": np.ones((64, 64), np.int32)}, None),
    ],
)
def test_quantized_checkpoints_are_left_alone(arrays, config, tmp_path):
    refused(saved(tmp_path / "f", arrays, config), tmp_path / "q", InvalidProblem, "already quantized", "left alone")


def test_its_own_output_is_recognised(tmp_path):
    quantize_checkpoint(saved(tmp_path / "f"), tmp_path / "q", G32)
    refused(tmp_path / "q", tmp_path / "q2", InvalidProblem, "already quantized", "compressed-tensors")


def test_nothing_to_do_is_an_error(tmp_path):
    refused(saved(tmp_path / "f"), tmp_path / "q", InvalidProblem, "no weight of", recipe=G32.but(skip=["*"]))


def test_static_activations_need_data(tmp_path):
    refused(saved(tmp_path / "f"), tmp_path / "q", Unsupported, "static", recipe="static-int8")


def test_the_source_is_never_overwritten(tmp_path):
    source = saved(tmp_path / "a" / "f")
    for target in (source, tmp_path / "a"):
        before = contents(tmp_path)
        with pytest.raises(InvalidProblem, match="the source is in it"):
            quantize_checkpoint(source, target, G32, overwrite=True)
        assert contents(tmp_path) == before


def test_a_full_folder_is_kept_unless_told(tmp_path):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    quantize_checkpoint(source, target, "W8A16")
    before = contents(target)
    for options in ({}, {"resume": True}):
        with pytest.raises(InvalidProblem, match="not empty"):
            quantize_checkpoint(source, target, G32, **options)
        assert contents(target) == before
    bad = tensors()
    bad["model.layers.1.mlp.up_proj.weight"][0, 0] = np.nan
    with pytest.raises(InvalidProblem, match="nan"):
        quantize_checkpoint(saved(tmp_path / "bad", bad), target, G32, overwrite=True)
    assert contents(target) == before
    quantize_checkpoint(source, target, G32, overwrite=True)
    assert contents(target) != before
    assert listed(tmp_path) == ["bad", "f", "q"]


# ---- what lowbit did not write is never deleted, and no link is followed -----------------------------------


@pytest.mark.parametrize("manifest", [None, "", "{", "[]", '{"fingerprint": 3}', '{"shards": {}}', "[" * 10_000])
@pytest.mark.parametrize("place", ["q", ".q.partial", ".q.old"])
@pytest.mark.parametrize("options", [{"overwrite": True}, {"resume": True}, {"overwrite": True, "resume": True}])
def test_a_folder_without_a_manifest_of_lowbits_is_neither_deleted_nor_resumed(options, place, manifest, tmp_path):
    source = saved(tmp_path / "f")
    (tmp_path / place / "thesis").mkdir(parents=True)
    (tmp_path / place / "thesis" / "chapter").write_text("x")
    if manifest is not None:
        (tmp_path / place / MANIFEST).write_text(manifest)
    before = contents(tmp_path)
    with pytest.raises(InvalidProblem, match=r"not empty, and not (written by lowbit|made by this recipe)"):
        quantize_checkpoint(source, tmp_path / "q", G32, **options)
    assert contents(tmp_path) == before
    assert ".q.partial" not in set(listed(tmp_path)) - {place}


@pytest.mark.parametrize("where", ["full", "marked", "empty", "file", "nowhere"])
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}, {"overwrite": True, "resume": True}])
def test_a_link_in_the_place_of_the_working_folder_is_refused_and_not_followed(options, where, tmp_path):
    source, there = saved(tmp_path / "f"), tmp_path / "there"
    if where == "file":
        there.write_text("x")
    elif where != "nowhere":
        there.mkdir()
    if where in ("full", "marked"):
        (there / "precious").write_text("x")
    if where == "marked":
        (there / MANIFEST).write_text('{"fingerprint": "", "shards": {}}')
    (tmp_path / ".q.partial").symlink_to(there)
    before = contents(tmp_path)
    with pytest.raises(InvalidProblem, match=r"\.q\.partial: a link or a file"):
        quantize_checkpoint(source, tmp_path / "q", G32, **options)
    assert contents(tmp_path) == before
    assert os.path.lexists(tmp_path / ".q.partial")


def test_links_inside_an_unfinished_run_are_deleted_and_not_followed(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    interrupted(source, target, 1, monkeypatch)
    precious = tmp_path / "precious"
    (precious / "inner").mkdir(parents=True)
    (precious / "inner" / "file").write_text("x")
    partial = tmp_path / ".q.partial"
    (partial / "link").symlink_to(precious)
    (partial / "deep").mkdir()
    (partial / "deep" / "link").symlink_to(precious)
    (finished,) = partial.glob("*.safetensors")  # a shard that is a link is not taken for finished
    os.rename(finished, tmp_path / "moved")
    finished.symlink_to(tmp_path / "moved")
    quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)
    assert contents(precious) == {"inner/file": b"x"}
    assert not any(f.is_symlink() for f in target.iterdir())
    assert listed(tmp_path) == ["f", "moved", "precious", "q"]


def test_links_inside_a_folder_that_is_overwritten_are_deleted_and_not_followed(tmp_path):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    quantize_checkpoint(source, target, "W8A16")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (target / "link").symlink_to(tmp_path / "precious")
    quantize_checkpoint(source, target, G32, overwrite=True)
    assert contents(tmp_path / "precious") == {"file": b"x"}
    assert not (target / "link").exists()


def test_what_is_put_into_the_target_during_a_run_is_kept_and_so_is_the_run(tmp_path):
    source, target = saved(tmp_path / "f"), tmp_path / "q"

    def meanwhile(*_: Any) -> None:
        target.mkdir(exist_ok=True)
        (target / "precious").write_text("x")

    with pytest.raises(FileExistsError, match="meanwhile") as caught:
        quantize_checkpoint(source, target, G32, overwrite=True, progress=meanwhile)
    assert caught.value.__notes__ == [
        f"1 finished shard is kept in {tmp_path / '.q.partial'}; resume goes on from there"
    ]
    assert listed(target) == ["precious"]
    (target / "precious").unlink()
    quantize_checkpoint(source, target, G32, resume=True)
    assert listed(tmp_path) == ["f", "q"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_to_a_folder_is_followed(there, tmp_path):
    source, real, target = saved(tmp_path / "f"), tmp_path / "big" / "disk", tmp_path / "q"
    if there:
        real.mkdir(parents=True)
    target.symlink_to(real)
    report = quantize_checkpoint(source, target, G32)
    assert report.target == str(target)
    quantize_checkpoint(source, tmp_path / "plain", G32)
    assert target.is_symlink()
    assert contents(real) == contents(tmp_path / "plain")
    quantize_checkpoint(source, target, "W8A16", overwrite=True)
    assert target.is_symlink()
    assert contents(real) != contents(tmp_path / "plain")
    assert listed(tmp_path / "big") == ["disk"]


def test_targets_that_cannot_be_written_are_found_before_the_source_is_read(tmp_path, monkeypatch):
    source = saved(tmp_path / "f")
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(
        "lowbit.formats.compressed_tensors.convert.open_checkpoint", lambda *_, **__: pytest.fail("it was read")
    )
    with pytest.raises(InvalidProblem, match="file: a file; expected a folder"):
        quantize_checkpoint(source, tmp_path / "file", G32)
    with pytest.raises(NotADirectoryError):
        quantize_checkpoint(source, tmp_path / "file" / "q", G32)
    (tmp_path / "kept").mkdir(0o500)
    for folder in ["/proc", *([] if os.geteuid() == 0 else [tmp_path / "kept"])]:
        with pytest.raises(OSError, match=f"no file can be written here.*{folder}'"):
            quantize_checkpoint(source, Path(folder, "new", "q"), G32)
    assert listed(tmp_path) == ["f", "file", "kept"]


# ---- one run at a time --------------------------------------------------------------------------------


def test_a_folder_that_another_run_has_locked_is_refused(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    interrupted(source, target, 1, monkeypatch)
    partial = tmp_path / ".q.partial"
    before = contents(tmp_path)
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    for options in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(InvalidProblem, match="another run is writing it"):
            quantize_checkpoint(source, target, G32, max_shard_bytes=6000, **options)
    os.close(handle)
    assert contents(tmp_path) == before
    quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)


def test_a_run_holds_the_lock_of_its_folder_until_it_ends(tmp_path):
    source, target, tried = saved(tmp_path / "f"), tmp_path / "q", []

    def another(*_: Any) -> None:
        handle = os.open(tmp_path / ".q.partial", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        tried.append(True)

    quantize_checkpoint(source, target, G32, progress=another)
    assert tried
    handle = os.open(target, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_a_full_disk_is_said_before_writing_and_keeps_what_is_finished(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    usage = lambda _: type("Usage", (), {"free": 10})  # noqa: E731
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", usage)
        with pytest.raises(OSError, match="10 are free"):
            quantize_checkpoint(source, target, G32)
    assert listed(tmp_path) == ["f"]
    interrupted(source, target, 2, monkeypatch)
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", usage)
        with pytest.raises(OSError, match="10 are free"):
            quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)
    assert len(list((tmp_path / ".q.partial").glob("*.safetensors"))) == 2


def test_links_out_of_the_folder_are_not_copied(tmp_path):
    source = saved(tmp_path / "f")
    (tmp_path / "secret.txt").write_text("x")
    (source / "vocab.txt").symlink_to("../secret.txt")
    refused(source, tmp_path / "q", FormatError, "vocab.txt", "leads out")


def test_pickles_need_leave_and_then_give_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    source = saved(tmp_path / "f")
    pickled = saved(tmp_path / "p")
    (pickled / "model.safetensors").unlink()
    given = {n: torch.from_numpy(a.astype(np.float32)).bfloat16() for n, a in tensors().items()}
    torch.save(given, pickled / "pytorch_model.bin")
    refused(pickled, tmp_path / "q", InvalidProblem, "pickle", "allow_pickle")
    quantize_checkpoint(pickled, tmp_path / "q", G32, allow_pickle=True)
    quantize_checkpoint(source, tmp_path / "r", G32)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "qr")
    assert {n: x.tobytes() for n, x in a.items()} == {n: x.tobytes() for n, x in b.items()}


def test_pickles_that_run_code_do_not(tmp_path):
    torch = pytest.importorskip("torch")

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    (tmp_path / "p").mkdir()
    torch.save({"w": Evil()}, tmp_path / "p" / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"pytorch_model\.bin"):
        quantize_checkpoint(tmp_path / "p", tmp_path / "q", G32, allow_pickle=True)
    assert listed(tmp_path) == ["p"]


CHANGES: dict[str, dict[str, np.ndarray | None]] = {
    "no scales": {"weight_scale": None},
    "no shape": {"weight_shape": None},
    "a shape of three": {"weight_shape": np.array([64, 64, 1])},
    "other rows": {"weight_shape": np.array([1 << 40, 64])},
    "no columns": {"weight_shape": np.array([64, 0])},
    "many columns": {"weight_shape": np.array([64, 1 << 40])},
    "few columns": {"weight_shape": np.array([64, 1])},
    "no groups": {"weight_scale": np.ones((64, 0), np.float32)},
    "scales in a cube": {"weight_scale": np.ones((2, 2, 2), np.float32)},
    "integer scales": {"weight_scale": np.ones((64, 2), np.int32)},
    "a row of words": {"weight_packed": np.ones(64, np.int32)},
    "zero points of other rows": {"weight_zero_point": np.ones((3, 2), np.int32)},
}


@pytest.mark.parametrize("case", CHANGES)
def test_comparing_with_a_layout_that_is_none_is_one_of_lowbits_errors(case, tmp_path):
    given = {"a.q_proj.weight": numbers(64, 64, kind=np.float32)}
    source = saved(tmp_path / "f", given)
    quantize_checkpoint(source, tmp_path / "q", G32)
    file = tmp_path / "q" / "model.safetensors"
    arrays = load_file(file)
    for name, array in CHANGES[case].items():
        arrays.pop(f"a.q_proj.{name}", None)
        if array is not None:
            arrays[f"a.q_proj.{name}"] = array
    save_file(arrays, file, {"format": "pt"})
    with pytest.raises((FormatError, InvalidProblem, Unsupported)):
        compare_files(source, tmp_path / "q")


# ---- runs that end early -------------------------------------------------------------------------------


def interrupted(source: Path, target: Path, after: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A run that ends without a chance to tidy up after so many shards."""
    finish, count = Assembly.finish, 0

    def counted(self: Assembly, *shard: Any) -> None:
        nonlocal count
        finish(self, *shard)
        count += 1
        if count == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Assembly, "finish", counted)
        with pytest.raises(KeyboardInterrupt):
            quantize_checkpoint(source, target, G32, max_shard_bytes=6000, **options)


def test_resuming_keeps_what_is_finished_and_gives_the_same_bytes(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f", shards=2), tmp_path / "q"
    whole = quantize_checkpoint(source, tmp_path / "whole", G32, max_shard_bytes=6000)
    interrupted(source, target, 2, monkeypatch)
    assert not target.exists()
    partial = tmp_path / ".q.partial"
    kept = {f.name: f.stat().st_ino for f in partial.glob("*.safetensors")}
    assert len(kept) == 2
    with pytest.raises(InvalidProblem, match="an unfinished run"):
        quantize_checkpoint(source, target, G32, max_shard_bytes=6000)
    (partial / ".model-00003.tmp").write_text("half a shard")
    resumed = quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)
    assert contents(target) == contents(tmp_path / "whole")
    assert {name: (target / name).stat().st_ino for name in kept} == kept
    assert [(r.name, round(r.sqnr_db or 0, 4)) for r in resumed.treated] == [
        (r.name, round(r.sqnr_db or 0, 4)) for r in whole.treated
    ]
    assert listed(tmp_path) == ["f", "q", "whole"]


def test_a_finished_shard_that_was_damaged_is_written_again(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    quantize_checkpoint(source, tmp_path / "whole", G32, max_shard_bytes=6000)
    interrupted(source, target, 3, monkeypatch)
    first, second, _ = sorted((tmp_path / ".q.partial").glob("*.safetensors"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    os.truncate(second, 100)
    quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)
    assert contents(target) == contents(tmp_path / "whole")


def test_resuming_something_else_is_refused(tmp_path, monkeypatch):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    interrupted(source, target, 1, monkeypatch)
    for changes in ({"recipe": "W8A16"}, {"max_shard_bytes": 7000}):
        options = {"recipe": G32, "max_shard_bytes": 6000, **changes}
        with pytest.raises(InvalidProblem, match="another source, recipe or version"):
            quantize_checkpoint(source, target, resume=True, **options)
    os.utime(source / "model.safetensors", (1, 1))
    with pytest.raises(InvalidProblem, match="another source"):
        quantize_checkpoint(source, target, G32, max_shard_bytes=6000, resume=True)
    quantize_checkpoint(source, target, G32, overwrite=True, resume=True)
    assert listed(tmp_path) == ["f", "q"]
    assert listed(target) == [MANIFEST, "config.json", "model.safetensors", "tokenizer.json"]


def test_resuming_a_finished_run_does_nothing(tmp_path):
    source, target = saved(tmp_path / "f"), tmp_path / "q"
    first = quantize_checkpoint(source, target, G32)
    before = {f: f.stat().st_mtime_ns for f in target.iterdir()}
    again = quantize_checkpoint(source, target, G32, resume=True)
    assert {f: f.stat().st_mtime_ns for f in target.iterdir()} == before
    assert [r.name for r in again.treated] == [r.name for r in first.treated]
    assert any("nothing to do" in note for note in again.notes)


CHILD = """
import sys
from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
print("go", flush=True)
quantize_checkpoint(sys.argv[1], sys.argv[2], "W4A16_ASYM", max_shard_bytes=60_000, resume=True)
print("done", flush=True)
"""


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.deep)])
def test_killed_at_any_moment_and_resumed_gives_the_same_bytes(kills, tmp_path):
    given = {f"layers.{i}.up_proj.weight": numbers(256, 256, seed=i) for i in range(24)}
    source, target = saved(tmp_path / "f", given, shards=3), tmp_path / "q"
    start = time.perf_counter()
    quantize_checkpoint(source, tmp_path / "whole", "W4A16_ASYM", max_shard_bytes=60_000)
    whole = contents(tmp_path / "whole")
    assert len([name for name in whole if name.endswith(".safetensors")]) >= 12
    longest = time.perf_counter() - start
    luck, early = random.Random(7), 0
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", CHILD, source, target], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        time.sleep(luck.uniform(0, 0.7 * longest))
        child.send_signal(signal.SIGKILL)
        child.wait()
        if target.exists():
            assert contents(target) == whole
            for file in target.iterdir():
                file.unlink()
            target.rmdir()
        else:
            early += 1
        child.stdout.close()
    assert early, "every run had ended before it was killed"
    quantize_checkpoint(source, target, "W4A16_ASYM", max_shard_bytes=60_000, resume=True)
    assert contents(target) == whole
    assert listed(tmp_path) == ["f", "q", "whole"]
