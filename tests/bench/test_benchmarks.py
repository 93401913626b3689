"""What the benchmarks make of their timings: targets against the fastest of several, means over cases, limits."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from benchmarks import peers
from benchmarks import timing as timing_of_benchmarks
from benchmarks.rows import group_rows, members_of, rows_of
from benchmarks.timing import Absent, Budget, Case, Contender, GroupTarget, Target, Timing, measure

OURS = Contender("lowbit", lambda: lambda: None, kind="lowbit")
FAST, SLOW = (Contender(name, lambda: lambda: None) for name in ("fast", "slow"))
MEAN = GroupTarget("all", "lowbit", ("fast", "slow"), 1.0, "best peer", lists_slower=True)


def timing(seconds: float, cpus: float = 1.0) -> Timing:
    return Timing(1, [seconds], [cpus * seconds])


def case(name: str, targets: Any = ()) -> Case:
    return Case(name, 1, [OURS, FAST, SLOW], targets, operations=100, group_targets=[MEAN])


def mean_row(*found: Any) -> Any:
    members = [m for i, f in enumerate(found) for m in members_of(case(f"case {i}"), f)]
    (row,) = group_rows("family", members, threads=1)
    return row


@pytest.mark.parametrize(("ours", "met"), [(2.0, True), (2.2, True), (2.3, False)])
def test_a_target_is_held_against_the_fastest_of_several(ours: float, met: bool) -> None:
    target = Target("lowbit", ("slow", "fast", "not there"), 0.9, "best peer")
    found = {OURS: timing(ours), FAST: timing(2.0), SLOW: timing(8.0)}
    verdict = rows_of("family", case("c", [target]), found, threads=1)[0].targets[0]
    assert verdict.met is met
    assert verdict.measured == pytest.approx(2.0 / ours)


def test_a_group_target_is_the_geometric_mean_and_lists_where_lowbit_is_slower() -> None:
    faster = {OURS: timing(1.0), FAST: timing(4.0), SLOW: timing(9.0)}
    slower = {OURS: timing(2.0), FAST: timing(1.0), SLOW: timing(9.0)}
    row = mean_row(faster, slower)
    assert row.targets[0].measured == pytest.approx((4.0 * 0.5) ** 0.5)
    assert row.targets[0].met is True
    assert row.slower == ["case 1 (0.50)"]


def test_a_group_target_is_not_judged_where_a_case_was_not_measured() -> None:
    measured = {OURS: timing(1.0), FAST: timing(4.0), SLOW: timing(9.0)}
    row = mean_row(measured, {OURS: Absent("no such function"), FAST: timing(1.0), SLOW: Absent("")})
    assert row.targets[0].met is None
    assert row.targets[0].measured == pytest.approx(4.0)
    assert "1 of 2" in row.targets[0].note


def test_a_group_target_is_not_judged_where_most_cases_were_preempted() -> None:
    quiet = {OURS: timing(1.0), FAST: timing(4.0), SLOW: timing(9.0)}
    busy = {OURS: timing(1.0, cpus=0.5), FAST: timing(4.0), SLOW: timing(9.0)}
    assert mean_row(quiet, quiet, busy).targets[0].met is True
    assert mean_row(quiet, busy, busy).targets[0].met is None


def test_a_limit_that_measures_itself_counts_by_the_rate_it_returns() -> None:
    rates = iter([1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 20.0, 10.0])
    limit = Contender("limit", lambda: lambda: next(rates), kind="limit", seconds=lambda rate: 100 / rate)
    work = Case("c", 1, [limit], operations=100)
    found = measure(work, Budget(seconds=0.0, rounds=3))
    (row,) = rows_of("family", work, found, threads=1)  # no copy: the work is counted in operations
    assert found[limit].best == 100 / 50  # type: ignore[union-attr]
    assert row.seconds is not None
    assert row.operations / row.seconds == 50


def test_a_limit_that_cannot_be_measured_is_no_failure() -> None:
    def build() -> Any:
        raise NotImplementedError("no such loop")

    limit = Contender("limit", build, kind="limit")
    work = Case("c", 1, [limit], operations=100)
    (row,) = rows_of("family", work, measure(work, Budget(0.0, 1)), threads=1)
    assert row.status == "not measurable"
    assert "no such loop" in row.reason


@pytest.mark.deep
@pytest.mark.parametrize(
    "family", ["quantize", "groups", "fake_quant", "calls", "range", "gemm", "linear", "int4", "conv"]
)
def test_contenders_of_lowbit_build_and_give_what_their_case_expects(family: str) -> None:
    pytest.importorskip("rich")
    module = importlib.import_module(f"benchmarks.bench_{family}")
    for work in module.cases(peers.Peers(1)):
        for contender in work.contenders:
            if contender.kind == "lowbit":
                with contender.around():
                    call = contender.build()
                    timing_of_benchmarks._check(contender, work, call())
