"""The lowbit command: what it prints, where, and its exit codes; and the rows of the survey of dtypes."""

from __future__ import annotations

import builtins
import json
import math

import numpy as np
import pytest

from lowbit.bench import survey
from lowbit.bench.survey import SETTINGS, Setting, run_survey
from lowbit.cli import main
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.params import QuantizationScheme
from lowbit.runtime.hardware import hardware

typer_testing = pytest.importorskip("typer.testing")

QUICK = [Setting("int8", "channel_wise"), Setting("mixed", "channel_wise", widths=(8, 4))]


@pytest.fixture
def run(monkeypatch):
    from lowbit.cli.app import _app

    # The width that pipes have, and no colours between the words, wherever the tests run.
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    runner = typer_testing.CliRunner()
    return lambda *arguments: runner.invoke(_app(), list(arguments))


@pytest.fixture(scope="module")
def rows():
    return run_survey(elements=8192)


def row_of(rows, dtype, scheme):
    (found,) = [r for r in rows if (r.dtype, r.scheme) == (dtype, scheme)]
    return found


def test_version(run):
    import lowbit

    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"lowbit {lowbit.__version__}\n"


def test_no_arguments_show_the_commands(run):
    result = run()
    assert result.exit_code == 2
    assert "hardware" in result.output
    assert "demo" in result.output


def test_an_unknown_command_is_an_error(run):
    assert run("quantise").exit_code == 2


def test_hardware_json_is_all_that_is_printed(run):
    result = run("hardware", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == hardware().to_dict()


def test_hardware_for_people(run):
    result = run("hardware")
    assert result.exit_code == 0
    for part in (hardware().isa, "Caches", "Memory", "GPUs"):
        assert part in result.stdout


def test_dtypes_prints_every_row_and_writes_json(run, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "TIMED_ELEMENTS", 64 * 2048)
    path = tmp_path / "rows.json"
    result = run("dtypes", "--quick", "--json", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert len(report["rows"]) == 1 + len(SETTINGS)
    assert report["timed_elements"] == 2048
    assert report["hardware"]["architecture"] == hardware().architecture
    for row in report["rows"]:
        assert f"{row['nbytes']:,}" in result.stdout
    assert f"{len(SETTINGS)} of {len(SETTINGS)} settings" in " ".join(result.stdout.split())


def test_dtypes_json_on_stdout_is_all_that_is_printed(run, monkeypatch):
    monkeypatch.setattr(survey, "TIMED_ELEMENTS", 64 * 1024)
    result = run("dtypes", "--quick", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["rows"][0]["dtype"] == "float32"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing, monkeypatch, capsys):
    real_import = builtins.__import__

    def importing(name, *args, **kwargs):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install 'lowbit[cli]'" in err
    assert len(err.splitlines()) == 1


def test_every_dtype_and_scheme_is_shown():
    dtypes = {"int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "binary", "mixed"}
    assert {s.dtype for s in SETTINGS} == dtypes
    assert {s.scheme for s in SETTINGS} == {s.value for s in QuantizationScheme}
    assert len(set(SETTINGS)) == len(SETTINGS)


def test_the_baseline_is_float32(rows):
    first = rows[0]
    assert (first.dtype, first.nbytes, first.bits_per_weight) == ("float32", 84896 * 4, 32.0)
    assert first.accuracy == pytest.approx(355 / 360)
    assert first.sqnr_db is first.gb_per_s is first.times_numpy is first.exact is None


def test_every_setting_gives_the_codes_of_the_reference(rows):
    assert all(r.exact for r in rows[1:]), [r for r in rows[1:] if not r.exact]


def test_bytes_are_codes_scales_and_zero_points(rows):
    weights, tensors = 84896, 4
    channels = 32 + 64 + 64 + 10
    blocks = 32 * 1 + 64 * 9 + 64 * 32 + 10 * 2
    assert row_of(rows, "int8", "symmetric").nbytes == weights + 4 * tensors
    assert row_of(rows, "uint8", "linear").nbytes == weights + 5 * tensors
    assert row_of(rows, "int4", "channel_wise").nbytes == weights // 2 + 4 * channels
    assert row_of(rows, "int4", "block_wise 32").nbytes == weights // 2 + 4 * blocks
    assert row_of(rows, "binary", "symmetric").nbytes == weights // 8 + 4 * tensors
    for row in rows:
        assert row.bits_per_weight == pytest.approx(row.nbytes * 8 / weights)


def test_error_falls_as_bits_and_granularity_rise(rows):
    def sqnr(dtype, scheme):
        return row_of(rows, dtype, scheme).sqnr_db

    assert sqnr("int16", "symmetric") > sqnr("int8", "symmetric") + 45
    assert sqnr("int8", "symmetric") > sqnr("int4", "symmetric") + 20
    for dtype in ("int8", "int4", "int2"):
        assert sqnr(dtype, "block_wise 32") > sqnr(dtype, "symmetric")
    assert sqnr("int8", "linear") == sqnr("int8", "symmetric")


def test_eight_bits_keep_the_accuracy(rows):
    for row in rows[1:]:
        assert 0 <= row.accuracy <= 1
        if row.dtype in ("int8", "uint8", "int16", "uint16"):
            assert row.accuracy >= rows[0].accuracy - 0.01, row


def test_speeds_are_measured(rows):
    for row in rows[1:]:
        assert 0 < row.gb_per_s < 1e4
        assert math.isfinite(row.times_numpy)
        assert row.times_numpy > 0


def test_progress_hears_of_each_setting():
    heard = []
    run_survey(QUICK, elements=1024, progress=heard.append)
    assert heard == ["int8 channel_wise", "mixed 8/4 channel_wise"]


def test_mixed_widths_follow_the_range_of_the_rows():
    matrix = np.float32([[1, -1], [0, 8], [-4, 0], [2, 2]])
    q = Setting("mixed", "channel_wise", widths=(8, 4)).quantize(matrix)
    assert q.params.dtype == QuantizedDType.mixed([4, 8, 8, 4])
