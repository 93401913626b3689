"""Tuning: what is measured, what is judged, what is remembered; and that a cache can never change a result."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import lowbit as lb
from lowbit.bench.timing import Timing, measure
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.metrics import error_report
from lowbit.runtime.cache_file import CacheFile, cache_folder, clear_caches
from lowbit.tuning import (
    AutoTuningConfig,
    Candidate,
    OptimalQuantizationConfig,
    PerformanceRequirements,
    QuantizationWorkload,
    auto_tune,
)
from lowbit.tuning import tuner as tuner_module
from lowbit.tuning.candidates import build, candidates_for, float_work
from lowbit.tuning.race import Outcome, race
from lowbit.tuning.recommend import recommend
from lowbit.tuning.result import CandidateResult

QUICK = AutoTuningConfig(max_search_time=0.4)
PATIENT = AutoTuningConfig(max_search_time=60.0)  # everything is built, however busy the machine; for use with `clock`


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWBIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def clock(monkeypatch, busy):
    """Settings take as long as a test says, whatever the machine is doing."""

    def says(seconds):
        def race(calls, *_, **__):
            return Outcome({name: Timing.of([seconds(name)] * 9) for name in calls})

        monkeypatch.setattr(tuner_module, "race", race)
        monkeypatch.setattr(tuner_module, "_without_a_cpu", lambda *_: set())
        busy(0.0)

    return says


@pytest.fixture
def busy(monkeypatch):
    """Other processes keep as many CPUs busy as a test says."""

    def says(cpus):
        monkeypatch.setattr(tuner_module, "OtherWork", lambda: SimpleNamespace(cpus=lambda: cpus))

    return says


# ---- workloads ------------------------------------------------------------------------------------------------------


def test_workloads_know_their_sizes():
    assert QuantizationWorkload.matmul(2, 3, 4).operations == 48
    conv = QuantizationWorkload.conv2d((1, 4, 8, 8), (6, 2, 3, 3), stride=2, padding=1, groups=2)
    assert conv.output_shape == (1, 6, 4, 4)
    assert conv.operations == 2 * 6 * 16 * 2 * 9
    assert QuantizationWorkload.parse("add", "8x8").op == "add"
    text = "1x4x8x8,6x2x3x3,stride=2,padding=1,groups=2"
    assert repr(QuantizationWorkload.parse("conv2d", text)) == repr(conv)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QuantizationWorkload.matmul(0, 3, 4), "m: 0"),
        (lambda: QuantizationWorkload.matmul(1, 3, 4, x=np.zeros((2, 4))), r"x: shape \(2, 4\)"),
        (lambda: QuantizationWorkload.matmul(1, 1, 1, weight=[[np.nan]]), "weight: not finite"),
        (lambda: QuantizationWorkload.conv2d((1, 3, 8, 8), (4, 2, 3, 3)), "does not fit 3 channels"),
        (lambda: QuantizationWorkload.conv2d((1, 2, 2, 2), (4, 2, 3, 3)), "smaller than the kernel"),
        (lambda: QuantizationWorkload.elementwise("divide", (3,)), "op: 'divide'"),
        (lambda: QuantizationWorkload.parse("matmul", "8x8"), "expected MxNxK"),
        (lambda: QuantizationWorkload.parse("matmul", "8xax8"), "'8xax8'"),
        (lambda: PerformanceRequirements(max_latency=-1.0), "max_latency"),
        (lambda: AutoTuningConfig(iterations=0), "iterations"),
        (lambda: AutoTuningConfig(max_search_time=0), "max_search_time"),
        (lambda: Candidate("int8", threads=0), "no such setting"),
        (lambda: auto_tune([3]), "expected a QuantizationWorkload"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(InvalidProblem, match=words):
        make()


# ---- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workload",
    [
        QuantizationWorkload.matmul(3, 40, 64), QuantizationWorkload.elementwise("mul", (30, 20)),
        QuantizationWorkload.conv2d((1, 4, 9, 9), (6, 4, 3, 3), padding=(1, 0, 1, 2), stride=2),
        QuantizationWorkload.conv2d((1, 9, 9, 4), (4, 1, 3, 3), groups=4, layout="NHWC", dilation=2),
        QuantizationWorkload.elementwise("relu", (64,)),
    ],
    ids=repr,
)  # fmt: skip
def test_every_candidate_computes_what_floats_do(workload):
    import torch  # noqa: F401  the float work by torch too

    data = workload.data()
    floats = float_work(workload, data)
    assert set(floats) - {"NumPy, 1 thread"} == {"NumPy", "torch"}
    exact = floats["NumPy"].result()
    assert exact.shape == workload.output_shape
    for work in floats.values():
        np.testing.assert_allclose(work.result(), exact, rtol=1e-4, atol=1e-4)
    for candidate in candidates_for(workload, 2):
        found = build(workload, candidate, data).result().reshape(exact.shape)
        least = 0.7 if candidate.dtype == "int2" else 0.97
        cosine = (found * exact).sum() / (np.linalg.norm(found) * np.linalg.norm(exact))
        assert cosine > least, candidate.name


def test_float_is_kept_where_nothing_is_faster(clock):
    clock(lambda name: 3e-6 if name.startswith("float32") else 12e-6)
    found = auto_tune(QuantizationWorkload.matmul(8, 64, 64), config=PATIENT)
    assert found.keep_float
    assert found.speedup == 1.0
    assert "takes 12 µs" in found.why
    assert "float32 takes 3 µs" in found.why
    with pytest.raises(InvalidProblem, match="winner: none"):
        found.build(np.zeros((64, 64), np.float32))


def test_the_fastest_wins_and_can_be_built(clock):
    clock(lambda name: {"int4 g128 symmetric, int8 activations, 1 thread": 1e-3}.get(name, 2e-3))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 512), np.float32), rng.standard_normal((256, 512), np.float32)
    found = auto_tune(QuantizationWorkload.matmul(1, 256, 512, x=x, weight=w), config=PATIENT)
    assert found.winner == Candidate("int4", group_size=128)
    assert found.speedup == 2.0
    assert found.data == "the data given"
    layer = found.build(w)
    report = error_report(x @ w.T, layer(x))
    assert report.sqnr_db == pytest.approx(found.best.sqnr_db, abs=1e-3)
    assert report.cosine == pytest.approx(found.best.cosine, abs=1e-6)
    assert layer.nbytes == found.best.nbytes
    assert found.best in found.front


def test_of_settings_as_fast_the_most_accurate_wins(clock):
    clock(lambda name: 9e-3 if name.startswith("float32") else 1.02e-3 if name.startswith("int8") else 1e-3)
    found = auto_tune(QuantizationWorkload.matmul(1, 256, 512), config=PATIENT)
    assert found.winner.dtype == "int8"
    assert "and more accurate" in found.why


def test_a_real_search_measures_every_setting_and_ends():
    start = time.perf_counter()
    found = auto_tune(
        QuantizationWorkload.matmul(16, 256, 256), config=AutoTuningConfig(max_search_time=0.5), cache=False
    )
    # benchmarks.tuning_check compares with the budget; here only that there is an end, however busy the machine.
    assert time.perf_counter() - start < 10
    assert all(0 < r.timing.low <= r.timing.median <= r.timing.high for r in found.results)
    assert found.baseline is not None
    assert found.front


def test_requirements_are_honoured(clock):
    clock(lambda name: 9e-3 if name.startswith("float32") else 5e-3 if name.startswith("int8") else 1e-3)
    w = QuantizationWorkload.matmul(1, 1024, 1024)
    exact = auto_tune(w, PerformanceRequirements(min_sqnr_db=30.0), PATIENT)
    assert all(any("SQNR" in v for v in r.violations) == (r.sqnr_db < 30) for r in exact.results[1:])
    assert exact.winner.dtype == "int8"
    assert "is faster but: SQNR" in exact.why
    small = auto_tune(w, PerformanceRequirements(memory_budget=700_000), PATIENT)
    assert small.best.nbytes <= 700_000
    never = auto_tune(w, PerformanceRequirements(max_latency=1e-9), PATIENT)
    assert not never.meets_requirements
    assert "nothing meets the requirements" in never.why
    assert never.winner is not None, "the nearest is named"
    slow = auto_tune(w, PerformanceRequirements(min_throughput=2 * 1024**2 / 2e-3), PATIENT)
    assert slow.winner.dtype == "int4"
    strict = auto_tune(w, config=AutoTuningConfig(max_search_time=60.0, accuracy_threshold=0.9999))
    assert all(r.violations for r in strict.results[1:] if r.cosine < 0.9999)
    never_worth_it = auto_tune(w, config=AutoTuningConfig(max_search_time=60.0, min_improvement=1000.0))
    assert never_worth_it.keep_float


def test_the_nearest_setting_is_the_one_that_misses_by_least():
    """One bound missed by far is further than two that are barely missed."""
    how, wanted = AutoTuningConfig(), PerformanceRequirements(max_latency=1.0, memory_budget=100, min_sqnr_db=30.0)
    work = QuantizationWorkload.matmul(1, 64, 64)

    def result(dtype: str, seconds: float, sqnr: float, nbytes: int) -> CandidateResult:
        timing = Timing.of([seconds] * 9)
        broken = tuner_module._violations(wanted, how.accuracy_threshold, (sqnr, 0.99), nbytes, timing, work.operations)
        texts, distance = tuple(v.text for v in broken), sum(v.excess for v in broken)
        return CandidateResult(dtype, Candidate(dtype), timing, sqnr, 0.99, nbytes, texts, distance)

    base = CandidateResult("float32", None, Timing.of([9.0] * 9), math.inf, 1.0, 400)
    barely, far = result("int8", 1.1, 40.0, 105), result("int4", 50.0, 40.0, 50)
    assert (len(barely.violations), len(far.violations)) == (2, 1)
    assert barely.distance == pytest.approx(0.1 + 0.05)
    assert far.distance == pytest.approx(49.0)
    winner, why, meets = tuner_module._judge([base, far, barely], how, ("latency",))
    assert (winner, meets) == (Candidate("int8"), False)
    assert "nearest is int8: latency" in why
    kept, why, meets = tuner_module._judge([base, far, barely], how, ())
    assert (kept, meets) == (None, True)
    assert "nearest int8: latency" in why
    assert result("int8", 1.0, 27.0, 100).distance == pytest.approx(10**0.3 - 1), "twice the noise that is allowed"


@pytest.mark.parametrize(
    ("wanted", "distance"),
    [
        ({"max_latency": 0.5}, 1.0), ({"max_latency": 0.0}, math.inf), ({"min_throughput": 32768.0}, 3.0),
        ({"memory_budget": 80}, 0.25), ({"min_cosine": 0.98}, 0.5), ({"min_cosine": 1.0}, math.inf), ({}, 0),
    ],
)  # fmt: skip
def test_distances_are_shares_of_the_bounds(wanted, distance):
    bounds, least = PerformanceRequirements(**wanted), AutoTuningConfig().accuracy_threshold
    work = QuantizationWorkload.matmul(1, 64, 64)
    broken = tuner_module._violations(bounds, least, (40.0, 0.97), 100, Timing.of([1.0] * 9), work.operations)
    assert sum(v.excess for v in broken) == pytest.approx(distance)


def test_it_can_be_disabled():
    found = auto_tune(QuantizationWorkload.matmul(1, 64, 64), config=AutoTuningConfig(enabled=False))
    assert found.keep_float
    assert not found.results
    assert "disabled" in found.why


def test_ctrl_c_leaves_what_was_found(clock, monkeypatch):
    clock(lambda name: 1e-3)
    calls = {"n": 0}

    def interrupted(*_):
        calls["n"] += 1
        if calls["n"] > 3:
            raise KeyboardInterrupt
        return build(*_)

    monkeypatch.setattr(tuner_module, "build", interrupted)
    found = auto_tune(QuantizationWorkload.matmul(4, 256, 256), config=PATIENT)
    assert not found.complete
    assert {r.candidate.dtype for r in found.results[1:]} == {"int8", "int4"}
    assert len(found.results) == 1 + 3 * len({1, lb.hardware().threads})
    assert CacheFile("tuning").get("x") is None


def test_threads_are_left_as_they_were():
    before = lb.get_num_threads()
    auto_tune(QuantizationWorkload.matmul(4, 256, 256), config=QUICK)
    assert lb.get_num_threads() == before


def test_a_list_of_workloads():
    work = [QuantizationWorkload.matmul(1, 64, 64), QuantizationWorkload.elementwise("add", (100,))]
    found = auto_tune(work, config=AutoTuningConfig(max_search_time=0.1))
    assert [f.workload for f in found] == work


# ---- timing ---------------------------------------------------------------------------------------------------------


def test_timings_have_medians_and_intervals():
    t = Timing.of([float(v) for v in range(1, 102)])
    assert (t.best, t.median, t.samples) == (1.0, 51.0, 101)
    assert 40 <= t.low < 51 < t.high <= 62
    found = measure({"slow": lambda: time.sleep(2e-3), "fast": lambda: None}, seconds=0.2)
    assert found["slow"].median > 100 * found["fast"].median
    assert found["fast"].repeats > 100


def test_a_race_drops_the_slow_and_keeps_the_baseline():
    counts = {"float": 0, "slow": 0, "fast": 0}

    def call(name, seconds):
        def run():
            counts[name] += 1
            time.sleep(seconds)

        return run

    calls = {"float": call("float", 4e-3), "slow": call("slow", 5e-3), "fast": call("fast", 1e-3)}
    timings, dropped, complete = race(calls, time.perf_counter() + 60.0, 40, keep="float", say=lambda _: None)
    assert complete
    assert dropped == {"slow"}
    assert counts["slow"] < counts["float"] < counts["fast"]
    assert timings["fast"].median < timings["float"].median


def test_who_cannot_win_drops_nobody():
    calls = {"unfit": lambda: time.sleep(1e-3), "sound": lambda: time.sleep(4e-3), "slow": lambda: time.sleep(9e-3)}
    outcome = race(calls, time.perf_counter() + 60.0, 24, keep="float", say=lambda _: None, disqualified={"unfit"})
    assert outcome.dropped == {"slow"}


def test_who_was_dropped_does_not_win_by_a_figure_of_faster_times():
    def result(name: str, seconds: float, **fields: object) -> CandidateResult:
        return CandidateResult(name, Candidate(name), Timing.of([seconds] * 9), 40.0, 1.0, 100, **fields)

    base = CandidateResult("float32", None, Timing.of([9.0] * 9), math.inf, 1.0, 400)
    rows = [base, result("int4", 2.0, dropped=True), result("int8", 3.0)]
    assert tuner_module._judge(rows, AutoTuningConfig(), ())[0] == Candidate("int8")
    # Where it is the only one that meets the requirements, it does.
    rows = [base, result("int4", 2.0, dropped=True), result("int8", 3.0, violations=("latency",))]
    assert tuner_module._judge(rows, AutoTuningConfig(), ())[0] == Candidate("int4")


# ---- the cache ------------------------------------------------------------------------------------------------------


def test_answers_are_remembered(folder, clock, monkeypatch):
    clock(lambda name: 1e-3)
    w = QuantizationWorkload.matmul(1, 512, 512)
    first = auto_tune(w, config=PATIENT)
    with monkeypatch.context() as m:
        m.setattr(tuner_module, "_search", lambda *_: pytest.fail("searched again"))
        again = auto_tune(w, config=PATIENT)
    assert again.from_cache
    assert (again.winner, again.why) == (first.winner, first.why)
    assert again.results == first.results
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert not auto_tune(w, PerformanceRequirements(min_cosine=0.5), PATIENT).from_cache
    assert clear_caches()
    assert not auto_tune(w, config=PATIENT).from_cache


def test_answers_found_under_load_are_provisional_and_not_remembered(folder, clock, busy):
    clock(lambda name: 1e-3)
    w = QuantizationWorkload.matmul(1, 64, 64)
    busy(lb.hardware().cores - 0.5)
    found = auto_tune(w, config=PATIENT)
    assert found.provisional
    assert found.load == lb.hardware().cores - 0.5
    assert "provisional" in found.why
    assert not (folder / "tuning.json").exists()
    assert OptimalQuantizationConfig.from_dict(json.loads(json.dumps(found.to_dict())), w).provisional
    busy(0.2)
    quiet = auto_tune(w, config=PATIENT)
    assert not quiet.from_cache, "measured again"
    assert not quiet.provisional
    assert auto_tune(w, config=PATIENT).from_cache
    busy(math.nan)
    unknown = auto_tune(w, config=PATIENT, cache=False)
    assert (unknown.load, unknown.provisional) == (None, False)


def test_settings_left_out_make_an_answer_provisional(folder, clock, monkeypatch):
    clock(lambda name: 1e-3)
    monkeypatch.setattr(tuner_module, "_without_a_cpu", lambda *_: {"int8 symmetric, int8 activations, 1 thread"})
    assert auto_tune(QuantizationWorkload.matmul(1, 64, 64), config=PATIENT).provisional
    assert not (folder / "tuning.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"version": 99, "entries": {}}', '{"version": 1, "entries": []}', '{"entries": {}}',
        "\x00\xff", '{"version": 1, "entries": {"k": ' + "[" * 2000 + "]" * 2000 + "}}",
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_with_a_warning(folder, content):
    folder.mkdir()
    (folder / "tuning.json").write_text(content)
    with pytest.warns(UserWarning, match="not usable"):
        found = auto_tune(QuantizationWorkload.matmul(1, 64, 64), config=AutoTuningConfig(max_search_time=0.1))
    assert found.results


def test_clearing_the_caches_removes_what_lowbit_wrote_and_nothing_else(folder):
    folder.mkdir()
    (folder / "package.json").write_text('{"name": "mine"}')
    CacheFile("tuning").put("a", 1)
    assert [path.name for path in clear_caches()] == ["tuning.json"]
    assert (folder / "package.json").exists()
    assert not (folder / "tuning.json").exists()


def test_a_poisoned_entry_cannot_choose_what_is_not_there(folder, clock):
    clock(lambda name: 1e-3)
    w = QuantizationWorkload.matmul(1, 512, 512)
    auto_tune(w, config=PATIENT)
    path = folder / "tuning.json"
    content = json.loads(path.read_text())
    (key,) = content["entries"]
    for poison in (
        {"dtype": "float8", "scheme": "symmetric", "group_size": None, "activation_dtype": "int8", "threads": 1},
        {"dtype": "int8", "scheme": "symmetric", "group_size": 7, "activation_dtype": "int8", "threads": 1},
        {"dtype": "int8", "scheme": "symmetric", "group_size": None, "activation_dtype": "int8", "threads": -4},
        {"run": "something"}, 3, [],
    ):  # fmt: skip
        content["entries"][key]["winner"] = poison
        path.write_text(json.dumps(content))
        assert not auto_tune(w, config=PATIENT).from_cache
    content["entries"][key] = "nothing"
    path.write_text(json.dumps(content))
    assert not auto_tune(w, config=PATIENT).from_cache


def _write(folder, i):
    os.environ["LOWBIT_CACHE_DIR"] = folder
    for j in range(5):
        CacheFile("shared").put(f"{i}-{j}", {"value": [i, j]})


def test_twenty_processes_may_write_at_once(folder):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(str(folder), i)) for i in range(20)]
    for p in workers:
        p.start()
    for p in workers:
        p.join()
        assert p.exitcode == 0
    kept = json.loads((folder / "shared.json").read_text())["entries"]
    assert len(kept) == 100
    assert not list(folder.glob(".*tmp"))


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOWBIT_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="not written|not usable"):
        CacheFile("x").put("a", 1)
    monkeypatch.delenv("LOWBIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lowbit"


def test_results_survive_json():
    found = auto_tune(QuantizationWorkload.matmul(1, 256, 256), config=QUICK)
    again = OptimalQuantizationConfig.from_dict(json.loads(json.dumps(found.to_dict())), found.workload)
    assert again.winner == found.winner
    assert again.results == found.results


# ---- recommendations, hints, special instructions, the desk ---------------------------------------------------------


def test_recommendations_have_reasons(clock):
    clock(lambda name: 9e-3 if name.startswith("float32") else 1e-3)
    r = recommend(QuantizationWorkload.matmul(1, 2048, 2048), config=PATIENT)
    assert r.measured
    assert r.bound == "reading weights"
    assert r.dtype != "float32"
    assert any("normal numbers" in reason for reason in r.reasons)
    clock(lambda name: 1e-3)
    keep = recommend(QuantizationWorkload.matmul(8, 64, 64), config=PATIENT)
    assert keep.dtype == "float32"


def test_limits_are_measured_and_remembered(folder):
    from lowbit.runtime.limits import limits

    first = limits()
    assert first.fma_ops > 1e9
    assert first.read_bytes["L1"] >= first.read_bytes["DRAM"] > 1e9
    assert limits() == first, "from the file"
    content = json.loads((folder / "limits.json").read_text())
    for key in content["entries"]:
        content["entries"][key]["fma_ops"] = "fast"
    (folder / "limits.json").write_text(json.dumps(content))
    assert limits().fma_ops > 1e9


def test_limits_measured_again_become_the_better_of_both(folder, monkeypatch):
    from lowbit.runtime import limits as module

    def found(dot: float, fma: float, read: float) -> module.Limits:
        return module.Limits("cpu", "avx2", dot, fma, dict.fromkeys(("L1", "L2", "L3", "DRAM"), read))

    rates = iter([found(100.0, 50.0, 900.0), found(90.0, 60.0, 300.0), found(95.0, 55.0, 310.0)])
    monkeypatch.setattr(module, "_measured", lambda _: next(rates))
    assert module.limits() == found(100.0, 50.0, 900.0)
    assert module.limits(refresh=True) == found(100.0, 60.0, 300.0), "900 is no figure of a machine that has 300"
    assert module.limits(refresh=True) == module.limits() == found(100.0, 60.0, 310.0)


def test_hints_follow_the_kernels_in_use():
    from dataclasses import replace

    from lowbit.runtime.hints import efficient_dtypes, optimal_block_size, performance_hints
    from lowbit.runtime.limits import limits

    machine, rates = lb.hardware(), limits()
    scalar = replace(machine, isa="scalar")
    assert efficient_dtypes(scalar) == {}
    assert efficient_dtypes(replace(machine, isa="vnni"))["int8"] == "vpdpbusd"
    assert optimal_block_size(replace(machine, isa="vnni")) == 128
    assert efficient_dtypes(replace(machine, isa="avxvnni"))["int4"] == "vpdpbusd"
    assert optimal_block_size(replace(machine, isa="avxvnni")) == 32
    fast = performance_hints(machine, replace(rates, dot_ops=4e11, fma_ops=1e11))
    slow = performance_hints(machine, replace(rates, dot_ops=1e11, fma_ops=1e11))
    assert fast.preferred_dtypes.value[0] == "int8"
    assert slow.preferred_dtypes.value[0] == "int4"
    assert fast.batch_size.value > slow.batch_size.value >= 1
    assert "GB/s" in fast.batch_size.reason


def test_memory_layouts_are_those_of_the_kernels():
    """Constants of the native code, and what packing makes of weights."""
    from pathlib import Path

    from lowbit import _core
    from lowbit.runtime.hints import memory_layouts

    kernels = Path(__file__).parents[2] / "core" / "kernels"
    families = ("gemm", "gemm_groupwise", "gemm_binary")
    text = "".join((kernels / name / f"{name}.h").read_text() for name in families)
    columns = {name: int(re.search(rf"\b{name} = (\d+)", text)[1]) for name in ("kGemmCols", "kGroupCols")}
    columns["kBinaryColumns"] = int(re.search(r"kBinaryColumns = (\d+)", text)[1])
    found = {layout.dtype: layout for layout in memory_layouts()}
    assert [found[d].columns for d in ("int8", "int4", "int2", "binary")] == [
        columns["kGemmCols"], columns["kGroupCols"], columns["kGroupCols"], columns["kBinaryColumns"],
    ]  # fmt: skip
    depth = int(re.search(r"kGemmDepth = (\d+)", text)[1])
    assert str(depth) in found["int8"].reason

    def bytes_of_bits(n: int, k: int) -> int:
        return _core.BinaryMatrix(np.zeros((n, -(-k // 8)), np.uint8), k).nbytes

    bits = found["binary"]
    assert bytes_of_bits(1, 384) == bytes_of_bits(bits.columns, 384) < bytes_of_bits(bits.columns + 1, 384)
    assert (
        bytes_of_bits(bits.columns, 768) - bytes_of_bits(bits.columns, 384) == 384 // bits.depth * bits.bytes_per_tile
    )

    def bytes_of_codes(n: int, k: int) -> int:
        return _core.PackedMatrix.bytes_for(k, n)

    codes = found["int8"]
    assert bytes_of_codes(1, 64) == bytes_of_codes(codes.columns, 64) < bytes_of_codes(codes.columns + 1, 64)
    assert (
        bytes_of_codes(codes.columns, 128) - bytes_of_codes(codes.columns, 64)
        == 64 // codes.depth * codes.bytes_per_tile
    )
    for name in ("int4", "int2"):
        few, width = found[name], {"int4": 4, "int2": 2}[name]
        k = 2 * few.depth
        weights = np.zeros((few.columns, k), np.uint8)
        packed = _core.PackedGroups(weights, width, k, np.ones((few.columns, 1), np.float32), None, 0)
        assert packed.nbytes == 2 * few.bytes_per_tile + 4 * few.columns, "codes and a scale for each column"


def test_schemes_preferred_have_integer_kernels():
    from lowbit.ops.matmul import path_of
    from lowbit.runtime.hints import performance_hints

    preferred = performance_hints().preferred_schemes.value
    assert all(isinstance(s, lb.QuantizationScheme) for s in preferred)
    activations = lb.QuantizationParams("uint8", "asymmetric")
    paths = {s: path_of(activations, lb.QuantizationParams("int8", s)) for s in (*preferred, "logarithmic")}
    assert all((path == "integer") == (scheme in preferred) for scheme, path in paths.items())
    assert "symmetric, asymmetric" in str(performance_hints())
    assert json.loads(json.dumps(performance_hints().to_dict()))["preferred_schemes"]["value"][0] == "symmetric"


def test_special_instructions_run_or_say_what_is_missing():
    from lowbit.system.specialized import Dp4aQuantizationOps, TensorCoreQuantizationOps, VnniQuantizationOps

    q = lb.quantize(np.float32([[1, 2], [3, 4]]))
    for ops in (VnniQuantizationOps(), Dp4aQuantizationOps(), TensorCoreQuantizationOps()):
        assert ops.supported_formats
        assert ops.tile
        if ops.is_available:
            np.testing.assert_array_equal(ops.qmatmul(q, q), lb.qmatmul(q, q))
        else:
            with pytest.raises(Unsupported, match=r"avx512_vnni|CUDA|kernels|x86"):
                ops.qmatmul(q, q)
            with pytest.raises(Unsupported):
                ops.qconv2d(q, q)


def test_the_desk_does_what_the_rooms_do():
    from lowbit.system import QuantizationSystem, create_quantization_system

    system = create_quantization_system()
    x = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    p = system.calibrate_from_samples(x, "int8", "min_max")
    q = system.quantize(x, p)
    assert q == lb.quantize(x, params=p)
    np.testing.assert_array_equal(system.dequantize(q), lb.dequantize(q))
    np.testing.assert_array_equal(system.qmatmul(q, q), lb.qmatmul(q, q))
    assert system.create_quantized_tensor(x, "int4").dtype.name == "int4"
    assert system.optimal_block_size in (32, 128)
    assert system.hardware_features.isa == lb.hardware().isa
    assert system.performance_hints().threads.value == lb.get_num_threads()
    assert system.has_acceleration == (lb.hardware().isa != "scalar")
    with pytest.raises(Unsupported, match="device: 'cuda'"):
        QuantizationSystem("cuda")


def test_a_capped_isa_changes_detection_and_hints():
    import subprocess
    import sys

    code = (
        "import lowbit as lb\n"
        "from lowbit.runtime.hints import efficient_dtypes\n"
        "from lowbit.runtime.limits import limits\n"
        "print(lb.hardware().isa, bool(efficient_dtypes()), limits().isa)\n"
    )
    env = {**os.environ, "LOWBIT_MAX_ISA": "scalar"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["scalar", "False", "scalar"]


@pytest.mark.parametrize(
    ("cores", "others", "left_out"),
    [
        (2, 0.2, set()),
        (2, 0.9, {"two"}),
        (2, 2.0, {"two"}),
        (2, math.nan, set()),
        (64, 40.0, set()),
        (64, 63.0, {"two"}),
    ],
)
def test_threads_without_a_cpu_of_their_own_take_no_part(
    monkeypatch: pytest.MonkeyPatch, cores: int, others: float, left_out: set[str]
) -> None:
    monkeypatch.setattr(tuner_module, "hardware", lambda: SimpleNamespace(usable_cpus=2, cores=cores))
    settings = {"one": Candidate("int8", threads=1), "two": Candidate("int8", threads=2)}
    assert tuner_module._without_a_cpu(settings, SimpleNamespace(cpus=lambda: others), 0.0) == left_out


@pytest.mark.parametrize(("high", "chosen"), [(1.1, 2), (1.6, 1)], ids=["beyond doubt", "in doubt"])
def test_more_threads_must_be_faster_beyond_doubt(high: float, chosen: int) -> None:
    def result(threads: int, low: float, median: float, high: float) -> CandidateResult:
        candidate = None if threads == 0 else Candidate("int8", threads=threads)
        return CandidateResult(f"{threads}", candidate, Timing(low, median, low, high, 9, 1), 40.0, 1.0, 100)

    rows = [result(0, 3.0, 3.0, 3.0), result(2, 0.9, 1.0, high), result(1, 1.5, 1.5, 1.5)]
    winner, _, meets = tuner_module._judge(rows, AutoTuningConfig(), ())
    assert meets
    assert winner is not None
    assert winner.threads == chosen


def test_a_capped_instruction_set_changes_the_choice(tmp_path) -> None:
    """Scalar products are some thirty times as slow as BLAS: no noise makes them win."""
    code = (
        "import json; from lowbit.tuning import *\n"
        "how = AutoTuningConfig(max_search_time=120.0, iterations=1)\n"
        "found = auto_tune(QuantizationWorkload.matmul(64, 512, 512), config=how)\n"
        "import lowbit as lb\n"
        "print(json.dumps([lb.hardware().isa, found.keep_float, found.why]))"
    )
    env = {**os.environ, "LOWBIT_MAX_ISA": "scalar", "LOWBIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    isa, keep_float, why = json.loads(done.stdout)
    assert isa == "scalar"
    assert keep_float
    assert "less than" in why
