"""Checkpoints quantized with statistics of their inputs: from text and from files, the same bytes however it is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import transformers

import lowbit as lb
import torch
from lowbit.calibration import Moments
from lowbit.formats.causal_lm import network
from lowbit.formats.causal_lm.observe import FIRST_TOKEN_SHARE, token_weights
from lowbit.formats.compressed_tensors import solver
from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed
from lowbit.formats.observing import observe_file
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.formats.statistics import open_statistics
from lowbit.models import Override, Recipe, WeightRecipe
from lowbit.models.weights import LayerInputs, predicted_db, quantize_weight
from lowbit.numerics.errors import InvalidProblem
from tiny_llm import linear_inputs, sequences, words, write_llm, write_tokenizer

G32 = Recipe.of("W4A16").but(weights=WeightRecipe("int4", group_size=32))
ASYM = Recipe.of("W4A16_ASYM").but(weights=WeightRecipe("uint4", "asymmetric", group_size=32))
TOKENS = sequences(6, 60)


def contents(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def stored(folder: Path, name: str, recipe: WeightRecipe, dtype: str = "F32") -> np.ndarray:
    with Checkpoint.open(folder) as opened:
        module = name.removesuffix(".weight")
        local = {
            n.removeprefix(f"{module}."): np.array(opened.read(n)) for n in opened.tensors if n.startswith(f"{module}.")
        }
        n, k = local["weight_shape"].tolist()
        return decompressed(local, Scheme(recipe), (n, k), dtype)


@pytest.mark.parametrize("method", ["hqq", "adaround"])
def test_other_methods_are_those_of_recipes(method: str, tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    recipe = ASYM.but(weights=WeightRecipe("uint4", "asymmetric", group_size=32, method=method))
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, data=TOKENS if method == "adaround" else None)
    assert {r.method for r in report.treated} == {method}


@pytest.mark.parametrize("recipe", [G32, ASYM], ids=["symmetric", "asymmetric"])
def test_codes_are_those_of_the_moments_of_the_whole_model(recipe: Recipe, tmp_path: Path) -> None:
    model = write_llm(tmp_path / "f")
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, data=TOKENS)
    weights = dict(model.named_parameters())
    # Moments of the same float activations, up to how torch rounds its sums.
    for name, rows in linear_inputs(model, TOKENS).items():
        if name == "lm_head.weight":
            continue
        moments = Moments(rows.shape[1])
        for x in rows.astype(np.float32).reshape(len(TOKENS), -1, rows.shape[1]):
            moments.add(x, token_weights(torch.from_numpy(x), FIRST_TOKEN_SHARE))
        inputs, w = LayerInputs(moments), weights[name].detach().numpy()
        expected = quantize_weight(w, recipe.weights, inputs=inputs, scale_dtype="bfloat16")
        found = stored(tmp_path / "q", name, recipe.weights)
        assert np.mean(found == expected.dequantize()) > 0.99, name
        row = next(r for r in report.rows if r.name == name)
        assert row.method == "gptq"
        assert row.predicted_db == pytest.approx(predicted_db(w, expected, inputs), abs=0.2)
        assert row.bits == 8 * row.bytes_after / w.size
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "q"]
    assert not [name for name in contents(tmp_path / "q") if "solved" in name or "hidden" in name]


def test_outputs_are_nearer_to_float_than_those_of_rounding(tmp_path: Path) -> None:
    model = write_llm(tmp_path / "f")
    error, many = {}, sequences(20, 60)
    for method, data in {"rtn": None, "mse": None, "weighted": many, "gptq": many}.items():
        made = ASYM.but(weights=WeightRecipe("uint4", "asymmetric", group_size=32, method=method))
        report = quantize_checkpoint(tmp_path / "f", tmp_path / method, made, data=data)
        assert {r.method for r in report.treated} == {method}
        quantized = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "f")
        for name, parameter in quantized.named_parameters():
            if name in {r.name for r in report.treated}:
                parameter.data = torch.from_numpy(stored(tmp_path / method, name, made.weights))
        held_out = torch.from_numpy(np.stack(sequences(4, 60, seed=9)))
        with torch.no_grad():
            error[method] = float((model(held_out).logits - quantized(held_out).logits).square().mean())
    assert error["gptq"] < 0.8 * min(error["rtn"], error["mse"])
    assert error["weighted"] < error["rtn"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_transformers_loads_the_result(dtype: Any, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    write_llm(tmp_path / "f", dtype=dtype)
    quantize_checkpoint(tmp_path / "f", tmp_path / "q", G32, data=TOKENS)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q").eval()
    with torch.no_grad():
        loaded(torch.from_numpy(TOKENS[0])[None])  # weights are decompressed at the first call
    name = "model.layers.1.mlp.up_proj.weight"
    ours = stored(tmp_path / "q", name, G32.weights, {torch.float16: "F16", torch.bfloat16: "BF16"}[dtype])
    assert np.array_equal(loaded.get_parameter(name).detach().float().numpy(), ours)


def test_awq_folds_scales_into_norms(tmp_path: Path) -> None:
    model = write_llm(tmp_path / "f")
    with torch.no_grad():  # some inputs that count far more, as in trained models
        for layer in model.model.layers:
            layer.input_layernorm.weight[::16] = 20
            layer.post_attention_layernorm.weight[::16] = 20
    model.save_pretrained(tmp_path / "f")
    error = {}
    for method in ("weighted", "awq"):
        recipe = G32.but(weights=WeightRecipe("int4", group_size=32, method=method))
        report = quantize_checkpoint(tmp_path / "f", tmp_path / method, recipe, data=TOKENS)
        assert {r.method for r in report.treated} == {method}
        alone = {r.name.split(".")[-2] for r in report.treated if "no norm before it" in r.note}
        assert alone == (set() if method == "weighted" else {"o_proj", "down_proj"})
        made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "f").eval()
        treated = {r.name for r in report.treated}
        with Checkpoint.open(tmp_path / method) as opened, torch.no_grad():
            for name, parameter in made.named_parameters():
                found = (
                    stored(tmp_path / method, name, recipe.weights) if name in treated else np.array(opened.read(name))
                )
                parameter.copy_(torch.from_numpy(found))
            logits = model(torch.from_numpy(np.stack(TOKENS))).logits - made(torch.from_numpy(np.stack(TOKENS))).logits
        error[method] = float(logits.square().mean())
    assert error["awq"] < 0.9 * error["weighted"]


def test_norms_in_16_bits_keep_the_function(tmp_path: Path) -> None:
    """Weights of 8 bits take the scale of the norm as it is stored, so that its rounding costs nothing."""
    model = write_llm(tmp_path / "f", dtype=torch.bfloat16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight.copy_(torch.rand(64).exp2())
            layer.input_layernorm.weight[::16] = 20
    model.save_pretrained(tmp_path / "f")
    model.float()
    recipe = G32.but(weights=WeightRecipe("int8", group_size=32, method="awq"))
    quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, data=TOKENS)
    norm, weight = "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight"
    with Checkpoint.open(tmp_path / "q") as opened:
        divided = np.array(opened.read(norm)).astype(np.float32)
    assert len(set(divided.tolist())) > 20
    found = stored(tmp_path / "q", weight, recipe.weights, "F32") * divided
    wanted = model.get_parameter(weight).detach().numpy() * model.get_parameter(norm).detach().numpy()
    assert np.square(wanted - found).sum() < 1e-4 * np.square(wanted).sum()


# ---- the same bytes -------------------------------------------------------------------------------------


def test_threads_order_and_memory_change_no_byte(tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    quantize_checkpoint(tmp_path / "f", tmp_path / "q", G32, data=TOKENS)
    before = lb.get_num_threads()
    try:
        for threads in (1, 7):
            lb.set_num_threads(threads)
            quantize_checkpoint(tmp_path / "f", tmp_path / f"t{threads}", G32, data=TOKENS)
            assert contents(tmp_path / f"t{threads}") == contents(tmp_path / "q")
    finally:
        lb.set_num_threads(before)
    quantize_checkpoint(tmp_path / "f", tmp_path / "r", G32, data=TOKENS[::-1])
    assert contents(tmp_path / "r") == contents(tmp_path / "q")


def test_files_of_statistics_give_the_codes_of_text(tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    write_tokenizer(tmp_path / "f")
    (tmp_path / "t.txt").write_text(words(600))
    quantize_checkpoint(tmp_path / "f", tmp_path / "q", G32, data=tmp_path / "t.txt", sequence_length=50)
    observe_file(tmp_path / "f", tmp_path / "t.txt", tmp_path / "s", sequence_length=50, progress=False)
    stats = open_statistics(tmp_path / "s")
    for given, target in ((stats, "folder"), (dict(stats), "mapping")):
        report = quantize_checkpoint(tmp_path / "f", tmp_path / target, G32, stats=given)
        assert {r.method for r in report.treated} == {"gptq"}
        assert contents(tmp_path / target)["model.safetensors"] == contents(tmp_path / "q")["model.safetensors"]


KILLED = """
import sys
import numpy as np
from lowbit.formats.compressed_tensors import solved
from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from tiny_llm import sequences
import time
put = solved.SolvedWeights.put
def slow(*given):
    put(*given)
    time.sleep(0.2)
solved.SolvedWeights.put = slow
print("ready", flush=True)
quantize_checkpoint("f", "q", {"preset": "W4A16", "weights": {"group_size": 32}}, data=sequences(6, 60))
"""


def test_a_killed_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    write_llm(tmp_path / "f", shard="40KB")
    recipe = {"preset": "W4A16", "weights": {"group_size": 32}}
    quantize_checkpoint(tmp_path / "f", tmp_path / "whole", recipe, data=TOKENS)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen([sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths})
    partial = tmp_path / ".q.partial"
    deadline = time.monotonic() + 120
    while len(list(partial.glob(".solved-*.safetensors"))) < 5:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = len(list(partial.glob(".solved-*.safetensors")))
    assert not (tmp_path / "q").exists()
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, data=TOKENS, resume=True)
    assert contents(tmp_path / "q") == contents(tmp_path / "whole")
    assert 5 <= kept < len(report.treated)
    assert sum(r.seconds == 0 for r in report.treated) >= 4  # these were kept
    assert {r.method for r in report.treated} == {"gptq"}


# ---- what does not get statistics -----------------------------------------------------------------------


def test_memory_that_does_not_hold_a_gram_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llm(tmp_path / "f")
    monkeypatch.setattr(solver, "_LEAST_MEMORY", 0)
    monkeypatch.setattr(solver, "resident", lambda: 1000)
    monkeypatch.setattr(network.LayerwiseModel, "running_nbytes", lambda *_: 0)  # which depends on threads
    # The factors of 96 inputs do not fit, those of 64 do.
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", G32, data=TOKENS, max_memory=330_000)
    methods = {r.name.split(".")[-2]: (r.method, r.note) for r in report.treated}
    assert methods["up_proj"][0] == "gptq"
    assert methods["down_proj"][0] == "weighted"
    assert "mean squares alone: gptq would need" in methods["down_proj"][1]
    gptq = G32.but(weights=WeightRecipe("int4", group_size=32, method="gptq"))
    with pytest.raises(InvalidProblem, match=r"max_memory: 330,000 bytes; gptq of .*down_proj"):
        quantize_checkpoint(tmp_path / "f", tmp_path / "r", gptq, data=TOKENS, max_memory=330_000)
    monkeypatch.setattr(solver, "_LEAST_MEMORY", 1 << 29)
    with pytest.raises(InvalidProblem, match="expected at least 536,871,912"):
        quantize_checkpoint(tmp_path / "f", tmp_path / "r", G32, data=TOKENS, max_memory=330_000)
    assert not (tmp_path / "r").exists()


def test_few_tokens_are_told(tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    early: list[str] = []
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", G32, data=sequences(2, 30), warn=early.append)
    assert early == [n for n in report.notes if n in early] != []
    [note] = [n for n in report.notes if "singular" in n]
    assert note.startswith("60 tokens for layers of up to 96 inputs")
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "r", G32, data=TOKENS)
    assert not [n for n in report.notes if "singular" in n]


def test_a_head_that_is_named_is_rounded_without_data(tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    recipe = G32.but(overrides=[Override("lm_head", WeightRecipe("int4", group_size=32))])
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, data=TOKENS)
    row = next(r for r in report.rows if r.name == "lm_head.weight")
    assert (row.method, row.predicted_db) == ("mse", None)
    assert "outside the decoder layers" in row.note


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("W8A16", {"data": TOKENS}, "data: given; W8A16 rounds 8-bit weights"),
        ("W4A16", {"data": TOKENS, "stats": {}}, "stats: given with data"),
        ("W4A16", {"stats": {"a": None}}, "of another model"),
        ("W4A16", {"sequence_length": 10}, "sequence_length: given without data"),
        ("W4A16", {"max_sequences": 10}, "max_sequences: given without data"),
        ("W4A16", {"max_memory": 10}, "max_memory: given without data"),
        ({"weights": {"dtype": "int4", "method": "gptq"}}, {}, "gptq needs a Gram matrix"),
        ({"weights": {"dtype": "int4", "method": "weighted"}}, {}, "weighted needs second moments"),
        ("W4A16", {"data": "none.txt"}, "not there"),
    ],
    ids=str,
)
def test_requests_that_cannot_be_served(recipe: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_llm(tmp_path / "f")
    with pytest.raises(InvalidProblem, match=message):
        quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, **options)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
