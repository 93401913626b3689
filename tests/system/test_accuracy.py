"""Estimates come from theory or from a stated distribution, and agree with measurements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams
from lowbit.system import accuracy


def test_memory_savings_of_codes_alone() -> None:
    for dtype, want in (("int8", 0.75), ("int16", 0.5), ("int4", 0.875), ("uint2", 0.9375), ("binary", 0.96875)):
        assert lb.estimate_memory_savings(dtype) == want
    assert lb.estimate_memory_savings("int8", source=np.float16) == 0.5


def test_memory_savings_without_a_shape_count_what_each_block_adds() -> None:
    for dtype, options in (
        ("int4", {"group_size": 32}), ("uint4", {"group_size": 64}), ("int8", {"scheme": "block_wise"}),
        ("uint8", {"scheme": "asymmetric", "group_size": 16}),
    ):  # fmt: skip
        for source in (np.float32, np.float64, np.float16):
            limit = lb.estimate_memory_savings(dtype, (64, 1 << 20), source=source, **options)
            assert lb.estimate_memory_savings(dtype, source=source, **options) == pytest.approx(limit, abs=1e-12)
    with pytest.raises(InvalidProblem, match="channel_wise"):
        lb.estimate_memory_savings("int8", scheme="channel_wise", group_size=4)


@pytest.mark.filterwarnings("ignore:x. has negative values")
@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("scheme", [s.value for s in lb.QuantizationScheme])
@pytest.mark.parametrize(
    "dtype",
    [
        "int16",
        "uint16",
        "int8",
        "uint8",
        "int4",
        "uint4",
        "int2",
        "uint2",
        "binary",
        lb.QuantizedDType.mixed([1, 4, 16]),
    ],
    ids=str,
)
def test_memory_savings_with_a_shape_are_those_of_a_real_tensor(dtype: Any, scheme: str, source: type) -> None:
    compared = 0
    for shape in ((), (1,), (7,), (3, 5), (2, 3, 9), (3, 64)):
        x = np.linspace(-1, 2, math.prod(shape)).reshape(shape).astype(source)
        scopes = [(None, None), *((axis, block) for axis in range(len(shape)) for block in (None, 1, 4, 100))]
        for axis, block in (*scopes, (None, 3)):
            options: Any = {"scheme": scheme, "axis": axis, "group_size": block}
            try:
                real = 1 - lb.quantize(x, dtype, **options).nbytes / x.nbytes
            except (InvalidProblem, lb.Unsupported):
                with pytest.raises((InvalidProblem, lb.Unsupported)):
                    lb.estimate_memory_savings(dtype, shape, source=source, **options)
                continue
            assert lb.estimate_memory_savings(dtype, shape, source=source, **options) == pytest.approx(real, abs=1e-12)
            compared += 1
    name = lb.QuantizedDType.of(dtype).name
    refused = {"binary": ("asymmetric", "logarithmic"), "mixed": ("asymmetric", "logarithmic", "block_wise")}.get(
        name, ("logarithmic",) if name.startswith("u") else ()
    )
    assert (compared == 0) == (scheme in refused)


def test_memory_savings_of_nothing_are_none() -> None:
    for shape, options in (((0, 4), {}), ((4, 0), {"axis": 0}), ((0,), {"group_size": 8})):
        assert lb.estimate_memory_savings("int8", shape, **options) == 0.0


def test_memory_savings_can_be_losses() -> None:
    assert lb.estimate_memory_savings("int8", (7,), scheme="channel_wise", source=np.float64) == -0.125


def test_accuracy_falls_with_bits_and_rises_with_granularity() -> None:
    by_bits = [lb.estimate_accuracy_impact(d) for d in ("int16", "int8", "int4", "int2")]
    assert by_bits == sorted(by_bits, reverse=True)
    assert by_bits[1] > 0.99
    plain = lb.estimate_accuracy_impact("int4", "linear")
    assert lb.estimate_accuracy_impact("int4", "channel_wise") > plain
    assert lb.estimate_accuracy_impact("int4", "block_wise", group_size=32) > plain


def test_uniform_data_gains_six_decibels_a_bit() -> None:
    """SQNR of a uniform source over its full range is 20 log10(2^bits) for asymmetric codes."""
    for dtype in ("uint8", "uint4"):
        bits = lb.QuantizedDType.of(dtype).bits
        got = lb.estimate_accuracy_impact(dtype, "asymmetric", distribution="uniform", axis=0).sqnr_db
        assert got == pytest.approx(20 * math.log10(2**bits), abs=0.6)


def test_a_stated_distribution_is_always_the_same() -> None:
    first = lb.estimate_accuracy_impact("int4", distribution="laplace")
    assert first == lb.estimate_accuracy_impact("int4", distribution="laplace")
    assert "laplace" in repr(first)
    with pytest.raises(InvalidProblem, match="distribution"):
        lb.estimate_accuracy_impact("int4", distribution="cauchy")


def test_measured_impact_is_that_of_the_tensor() -> None:
    x = np.random.default_rng(1).standard_normal(999).astype(np.float32)
    q = lb.quantize(x, "int4")
    got = lb.measure_accuracy_impact(x, q.params)
    assert got.report == q.error(x)
    assert 0 < float(got) < 1


def test_auto_quantize_never_loses_to_the_plain_way() -> None:
    rng = np.random.default_rng(2)
    data = {
        "normal": rng.standard_normal(8192),
        "outliers": np.concatenate([rng.standard_normal(8191), [60.0]]),
        "positive": np.abs(rng.standard_normal(8192)),
        "log": np.exp(rng.normal(0, 3, 8192)) * rng.choice([-1, 1], 8192),
    }
    for name, values in data.items():
        x = values.astype(np.float32)
        for dtype in ("int8", "uint8", "int4", "uint4"):
            plain = lb.quantize(x, dtype, scheme="linear").error(x).sqnr_db
            assert lb.auto_quantize_tensor(x, dtype).error(x).sqnr_db >= plain, (name, dtype)
    x = data["outliers"].astype(np.float32)
    assert lb.auto_quantize_tensor(x, "int4").error(x).sqnr_db > lb.quantize(x, "int4").error(x).sqnr_db + 1


def test_auto_quantize_keeps_the_granularity() -> None:
    x = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    assert lb.auto_quantize_tensor(x, "int4", group_size=16).params.group_size == 16
    assert lb.auto_quantize_tensor(x, "int8", axis=0).params.scale.shape == (8,)
    assert lb.auto_quantize_tensor(x, "binary").dtype.is_binary


def test_optimal_params_are_templates() -> None:
    for dtype in ("int8", "uint8", "int4", "uint4", "int16", "binary"):
        for accurate in (True, False):
            p = lb.create_optimal_params(dtype, accurate)
            assert p.dtype == lb.QuantizedDType.of(dtype)
            assert (p.axis is not None) == accurate
    made = lb.create_optimal_params("uint8", False).from_statistics(-1.0, 1.0)
    assert isinstance(made, QuantizationParams)
    assert made.zero_point == 128


def _with_quiet_columns(rows: int) -> np.ndarray:
    """Every fourth of 16 columns is 50 times smaller, so that elements a multiple of 4 apart are not like the rest."""
    x = np.random.default_rng(5).standard_normal((rows, 16)).astype(np.float32)
    x[:, ::4] *= 0.02
    return x


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4"])
def test_auto_quantize_is_not_misled_by_columns_that_repeat(dtype: str) -> None:
    x = _with_quiet_columns(2**16)
    scheme = "asymmetric" if dtype == "uint8" else "symmetric"
    plain = lb.quantize(x, dtype, scheme=scheme).error(x).sqnr_db
    found = lb.auto_quantize_tensor(x, dtype)
    assert found.error(x).sqnr_db >= plain + (3 if dtype == "int4" else 0)
    assert found == lb.auto_quantize_tensor(x, dtype)  # the sample is the same every time


def test_auto_quantize_judges_its_winner_on_all_elements() -> None:
    # One outlier that is not in the sample: clipping it seems to cost nothing.
    for outlier in (12345, 777_777, 1_000_000):
        x = np.random.default_rng(6).standard_normal(2**20).astype(np.float32)
        x[outlier] = 50.0
        plain = lb.quantize(x, "int16").error(x).sqnr_db
        assert lb.auto_quantize_tensor(x, "int16").error(x).sqnr_db >= plain


@pytest.mark.parametrize(("axis", "group_size"), [(None, None), (0, None), (1, None), (-1, 64), (0, 1000)])
def test_auto_quantize_judges_large_arrays_on_a_sample(
    axis: int | None, group_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    noise = accuracy._noise
    monkeypatch.setattr(accuracy, "_noise", lambda x, q: judged.append(x.array.size) or noise(x, q))
    x = np.random.default_rng(7).laplace(size=(3001, 192)).astype(np.float32) * np.geomspace(0.1, 9, 192, dtype="f4")
    assert x.size > 2**19
    found = lb.auto_quantize_tensor(x, "int4", axis=axis, group_size=group_size)
    assert judged.count(x.size) <= 2  # the winner and the start, at the end
    assert set(judged) <= {2**18, x.size}
    plain = lb.quantize(x, "int4", axis=axis, group_size=group_size)
    assert found.params.scale.shape == plain.params.scale.shape
    assert found.error(x).sqnr_db > plain.error(x).sqnr_db + 0.5  # each element was judged by its own scale
