"""The benchmark suite: sane figures, limits on time, failures apart, files, comparisons, the picture, the command."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import lowbit as lb
from lowbit.bench import (
    FAMILIES,
    BenchmarkConfig,
    BenchmarkResult,
    BenchmarkSummary,
    MemoryUsage,
    QuantizationBenchmarkSuite,
    Timing,
    compare,
    operations,
    plot_roofline,
    suite,
)
from lowbit.bench.timing import OtherWork, Samples, Within, measure, sample
from lowbit.runtime.limits import Limits

TINY = BenchmarkConfig(warmup=1, iterations=4, seconds=0.01, sizes="quick")


@pytest.fixture(scope="module")
def summary():
    said = []
    found = QuantizationBenchmarkSuite(TINY).run(progress=said.append)
    assert len(said) == len(found.results)
    return found


# ---- figures ----


def test_every_family_has_results_and_all_are_ok(summary):
    assert {r.family for r in summary.results} == set(FAMILIES)
    assert [(r.name, r.reason) for r in summary.results if r.status != "ok"] == []
    assert len({r.name for r in summary.results}) == len(summary.results)
    assert summary.complete
    assert summary.version == lb.__version__
    assert summary.hardware["cpu"] == lb.hardware().cpu
    assert summary.threads == lb.get_num_threads()


def test_figures_are_sane(summary):
    timed = [r for r in summary.results if r.family != "memory"]
    for r in timed:
        t = r.timing
        assert 0 < t.best <= t.low <= t.median <= t.high < 1, r.name
        assert t.samples <= TINY.iterations
        assert r.speedup == pytest.approx(r.baseline.median / t.median)
        assert (r.gops is None) != (r.gb_per_s is None)
        assert r.sqnr_db > (30 if "int8" in r.name else 15 if "int4" in r.name else 2), r.name
    for r in summary.of("matrix"):
        assert r.gops == pytest.approx(r.operations / r.timing.median / 1e9)
        assert r.limit in ("dot products", "")
    m = summary["linear int8 64x1024x1024"]
    assert m.operations == 2 * 64 * 1024 * 1024
    assert m.weight_bytes < 1.1 * 2**20


def test_no_figure_is_above_its_limit(summary):
    for r in summary.results:
        assert r.percent_of_limit is None or 0 < r.percent_of_limit <= 105, r.name


@pytest.mark.parametrize(
    ("seconds", "level"), [(1.0, "DRAM"), (0.04, "L3"), (0.01, "L2"), (0.001, "L1"), (1e-6, "")],
    ids=["as expected", "faster than DRAM", "than L3", "than L2", "than anything: no claim"],
)  # fmt: skip
def test_a_figure_above_a_level_is_held_against_the_next_faster(seconds, level):
    rates = {"L1": 1e12, "L2": 1e11, "L3": 3e10, "DRAM": 1e10}
    bounds = Limits("c", "avx2", 1e9, 1e9, rates)
    ceiling = suite._Ceiling(bounds, lb.hardware(), 1)
    moved = BenchmarkResult("a", "quantization", timing=Timing.of([seconds]), bytes_moved=10**9)
    found = ceiling.applied(moved)
    assert found.limit == (f"reading from {level}" if level else "")
    assert (found.percent_of_limit is None) == (not level)


def test_memory_and_comparative_views(summary):
    usages = summary.memory.usages
    tensor = usages["tensor int8 1M"]
    assert tensor.before == 4 << 20
    assert 3.9 < tensor.ratio <= 4
    assert tensor.peak >= 1 << 20  # the codes at least
    assert usages["layer int4 g128 64x1024x1024"].ratio > 7
    assert 3.9 < summary.memory.ratio < 8
    (layers,) = summary.comparative
    assert list(layers.configurations) == ["int8", "int4 g32", "int4 g128", "int2"]
    assert layers.most_accurate == "int8"
    assert layers.smallest == "int2"
    assert layers.fastest in layers.configurations


def test_accuracy_and_memory_can_be_left_out():
    config = replace(TINY, measure_accuracy=False, measure_memory=False)
    found = QuantizationBenchmarkSuite(config).run(only=["elementwise", "memory"])
    assert {r.family for r in found.results} == {"elementwise"}
    assert all(r.sqnr_db is None for r in found.results)


def test_threads_are_set_and_restored():
    before = lb.get_num_threads()
    seen = []
    config = replace(TINY, threads=1)
    found = QuantizationBenchmarkSuite(config).run("elementwise", lambda _: seen.append(lb.get_num_threads()))
    assert set(seen) == {1}
    assert (found.threads, lb.get_num_threads()) == (1, before)


@pytest.mark.parametrize(
    "bad",
    [
        {"warmup": -1}, {"warmup": 1.5}, {"iterations": 0}, {"iterations": True}, {"seconds": 0}, {"seconds": math.inf},
        {"timeout": math.nan}, {"timeout": -1}, {"timeout": "1"}, {"threads": 0}, {"threads": 2.0}, {"sizes": "huge"},
        {"measure_memory": 1}, {"measure_accuracy": None},
    ],
    ids=str,
)  # fmt: skip
def test_bad_settings_are_named(bad):
    with pytest.raises(lb.InvalidProblem, match=next(iter(bad))):
        BenchmarkConfig(**bad)


def test_an_unknown_family_is_named():
    with pytest.raises(lb.InvalidProblem, match="'speed'"):
        QuantizationBenchmarkSuite(TINY).run(only=["matrix", "speed"])


# ---- time, failures, Ctrl-C ----


def slowed(monkeypatch, name, seconds, after=0):
    """operations.<name> takes `seconds` longer, after `after` calls."""
    original, calls = getattr(operations, name), []

    def slow(*args, **kwargs):
        calls.append(1)
        if len(calls) > after:
            time.sleep(seconds)
        return original(*args, **kwargs)

    monkeypatch.setattr(operations, name, slow)


def test_a_call_longer_than_the_timeout_is_not_measured(monkeypatch):
    slowed(monkeypatch, "qrelu", 0.6)
    start = time.perf_counter()
    found = QuantizationBenchmarkSuite(replace(TINY, timeout=0.5)).run("elementwise")
    assert time.perf_counter() - start < 3
    relu, add = found["qrelu int8 256K"], found["qadd int8 256K"]
    assert (relu.status, relu.timing) == ("timeout", None)
    assert "0.5 s are allowed" in relu.reason
    assert add.status == "ok"


def test_measuring_stops_at_the_timeout_with_what_there_is(monkeypatch):
    slowed(monkeypatch, "qrelu", 0.1)
    config = BenchmarkConfig(warmup=1, iterations=50, seconds=60, timeout=0.65, sizes="quick", measure_accuracy=False)
    start = time.perf_counter()
    relu = QuantizationBenchmarkSuite(config).run("elementwise")["qrelu int8 256K"]
    assert time.perf_counter() - start < 4
    assert relu.timing is not None
    assert 0.1 <= relu.timing.median < 0.2
    assert relu.timing.samples <= 6


def test_a_few_slow_calls_are_kept_as_a_partial_result(monkeypatch):
    """The timing asks for more rounds than there is time for."""
    slowed(monkeypatch, "qrelu", 0.1)
    config = BenchmarkConfig(warmup=1, seconds=60, timeout=0.35, sizes="quick")
    relu = QuantizationBenchmarkSuite(config).run("elementwise")["qrelu int8 256K"]
    assert relu.status == "timeout"
    assert relu.timing.samples in (1, 2, 3)
    assert "stopped after" in relu.reason


def test_slow_preparation_counts(monkeypatch):
    slowed(monkeypatch, "QuantizedLinear", 0.5)
    found = QuantizationBenchmarkSuite(replace(TINY, timeout=0.4)).run(["matrix", "memory"])
    assert {r.status for r in found.of("matrix")} == {"timeout"}
    assert found["layer int8 64x1024x1024"].status == "timeout"
    assert found["tensor int8 1M"].status == "ok"


def test_a_failure_is_one_result_and_the_others_go_on(monkeypatch):
    def broken(*_args, **_kwargs):
        raise lb.Unsupported("no such\nkernel")

    monkeypatch.setattr(operations, "qadd", broken)
    found = QuantizationBenchmarkSuite(TINY).run("elementwise")
    add = found["qadd int8 256K"]
    assert (add.status, add.reason, add.timing) == ("failed", "Unsupported: no such kernel", None)
    assert found["qrelu int8 256K"].status == "ok"
    assert found.complete
    assert "failed, Unsupported: no such kernel" in found.to_markdown()
    assert BenchmarkSummary.from_json(found.to_json()) == found


def test_ctrl_c_keeps_what_there_is(monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(operations, "qrelu", interrupted)
    before = lb.get_num_threads()
    found = QuantizationBenchmarkSuite(replace(TINY, threads=1)).run(["elementwise", "memory"])
    assert not found.complete
    assert [r.name for r in found.results] == ["qadd int8 256K"]
    assert lb.get_num_threads() == before
    assert not BenchmarkSummary.from_json(found.to_json()).complete


def samples(seconds: list[float], shares: list[float]) -> Samples:
    made = Samples(lambda: None, 1)
    made.seconds, made.shares = seconds, shares
    return made


def test_samples_that_were_interrupted_do_not_count() -> None:
    """Half of a CPU, or the caches full of something else: not the call's own time."""
    found = samples([1.0] * 4 + [2.0] * 8 + [1.5] * 8, [1.0] * 4 + [0.5] * 8 + [1.0] * 8).timing(4)
    assert (found.median, found.high, found.samples) == (1.0, 1.0, 4)
    # Too few without: the fastest.
    assert samples([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 0.5, 0.5, 0.5, 0.5]).timing(3).median == 2.0
    # Of many threads some may wait: how much of a CPU they have says nothing.
    assert samples([1.0] * 9, [2.0] * 4 + [1.0] * 5).timing(4).samples == 9


def test_what_is_around_a_call_is_entered_once_a_sample_and_not_timed() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        seen.append("in")
        time.sleep(0.2)
        yield
        seen.append("out")

    call = Within(lambda: seen.append("call"), around)
    assert sample(call, 3) < 0.2 / 3
    assert seen == ["in", "call", "call", "call", "out"]
    seen.clear()
    samples = Samples(call, 2)
    samples.take()
    assert seen == ["in", "call", "call", "out"]
    assert samples.seconds[0] < 0.2 / 2
    seen.clear()
    call()
    assert seen == ["in", "call", "out"]


def test_each_round_has_an_order_of_its_own() -> None:
    seen: list[int] = []
    calls = {str(i): functools.partial(lambda i: (seen.append(i), time.sleep(3e-4)), i) for i in range(4)}
    measure(calls, seconds=5.0, warmup=1, max_rounds=8)
    rounds = {tuple(seen[i : i + 4]) for i in range(4, len(seen), 4)}
    assert len(rounds) > 3
    assert all(sorted(r) == [0, 1, 2, 3] for r in rounds)


def test_other_work_is_all_but_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 seconds all CPUs together worked for 4, this process for 2 of them."""
    clocks = iter([(0.0, 10.0, 1.0), (2.0, 14.0, 3.0)])
    monkeypatch.setattr(OtherWork, "_now", lambda self: next(clocks))
    assert OtherWork().cpus() == 1.0
    monkeypatch.setattr(OtherWork, "_now", lambda self: (time.perf_counter(), math.nan, 0.0))
    assert math.isnan(OtherWork().cpus())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
def test_the_clock_of_all_cpus_runs() -> None:
    watch, end = OtherWork(), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    (_, before, _), (_, after, own) = watch._start, OtherWork._now()
    assert after > before
    assert own > 0.1
    assert watch.cpus() >= 0.0


def test_the_float_product_is_never_given_more_threads_than_help(monkeypatch):
    """NumPy's threads wait in loops: on a busy machine two can be far slower than one."""
    pools = pytest.importorskip("threadpoolctl")
    matmul, now = np.matmul, 0.0

    def slow_with_two(*args, **kwargs):
        nonlocal now
        two = any(p["num_threads"] > 1 for p in pools.threadpool_info() if p["user_api"] == "blas")
        now += 0.005 if two else 0.0001
        return matmul(*args, **kwargs)

    monkeypatch.setattr(suite.np, "matmul", slow_with_two)
    monkeypatch.setattr(suite, "time", SimpleNamespace(perf_counter=lambda: now))  # none but the products take time
    found = QuantizationBenchmarkSuite(replace(TINY, threads=2)).run("matrix")
    assert {r.baseline_threads for r in found.results} == {1}


def test_without_threadpoolctl_numpy_chooses_its_threads(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    found = QuantizationBenchmarkSuite(TINY).run("matrix")
    assert {(r.status, r.baseline_threads) for r in found.results} == {("ok", None)}
    assert "NumPy's products" not in found.setting


# ---- files ----


def test_json_round_trip(summary):
    again = BenchmarkSummary.from_json(summary.to_json())
    assert again == summary
    assert again["qadd int8 256K"].gb_per_s == summary["qadd int8 256K"].gb_per_s


def test_infinite_figures_survive_and_the_json_is_strict():
    exact = BenchmarkSummary((BenchmarkResult("a", "quantization", sqnr_db=math.inf),))

    def refuse(name):
        raise AssertionError(name)

    json.loads(exact.to_json(), parse_constant=refuse)
    assert BenchmarkSummary.from_json(exact.to_json()) == exact


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("results"), lambda d: d.update(format="x"), lambda d: d.update(format_version=99),
        lambda d: d["results"].append(d["results"][0]), lambda d: d["results"][0].update(status="fine"),
        lambda d: d["results"][0].update(timing={"best": 1}), lambda d: d["results"][0]["timing"].update(median=-1),
        lambda d: d["results"][0].update(memory={"x": 1}), lambda d: d.update(results=5),
        lambda d: d.update(hardware=3), lambda d: d["results"][0].update(name=None),
    ],
)  # fmt: skip
def test_what_is_no_summary_is_a_format_error(summary, edit):
    content = json.loads(summary.to_json())
    edit(content)
    with pytest.raises(lb.FormatError, match="no benchmark results"):
        BenchmarkSummary.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "null", "3", "{}", "[" * 100_000])
def test_other_text_is_a_format_error(text):
    with pytest.raises(lb.FormatError):
        BenchmarkSummary.from_json(text)


def test_csv_has_a_line_for_each_result(summary):
    rows = list(csv.DictReader(io.StringIO(summary.to_csv())))
    assert [r["name"] for r in rows] == [r.name for r in summary.results]
    assert all(None not in r and None not in r.values() for r in rows)  # as many cells as columns
    by_name = {r["name"]: r for r in rows}
    m = summary["linear int8 64x1024x1024"]
    assert float(by_name[m.name]["median_s"]) == m.timing.median
    assert float(by_name[m.name]["gops"]) == m.gops
    assert int(by_name["tensor int8 1M"]["float_bytes"]) == 4 << 20
    assert by_name["tensor int8 1M"]["median_s"] == ""


def test_markdown_tables_are_even(summary):
    text = summary.to_markdown()
    for family in FAMILIES:
        part = text.partition(f"## {family}\n\n")[2].partition("\n\n")[0].splitlines()
        assert len(part) == 2 + len(summary.of(family))
        assert len({line.count("|") for line in part}) == 1
    odd = BenchmarkSummary((BenchmarkResult("a|b", "matrix", "failed", "x | y"),)).to_markdown()
    assert "a\\|b: failed, x \\| y" in odd


def test_files_are_written_whole_or_not_at_all(summary, tmp_path, monkeypatch):
    for suffix in ("json", "csv", "md"):
        summary.save(tmp_path / f"a.{suffix}")
    assert BenchmarkSummary.load(tmp_path / "a.json") == summary
    with pytest.raises(lb.InvalidProblem, match=r"\.json, \.csv, \.md"):
        summary.save(tmp_path / "a.txt")

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        BenchmarkSummary(()).save(tmp_path / "a.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md"]
    assert BenchmarkSummary.load(tmp_path / "a.json") == summary


# ---- comparing ----


def timed(**medians):
    """Results whose medians are known to 2 %."""
    made = [
        BenchmarkResult(n, "matrix", timing=Timing(m * 0.97, m, m * 0.99, m * 1.01, 30, 1)) for n, m in medians.items()
    ]
    return BenchmarkSummary(tuple(made))


def test_changes_beyond_noise_are_flagged():
    old, new = timed(a=1.0, b=1.0, c=1.0, d=1.0, gone=1.0), timed(a=1.2, b=1.05, c=0.8, d=0.95, fresh=1.0)
    found = {c.name: c for c in compare(old, new)}
    assert {n: c.kind for n, c in found.items()} == {
        "a": "regression", "b": "same", "c": "improvement", "d": "same", "gone": "missing", "fresh": "added",
    }  # fmt: skip
    assert found["a"].ratio == pytest.approx(1.2)
    assert found["gone"].ratio is None


def test_a_wide_interval_is_noise():
    noisy = BenchmarkSummary((BenchmarkResult("a", "matrix", timing=Timing(0.9, 1.5, 1.0, 2.0, 5, 1)),))
    assert [c.kind for c in compare(timed(a=1.0), noisy)] == ["same"]


def test_samples_of_the_same_distribution_are_not_flagged():
    rng = np.random.default_rng(0)
    flagged = 0
    for _ in range(200):
        one, two = (
            BenchmarkSummary((BenchmarkResult("a", "matrix", timing=Timing.of(list(rng.gamma(20, 0.05, 50)))),))
            for _ in range(2)
        )
        flagged += compare(one, two)[0].kind != "same"
    assert flagged == 0


def test_what_fails_now_is_a_regression_and_what_works_now_an_improvement():
    ok, failed = timed(a=1.0), BenchmarkSummary((BenchmarkResult("a", "matrix", "failed", "OSError: x"),))
    (worse,), (better,), (still,) = compare(ok, failed), compare(failed, ok), compare(failed, failed)
    assert (worse.kind, better.kind, still.kind) == ("regression", "improvement", "same")
    assert "OSError: x" in worse.note
    memory = BenchmarkSummary((BenchmarkResult("m", "memory", memory=MemoryUsage(4, 1, 1)),))
    assert compare(memory, memory)[0].kind == "same"


# ---- the picture ----


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_roofline_is_drawn(summary, tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    figure = plot_roofline(summary, tmp_path / f"r.{suffix}")
    assert (tmp_path / f"r.{suffix}").read_bytes().startswith(start)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert {"linear int8", "linear int4 g128"} <= set(labels)
    assert sum(label.startswith("reading") for label in labels) == 4


def test_a_picture_of_nothing_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(lb.InvalidProblem, match="no timed matrix results"):
        plot_roofline(BenchmarkSummary(()), tmp_path / "r.png")


# ---- the command ----


@pytest.fixture
def run(monkeypatch):
    testing = pytest.importorskip("typer.testing")
    from lowbit.cli.app import _app

    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return lambda *arguments: testing.CliRunner().invoke(_app(), ["bench", *map(str, arguments)])


def test_the_command_shows_tables_and_keeps_files(run, tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"out.{s}" for s in ("json", "csv", "md")]
    outs = [word for f in files for word in ("--out", f)]
    result = run("--quick", "--seconds", "0.01", "--only", "matrix,memory", *outs, "--roofline", tmp_path / "r.svg")
    assert result.exit_code == 0, result.output
    for word in ("linear int4 g128 64x1024x1024", "GOPS", "of limit", "tensor int8 1M", "out.json"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "1 of 8: linear int8 1x1024x1024" in result.stderr
    assert all(f.exists() for f in [*files, tmp_path / "r.svg"])


def test_json_is_all_that_is_printed(run):
    result = run("--quick", "--seconds", "0.01", "--only", "memory", "--json")
    assert result.stderr == ""
    assert {r.family for r in BenchmarkSummary.from_json(result.stdout).results} == {"memory"}


def test_compare_exits_with_one_on_a_regression(run, tmp_path):
    timed(a=1.0, b=1.0).save(tmp_path / "old.json")
    timed(a=1.5, c=1.0).save(tmp_path / "new.json")
    result = run("--compare", tmp_path / "old.json", tmp_path / "new.json")
    assert result.exit_code == 1
    for word in ("regression", "missing", "added", "1.50"):
        assert word in result.stdout
    same = run("--compare", tmp_path / "old.json", tmp_path / "old.json")
    assert same.exit_code == 0
    assert "2 same, 0 regression" in same.stdout
    kinds = [c["kind"] for c in json.loads(run("--compare", *[tmp_path / "old.json"] * 2, "--json").stdout)]
    assert kinds == ["same", "same"]


def test_other_machines_are_pointed_out(run, tmp_path):
    timed(a=1.0).save(tmp_path / "old.json")
    replace(timed(a=1.0), threads=2, hardware={"cpu": "other"}).save(tmp_path / "new.json")
    result = run("--compare", tmp_path / "old.json", tmp_path / "new.json")
    assert result.exit_code == 0
    assert "CPUs differ" in result.stderr
    assert "threads differ: 1 and 2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "none.json", "none.json"], "none.json"), (["--compare", "bad.json", "bad.json"], "bad.json: no"),
        (["--compare", "binary.json", "binary.json"], "binary.json"), (["--only", "speed"], "'speed'"),
        (["--seconds", "0"], "seconds"), (["--timeout", "-1"], "timeout"), (["--threads", "0"], "threads"),
        (["--out", "a.txt"], "a.txt"), (["--roofline", "a.txt"], "roofline"), (["--out", "no/a.json"], "folder"),
        (["--roofline", "a.png", "--only", "memory"], "--only leaves out"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, list) else "",
)  # fmt: skip
def test_errors_are_one_line_and_exit_with_two(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {p.name for p in tmp_path.iterdir()} == {"bad.json", "binary.json"}


def test_ctrl_c_shows_what_there_is(run, monkeypatch, tmp_path):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(operations, "qrelu", interrupted)
    result = run("--quick", "--seconds", "0.01", "--only", "elementwise", "--out", tmp_path / "a.json")
    assert result.exit_code == 130
    assert "qadd int8 256K" in result.stdout
    assert not BenchmarkSummary.load(tmp_path / "a.json").complete
    monkeypatch.setattr(operations, "QuantizedLinear", interrupted)
    assert run("--quick", "--only", "matrix", "--roofline", tmp_path / "r.png").exit_code == 130
    assert "interrupted; " in result.stderr
