"""The accuracy bench counts bits, keeps what it measured, and reads what peers write."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy_methods import Setting, settings, solutions, true_bits
from benchmarks.accuracy_page import section
from benchmarks.accuracy_peer_runs import _unpacked
from benchmarks.accuracy_texts import prose
from benchmarks.page import table

from lowbit.calibration import Moments


@pytest.mark.parametrize(
    ("scheme", "group", "inputs", "expected"),
    [
        ("asym", 64, 128, 4 + 20 / 64),
        ("sym", 32, 128, 4.5),
        ("sym", 128, 576, 4 + 16 / 96),
        ("sym", 0, 128, 4 + 16 / 128),
    ],
    ids=["zero points", "no zero points", "groups that divide", "one per output"],
)
def test_true_bits(scheme, group, inputs, expected):
    w = np.zeros((8, inputs), np.float32)
    assert true_bits(w, Setting("rtn", 4, group, scheme).grid(inputs)) / w.size == pytest.approx(expected)


@pytest.mark.parametrize("method", ["rtn", "mse", "hqq", "weighted", "awq", "gptq", "awq+gptq"])
def test_each_method_solves_layers_that_share_their_inputs(method):
    rng = np.random.default_rng(0)
    floats = {name: rng.standard_normal((16, 64)).astype(np.float32) for name in ("a", "b")}
    shared = Moments(64)
    shared.add(rng.standard_normal((256, 64)).astype(np.float32))
    moments = dict.fromkeys(floats, shared)
    [setting] = settings([method], [4], [32], ["asym"])
    found = dict(solutions(floats, setting, moments, {"a": None}))
    for name, w in floats.items():
        assert 0 < np.square(found[name] - w).mean() < 0.02 * np.square(w).mean()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_of_32_bit_words(bits):
    codes = np.random.default_rng(1).integers(1 << bits, size=(3, 32), dtype=np.uint64)
    words = np.zeros((3, bits), np.uint32)
    for i in range(32):
        for row in range(3):
            value = int(codes[row, i]) << (i * bits % 32)
            words[row, i * bits // 32] |= value & 0xFFFFFFFF
            if value >> 32:
                words[row, i * bits // 32 + 1] |= value >> 32
    np.testing.assert_array_equal(_unpacked(words.view(np.int32), bits), codes)


def test_the_rows_of_a_file_are_not_measured_again(tmp_path):
    from benchmarks.accuracy import KEY, Rows

    path = tmp_path / "accuracy.json"
    key = ("minilm", 8, "rtn", 4, 64, "asym")
    Rows(path, 1).add({**dict(zip(KEY, key, strict=True)), "loss": 1.0})
    assert Rows(path, 1).has(key)
    assert not Rows(path, 1).has((*key[:-1], "sym"))
    assert json.loads(path.read_text("utf-8"))["measurements"][0]["loss"] == 1.0


def test_the_page_has_a_line_per_setting_and_a_column_per_method():
    common = {"bed": "gpt", "calibrated": 32, "bits": 4, "group": 64, "loss error": 0.5}
    ours = [
        common | {"method": m, "scheme": "asym", "true bits": 4.3125, "loss": x}
        for m, x in (("rtn", 9.0), ("gptq", 4.0))
    ]
    peer = common | {"method": "ggml Q4_K", "scheme": "", "true bits": 4.5, "loss": 5.0, "CPU seconds": 7.0}
    run = {
        "file": "accuracy.json",
        "cpu": "a CPU",
        "date": "2026-01-01T00:00",
        "commit": "abc",
        "measurements": [*ours, peer],
    }
    text = section([run], table)
    assert "| 4 bits, g64, asym | 4.31 | 9.0 ± 0.5 | 4.0 ± 0.5 |" in text
    assert "| ggml Q4_K | 4.50 | 5.0 ± 0.5 | 7 |" in text
    assert section([], table) == ""


def test_prose_of_nested_templates():
    assert prose("a {{b {{c}} d}}[[e|f]]") == "a f"
