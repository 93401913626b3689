"""lowbit calibrate: its table, its JSON, its pictures, its state, its errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lowbit as lb
from lowbit.calibration import Calibrator

typer_testing = pytest.importorskip("typer.testing")


@pytest.fixture
def run(monkeypatch):
    from lowbit.cli.app import _app

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    runner = typer_testing.CliRunner()
    return lambda *arguments: runner.invoke(_app(), ["calibrate", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "act.npy", rng.standard_t(4, 20_000).astype(np.float32))
    np.savez(tmp_path / "two.npz", a=rng.standard_normal((10, 64)).astype(np.float32), b=np.float16([0, 1, 2.5]))
    return tmp_path


def test_a_table_says_what_each_method_costs(run, files):
    result = run(files / "act.npy", "--dtype", "int4")
    assert result.exit_code == 0
    for word in ("act, at int4 symmetric", "mse", "entropy", "percentile 99.9", "min_max", "SQNR dB", "20,000 numbers"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_is_what_the_library_says(run, files):
    result = run(files / "two.npz", "--json", "--method", "percentile:99", "--dtype", "uint8")
    first, second = json.loads(result.stdout)
    assert (first["statistics"]["name"], second["statistics"]["count"]) == ("a", 3)
    x = np.load(files / "two.npz")["a"]
    expected = lb.calibrate(x, "uint8", lb.calibration.Percentile(99))
    assert lb.QuantizationParams.from_json(json.dumps(first["params"])) == expected


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_drawn(run, files, suffix):
    result = run(files / "two.npz", "--plot", files / f"out.{suffix}")
    assert result.exit_code == 0
    for name in ("a", "b"):
        content = (files / f"out-{name}.{suffix}").read_bytes()
        assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert run(files / "act.npy", "--plot", files / "one.png").exit_code == 0
    assert (files / "one.png").stat().st_size > 10_000


def test_state_goes_on_where_it_stopped(run, files):
    state = files / "state.safetensors"
    assert run(files / "act.npy", "--state", state).exit_code == 0
    assert Calibrator.load(state).num_samples == 1
    result = run(files / "act.npy", "--state", state, "--json")
    assert json.loads(result.stdout)[0]["statistics"]["count"] == 40_000
    assert Calibrator.load(state).num_samples == 2


def test_join_axis_and_what_is_not_finite(run, files):
    joined = run(files / "two.npz", files / "act.npy", "--join", "--json")
    assert json.loads(joined.stdout)[0]["statistics"]["count"] == 640 + 3 + 20_000
    by_axis = run(files / "two.npz", "--array", "a", "--axis", "1", "--json")
    assert len(json.loads(by_axis.stdout)[0]["params"]["scale"]) == 64
    np.save(files / "nan.npy", np.float32([1, np.nan, 3]))
    result = run(files / "nan.npy")
    assert result.exit_code == 2
    assert "nan.npy:nan: nan at index (1,)" in result.stderr
    assert run(files / "nan.npy", "--ignore-nonfinite").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.npy"], "none.npy"), (["act.txt"], "expected a .npy or .npz"), (["act.npy", "--dtype", "int5"], "int5"),
        (["act.npy", "--method", "best"], "method: 'best'"), (["act.npy", "--method", "percentile:x"], "percentile:P"),
        (["two.npz", "--array", "c"], "'c' is not in"), (["ints.npy"], "int64"), (["broken.npy"], "not a NumPy file"),
        (["broken.npz"], "not a NumPy file"), (["pickled.npy"], "not a NumPy file"), (["empty.npy"], "no samples"),
        (["act.npy", "--plot", "out.xyz"], "plot:"), (["two.npz", "--state", "s"], "--join"),
        (["act.npy", "--dtype", "binary", "--method", "entropy"], "entropy needs"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_exit_with_two(run, files, arguments, words, monkeypatch):
    monkeypatch.chdir(files)
    np.save("ints.npy", np.arange(3))
    np.save("empty.npy", np.zeros(0, np.float32))
    np.save("pickled.npy", np.array([{}], object), allow_pickle=True)
    (files / "act.txt").write_text("1 2 3")
    for name in ("broken.npy", "broken.npz"):
        (files / name).write_bytes(b"nothing")
    before = {p.name for p in files.iterdir()}
    files_given = ["two.npz", "act.npy"] if "--state" in arguments else arguments[:1]
    result = run(*files_given, *arguments[1:])
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {p.name for p in files.iterdir()} == before
