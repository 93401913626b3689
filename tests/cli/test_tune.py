"""lowbit tune and lowbit recommend: tables, JSON, the cache, errors."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lowbit.tuning import tuner

typer_testing = pytest.importorskip("typer.testing")


@pytest.fixture
def run(monkeypatch, tmp_path):
    from lowbit.cli.app import _app

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LOWBIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    runner = typer_testing.CliRunner()
    return lambda *arguments: runner.invoke(_app(), list(arguments))


def test_tune_shows_settings_and_a_verdict(run):
    result = run("tune", "--matmul", "8x64x64", "--seconds", "2")
    assert result.exit_code == 0, result.output
    for word in ("matmul 8x64x64", "float32", "int8 symmetric", "SQNR dB", "normal numbers"):
        assert word in result.stdout


def test_tune_prints_json_and_remembers(run, monkeypatch):
    arguments = (
        "tune", "--matmul", "1x512x512", "--conv", "1x8x8x8,8x8x3x3,padding=1", "--add", "64x64", "--seconds", "0.3",
        "--json",
    )  # fmt: skip
    monkeypatch.setattr(tuner, "OtherWork", lambda: SimpleNamespace(cpus=lambda: 0.0))
    first = json.loads(run(*arguments).stdout)
    assert [r["workload"].split("(")[1].split()[0] for r in first] == ["matmul", "conv2d", "add"]
    again = json.loads(run(*arguments).stdout)
    assert [r["from_cache"] for r in again] == [r["complete"] for r in first]
    cleared = run("tune", "--clear-cache")
    assert "Removed 1 cache file" in cleared.stdout


def test_explain_prints_the_schedule_and_measures_nothing(run):
    result = run("tune", "--matmul", "128x768x768", "--explain")
    assert result.exit_code == 0, result.output
    for word in ("matmul 128x768x768", "k-blocks", "accumulators", "CPU model"):
        assert word in result.stdout
    [found] = json.loads(run("tune", "--matmul", "8x64x32", "--explain", "--json").stdout)
    assert found["workload"] == "8x64x32"
    assert found["schedule"]["row_tasks"] == 1
    assert found["cpu"]["line"] == 64


@pytest.mark.parametrize("more", [(), ("--add", "4x4", "--matmul", "1x2x3"), ("--seconds", "1", "--matmul", "1x2x3")])
def test_explain_takes_matrix_products_alone(run, more):
    assert run("tune", "--explain", *more).exit_code != 0


def test_recommend_gives_reasons_and_hints(run):
    result = run("recommend", "--matmul", "8x64x64", "--seconds", "0.3")
    assert result.exit_code == 0, result.output
    assert "matmul 8x64x64" in result.stdout
    hints = json.loads(run("recommend", "--json").stdout)
    assert {"preferred_dtypes", "batch_size", "threads"} <= set(hints)
    assert all(h["reason"] for h in hints.values())
    found = json.loads(run("recommend", "--matmul", "8x64x64", "--seconds", "0.3", "--json").stdout)
    assert found[0]["measured"]


def test_hardware_can_be_probed(run):
    plain, probed = run("hardware", "--json"), run("hardware", "--json", "--probe")
    assert set(json.loads(probed.stdout)) - set(json.loads(plain.stdout)) == {"limits", "hints"}
    assert "GFLOPS" in run("hardware", "--probe").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune"], "workload: none"), (["tune", "--matmul", "8x8"], "MxNxK"),
        (["tune", "--conv", "1x8x8x8,8x4x3x3"], "does not fit"), (["tune", "--matmul", "0x8x8"], "m: 0"),
        (["tune", "--matmul", "8x8x8", "--seconds", "0"], "max_search_time"),
        (["recommend", "--add", "axb"], "axb"),
    ],
)  # fmt: skip
def test_errors_are_one_line(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
