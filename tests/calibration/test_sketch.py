"""Sketches: exact where they say so, and without a trace of order, threads, shards or pauses."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import lowbit as lb
from lowbit.calibration import Sketch
from lowbit.numerics.errors import FormatError, InvalidProblem, UnsupportedDType

FINITE = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, -1e-45, 2.0**-126, 100.0, 100.00001]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def sketch_of(*samples, **options):
    s = Sketch(**options)
    for x in samples:
        s.add(x)
    return s


def batches(seed=0, count=8):
    """Arrays of many shapes and sizes; the range grows, and negative numbers come late."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        x = rng.standard_normal(tuple(rng.integers(1, 40, rng.integers(1, 4)))) * 10.0 ** rng.integers(-4, 5)
        found.append((np.abs(x) if i < count // 2 else x).astype(np.float32))
    return found


# ---- what it says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 4095, 4096, 4097, 300_001])
def test_counts_and_moments_are_those_of_the_numbers(dtype, size):
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    x[:: max(1, size // 7)] = 0
    d = sketch_of(x).distribution()
    wide = x.astype(np.float64)
    assert (d.count, d.zeros) == (size, int((wide == 0).sum()))
    assert (d.lo, d.hi, d.absmax) == (wide.min(), wide.max(), np.abs(wide).max())
    np.testing.assert_allclose(d.mean, wide.mean(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(d.std, wide.std(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(d.mean_abs, np.abs(wide).mean(), rtol=1e-13)
    if size > 2:
        fourth = ((wide - wide.mean()) ** 4).mean() / wide.var() ** 2 - 3
        np.testing.assert_allclose(d.excess_kurtosis, fourth, rtol=2e-3, atol=2e-3)


def test_every_number_is_in_its_bin():
    x = np.random.default_rng(3).standard_t(3, 50_000).astype(np.float32)
    h = sketch_of(x).distribution().histogram
    assert h.counts.sum() == x.size
    assert (h.lower[1:] >= h.upper[:-1]).all(), "bins overlap"
    for lower, upper, count in zip(h.lower, h.upper, h.counts, strict=True):
        inside = (x >= lower) & ((x < upper) if upper > lower else (x <= upper))
        # The two bins next to the tails end at a number that is counted among those.
        assert abs(int(inside.sum()) - count) <= 1, (lower, upper)


def test_a_narrow_distribution_is_told_apart_finely():
    x = (100 + 0.1 * np.random.default_rng(0).standard_normal(20_000)).astype(np.float32)
    h = sketch_of(x).distribution().histogram
    assert np.diff(h.lower).max() < 0.05
    assert h.lower.size > 500


def test_few_distinct_numbers_are_told_apart_finely():
    x = np.random.default_rng(0).choice(np.float32([1.5, 1.75, 2.0]), 10_000)
    d = sketch_of(x).distribution()
    np.testing.assert_allclose(d.histogram.quantile([0.1, 0.5, 0.9]), [1.5, 1.75, 2.0], rtol=1e-4)


@pytest.mark.parametrize("p", [0.001, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999])
@pytest.mark.parametrize("seed", range(3))
def test_quantiles_have_the_rank_they_should(p, seed):
    rng = np.random.default_rng(seed)
    for x in (rng.standard_normal(200_000), rng.laplace(size=200_000), np.append(rng.standard_normal(199_999), 1e6)):
        x = x.astype(np.float32)
        d = sketch_of(x).distribution()
        assert abs((x <= d.histogram.quantile(p)).mean() - p) <= 5e-4
        assert abs((np.abs(x) <= d.magnitudes.quantile(p)).mean() - p) <= 5e-4


def test_memory_is_fixed_and_small():
    s = Sketch()
    sizes = set()
    for x in batches(count=30):
        s.add(x)
        sizes.add(s.nbytes)
    assert len(sizes) == 1
    assert sizes.pop() <= 64 * 1024


def test_the_reservoir_is_a_fair_sample():
    x = np.random.default_rng(0).random(500_000).astype(np.float32)
    values = sketch_of(x).distribution().values
    assert values.size == 3072
    counts, _ = np.histogram(values, 16, (0, 1))
    assert np.abs(counts - 192).max() < 6 * np.sqrt(192)
    assert np.isin(values, x).all()


def test_small_data_is_kept_whole():
    x = np.arange(100, dtype=np.float32)
    assert sorted(sketch_of(x).distribution().values) == x.tolist()


# ---- no trace of how it was filled ----------------------------------------------------------------------------------


def test_any_order_of_merging_gives_the_same_sketch():
    data = batches()
    whole = sketch_of(*data)
    rng = np.random.default_rng(1)
    for _ in range(10):
        parts = [sketch_of(data[i]) for i in rng.permutation(len(data))]
        while len(parts) > 1:  # a random tree of merges
            i, j = rng.choice(len(parts), 2, replace=False)
            parts[i].merge(parts[j])
            del parts[j]
        assert parts[0] == whole


@given(st.lists(arrays(np.float32, st.integers(1, 40), elements=FINITE), min_size=2, max_size=6), st.randoms())
@settings(max_examples=150, deadline=None)
def test_shards_of_anything_merge_to_the_same_sketch(data, random):
    whole = sketch_of(*data, bins=128, reservoir=8)
    left, right = Sketch(bins=128, reservoir=8), Sketch(bins=128, reservoir=8)
    for x in random.sample(data, len(data)):
        random.choice([left, right]).add(x)
    left.merge(right)
    assert left == whole
    assert left.fingerprint == whole.fingerprint


def test_zeros_among_the_smallest_numbers_there_are():
    data = [np.float32([2.0**-126]), np.float32([1e-45, 0.0]), np.float32([0.0, 3e-39])]
    for order in itertools.permutations(data):
        found = sketch_of(*order, bins=128, reservoir=8)
        assert found == sketch_of(*data, bins=128, reservoir=8)
        assert found.distribution().zeros == 2
        assert found.distribution().histogram.counts.sum() == 5


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_threads_leave_no_trace(axis):
    x = np.random.default_rng(0).standard_normal((700, 500)).astype(np.float32)
    found = []
    before = lb.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            lb.set_num_threads(threads)
            found.append(sketch_of(x, x[:, ::-1], axis=axis))
    finally:
        lb.set_num_threads(before)
    assert all(s == found[0] for s in found)


def test_instruction_sets_leave_no_trace():
    code = (
        "import numpy as np, hashlib, lowbit as lb\n"
        "from lowbit.calibration import Sketch\n"
        "rng = np.random.default_rng(5)\n"
        "h = hashlib.sha256()\n"
        "for axis in (None, 1):\n"
        "    s = Sketch(axis=axis)\n"
        "    for k in (1, 100, 1e6):\n"
        "        for kind in (np.float32, np.float64, np.float16):\n"
        "            s.add((rng.standard_normal((133, 77)) * min(k, 1e4 if kind is np.float16 else k)).astype(kind))\n"
        "    for name, a in s.to_arrays()[0].items(): h.update(a.tobytes())\n"
        "    h.update(lb.Calibrator.calibrate.__name__.encode())\n"
        "print(h.hexdigest())\n"
    )
    found = set()
    for isa in ("scalar", lb.hardware().isa):
        env = {**os.environ, "LOWBIT_MAX_ISA": isa}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.parametrize("stop", [0, 1, 3, 7])
def test_saved_and_loaded_in_between_it_ends_in_the_same_bits(tmp_path, stop):
    data = batches(seed=stop)
    first = sketch_of(*data[:stop])
    first.save(tmp_path / "s.safetensors")
    resumed = Sketch.load(tmp_path / "s.safetensors")
    for x in data[stop:]:
        resumed.add(x)
    assert resumed == sketch_of(*data)
    assert pickle.loads(pickle.dumps(resumed)) == resumed


def test_fingerprints_tell_data_apart():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    y = x.copy()
    y[5000] = np.nextafter(y[5000], np.float32(9))
    assert sketch_of(x).fingerprint == sketch_of(x.copy()).fingerprint != sketch_of(y).fingerprint
    wide = x.astype(np.float64)
    other = wide.copy()
    other[5000] += 1e-12  # below what float32 can tell
    assert sketch_of(wide).fingerprint != sketch_of(other).fingerprint
    assert sketch_of(x[:5000], x[5000:]).fingerprint == sketch_of(x[5000:], x[:5000]).fingerprint


# ---- scopes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis"), [((6, 50), 0), ((50, 6), 1), ((3, 6, 7), 1), ((2, 3, 40), -1), ((70, 20), -1)]
)
def test_each_index_of_an_axis_is_seen_by_itself(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    s = sketch_of(x, axis=axis)
    rows = np.moveaxis(x, axis, 0).reshape(shape[axis], -1)
    assert s.shape == (shape[axis],)
    for i, row in enumerate(rows):
        d = s.distribution(i)
        assert (d.count, d.lo, d.hi) == (row.size, row.min(), row.max())
        np.testing.assert_allclose(d.mean, row.astype(np.float64).mean(), rtol=1e-9, atol=1e-12)
        assert d.histogram.counts.sum() == row.size


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_blocks_may_be_ragged(axis):
    x = np.random.default_rng(0).standard_normal((7, 10, 9)).astype(np.float32)
    s = sketch_of(x, axis=axis, group_size=4)
    lo, hi = s.ranges()
    moved = np.moveaxis(x, axis, 0)
    for g in range(lo.shape[axis]):
        part = moved[4 * g : 4 * g + 4]
        np.testing.assert_array_equal(np.moveaxis(lo, axis, 0)[g], part.min(0))
        np.testing.assert_array_equal(np.moveaxis(hi, axis, 0)[g], part.max(0))
    ranges = sketch_of(x, axis=axis, group_size=4, collect="range")
    np.testing.assert_array_equal(ranges.ranges()[0], lo)
    assert ranges.count == s.count == x.size


# ---- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [10, 5000, 400_000])
@pytest.mark.parametrize("collect", ["all", "range"])
def test_what_is_not_finite_is_named_and_nothing_is_taken(bad, size, collect):
    s = Sketch(name="encoder.input", collect=collect)
    s.add(np.ones(5, np.float32))
    x = np.zeros((2, size // 2), np.float32)
    x[1, 3] = bad
    with pytest.raises(InvalidProblem, match=r"encoder\.input: (nan|-?inf) at index \(1, 3\)"):
        s.add(x)
    assert (s.count, s.num_samples) == (5, 1)
    assert s == sketch_of(np.ones(5, np.float32), name="encoder.input", collect=collect)


@pytest.mark.parametrize("axis", [None, 1])
def test_what_is_not_finite_can_be_left_out_and_is_counted(axis):
    x = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    y = x.copy()
    y[::7, 3], y[5, 5], y[6, 6] = np.nan, np.inf, -np.inf
    s = sketch_of(y, axis=axis, on_nonfinite="ignore")
    assert s.num_nonfinite == np.sum(~np.isfinite(y))
    assert s.count == np.isfinite(y).sum()
    kept = y[np.isfinite(y)] if axis is None else y[:, 3][np.isfinite(y[:, 3])]
    d = s.distribution(0 if axis is None else 3)
    assert (d.lo, d.hi) == (kept.min(), kept.max())


def test_arrays_that_do_not_fit_are_refused():
    s = sketch_of(np.zeros((3, 4), np.float32), axis=1)
    with pytest.raises(InvalidProblem, match=r"shape \(3, 5\) has scales of shape \(5,\); those before had \(4,\)"):
        s.add(np.zeros((3, 5), np.float32))
    with pytest.raises(InvalidProblem, match="axis: 1 is out of bounds"):
        s.add(np.zeros(4, np.float32))
    with pytest.raises(UnsupportedDType, match="x: int32"):
        s.add(np.zeros((3, 4), np.int32))
    with pytest.raises(InvalidProblem, match="does not fit"):
        s.merge(Sketch())
    with pytest.raises(InvalidProblem, match="the sketch itself"):
        s.merge(s)
    with pytest.raises(InvalidProblem, match="no samples yet"):
        Sketch().distribution()
    with pytest.raises(InvalidProblem, match="expected at most"):
        Sketch(axis=1, group_size=1, bins=4096).add(np.zeros((1, 1 << 18), np.float32))
    for options in ({"bins": 3}, {"reservoir": -2}, {"group_size": 4}, {"collect": "some"}, {"on_nonfinite": "skip"}):
        with pytest.raises(InvalidProblem, match=next(iter(options))):
            Sketch(**options)


def test_empty_arrays_add_nothing():
    s = sketch_of(np.zeros((0, 3), np.float32))
    assert (s.count, s.num_samples) == (0, 0)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "s.safetensors"
    sketch_of(*batches()).save(path)
    raw = path.read_bytes()
    for cut in (0, 8, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:cut])
        with pytest.raises(FormatError):
            Sketch.load(path)
    arrays, about = sketch_of(*batches()).to_arrays()
    for field, change in [("counts", lambda a: a + 1), ("values", lambda a: a * np.float32(np.nan)),
                          ("limbs", lambda a: a[:, :2]), ("extremes", lambda a: a.astype(np.float32))]:  # fmt: skip
        with pytest.raises(FormatError, match=field):
            Sketch.from_arrays({**arrays, field: change(arrays[field])}, about)
    for key, value in [("version", 99), ("native", [2, 4096, 3072]), ("axis", "x"), ("sizes", None)]:
        with pytest.raises(FormatError):
            Sketch.from_arrays(arrays, {**json.loads(json.dumps(about)), key: value})
