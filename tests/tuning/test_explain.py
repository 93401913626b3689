"""The schedule of a matrix product, as Python sees it."""

from __future__ import annotations

import pytest

from lowbit import _core
from lowbit.numerics.errors import InvalidProblem
from lowbit.tuning.explain import explain
from lowbit.tuning.workload import QuantizationWorkload


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4096, 4096), (97, 270, 33), (1024, 1024, 5000)])
def test_tasks_cover_the_result(shape, threads):
    m, n, _ = shape
    s = explain(QuantizationWorkload.matmul(*shape), threads).schedule
    assert 1 <= s["threads"] <= threads
    assert (s["row_tasks"] - 1) * s["task_rows"] < m <= s["row_tasks"] * s["task_rows"]
    columns = s["task_panels"] * s["panel_columns"]
    assert (s["panel_tasks"] - 1) * columns < n <= s["panel_tasks"] * columns
    assert s["rows"] in _core.RowAccess.__members__
    assert s["order"] in _core.TileOrder.__members__


def test_the_same_each_time_and_readable():
    workload = QuantizationWorkload.matmul(64, 1024, 1024)
    first = explain(workload, 2)
    assert first == explain(workload, 2)
    assert next(iter(first.lines()))[0] == "kernel"
    assert first.to_dict()["cpu"]["task_rows"] == _core.cpu_model().task_rows


def test_only_matrix_products_have_a_schedule():
    with pytest.raises(InvalidProblem, match="expected a matrix product"):
        explain(QuantizationWorkload.elementwise("add", (4, 4)))
    with pytest.raises(InvalidProblem, match="expected at least 1"):
        explain(QuantizationWorkload.matmul(1, 2, 3), 0)
