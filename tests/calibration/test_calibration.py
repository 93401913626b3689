"""Calibration against brute force over all the numbers, and everything a calibrator promises besides."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import numpy as np
import pytest

import lowbit as lb
from lowbit.calibration import (
    MSE,
    Adaptive,
    CalibrationCache,
    CalibrationMethod,
    Calibrator,
    Custom,
    Entropy,
    MinMax,
    MovingAverage,
    Percentile,
    PercentileCalibrator,
    methods,
    scores,
)
from lowbit.data import _conv3x3, load_digits_cnn
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.reference import calibration as reference_calibration

N = 100_000
MINILM = Path(__file__).parents[1] / "data/minilm_activations.npz"  # made by scripts/record_minilm.py
DTYPES = ["int8", "uint8", "int4", "uint4", "int2", "uint2"]


def distributions():
    rng = np.random.default_rng(11)
    cnn = load_digits_cnn()
    image = cnn["test_images"][:, :, :, None].astype(np.float32) / 16
    hidden = _conv3x3(image, cnn["conv1.weight"], cnn["conv1.bias"])
    return {
        "normal": rng.standard_normal(N), "laplace": rng.laplace(size=N), "student_t": rng.standard_t(3, N),
        "half_normal": np.abs(rng.standard_normal(N)),
        "bimodal": np.where(rng.random(N) < 0.5, rng.normal(-3, 0.5, N), rng.normal(2, 0.3, N)),
        "spiky": np.append(rng.standard_normal(N - 1), 1e6), "relu": np.maximum(rng.standard_normal(N), 0),
        "activations": hidden.reshape(-1)[:N],
        **{f"minilm_{name}": x.astype(np.float32) for name, x in np.load(MINILM).items()},
    }  # fmt: skip


DISTRIBUTIONS = {name: x.astype(np.float32) for name, x in distributions().items()}


@pytest.fixture(scope="module")
def calibrators():
    found = {}
    for name, x in DISTRIBUTIONS.items():
        found[name] = Calibrator(name=name)
        for part in np.array_split(x, 5):
            found[name].add(part)
    return found


def true_mse(x, params):
    back = lb.dequantize(lb.quantize(x, params=params))
    return float(np.mean((x.astype(np.float64) - back) ** 2))


def params_of(dtype, lo, hi):
    return lb.QuantizationParams.from_statistics(np.float32(lo), np.float32(hi), dtype=dtype, scheme="linear")


def exhaustive(x, dtype):
    """The least error over a fine grid of ranges, measured on every number."""

    def best(ranges):
        return min(((true_mse(x, params_of(dtype, lo, hi)), lo, hi) for lo, hi in ranges), key=lambda row: row[0])

    lo, hi = float(x.min()), float(x.max())
    most, least = max(-lo, hi), float(np.quantile(np.abs(x[x != 0]), 0.02))
    down = np.append(np.geomspace(least, most, 70), most)
    if not params_of(dtype, -1, 1).zero_point.any():  # symmetric: one end
        found = best([(-t, t) for t in down])
        return min(found[0], best([(-t, t) for t in found[2] * np.linspace(0.93, 1.07, 29)])[0])
    ends = [np.append(-down[down <= -lo][::5], [lo, 0.0]) if lo < 0 else [0.0],
            np.append(down[down <= hi][::5], [hi, 0.0]) if hi > 0 else [0.0]]  # fmt: skip
    found = best([(a, b) for a in ends[0] for b in ends[1] if a < b])
    for width in (0.2, 0.05):
        near = 1 + width * np.linspace(-1, 1, 7)
        again = best([(found[1] * a, found[2] * b) for a in near for b in near])
        found = min(found, again, key=lambda row: row[0])
    return found[0]


# ---- against brute force --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mse_is_within_a_hundredth_of_the_best_there_is(name, dtype, calibrators):
    x = DISTRIBUTIONS[name]
    found = true_mse(x, calibrators[name].calibrate(dtype, method="mse"))
    assert found <= 1.01 * exhaustive(x, dtype)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adaptive_is_never_worse_than_the_best_single_method(name, dtype, calibrators):
    x, c = DISTRIBUTIONS[name], calibrators[name]
    adaptive = true_mse(x, c.calibrate(dtype, method="adaptive"))
    methods = ["min_max", "moving_average", Percentile(99.9), Percentile(99.99), "entropy", "mse"]
    singles = [true_mse(x, c.calibrate(dtype, method=m)) for m in methods]
    assert adaptive <= 1.01 * min(singles)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint4"])
def test_the_estimated_error_is_the_measured_one(name, dtype, calibrators):
    x, c = DISTRIBUTIONS[name], calibrators[name]
    for cost in c.statistics(dtype).methods:
        measured = true_mse(x, params_of(dtype, cost.lo, cost.hi))
        assert cost.mse == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("p", [90.0, 99.0, 99.9, 99.99])
def test_percentiles_have_their_rank(name, p, calibrators):
    x, d = DISTRIBUTIONS[name], calibrators[name].sketch.distribution()
    signed, unsigned = (scores.Target(lb.QuantizationParams(t, "linear")) for t in ("int8", "uint8"))
    _, most = Percentile(p).range(d, signed)
    size = np.abs(x)
    assert (
        (size < most).mean() - 5e-4
        <= p / 100
        <= (size <= np.nextafter(np.float32(most), np.float32(9e9))).mean() + 5e-4
    )
    lo, hi = Percentile(p).range(d, unsigned)
    tail = (1 - p / 100) / 2
    assert (x < lo).mean() - 5e-4 <= tail <= (x <= lo + abs(lo) * 1e-6).mean() + 5e-4
    assert (x > hi).mean() - 5e-4 <= tail <= (x >= hi - abs(hi) * 1e-6).mean() + 5e-4


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint2"])
def test_scores_equal_plain_numpy(name, dtype, calibrators):
    d = calibrators[name].sketch.distribution()
    target = scores.Target(lb.QuantizationParams(dtype, "linear"))
    rng = np.random.default_rng(0)
    lo, hi = d.lo * rng.random(6), d.hi * (rng.random(6) + 1e-3)
    p = target.candidates(d, lo, hi)
    zero = p.zero_point.astype(int)
    for i, (kl, mse) in enumerate(
        zip(scores.divergence(d, target, lo, hi), scores.mean_squared_error(d, target, lo, hi), strict=True)
    ):
        mapping = float(p.scale[i]), p.qmin - zero[i], p.qmax - zero[i]
        np.testing.assert_allclose(
            kl, reference_calibration.divergence(*d.smooth, *mapping, scores.FLOOR), rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            mse * d.count, reference_calibration.squared_error(*d.histogram, *mapping), rtol=1e-9
        )


def test_squared_error_of_the_reference_is_that_of_many_numbers():
    edges = np.array([-2.3, -0.7, 0.1, 0.9, 4.0])
    x = np.concatenate([a + (b - a) * (np.arange(20_000) + 0.5) / 20_000 for a, b in itertools.pairwise(edges)])
    exact = reference_calibration.squared_error(edges[:-1], edges[1:], np.full(4, 20_000.0), 0.35, -5, 4)
    codes = np.clip(np.rint(x / 0.35), -5, 4)
    assert exact == pytest.approx(((x - 0.35 * codes) ** 2).sum(), rel=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
def test_entropy_finds_the_least_divergence(dtype, calibrators):
    d = calibrators["laplace"].sketch.distribution()
    target = scores.Target(lb.QuantizationParams(dtype, "linear"))
    lo, hi = Entropy().range(d, target)
    found = scores.divergence(d, target, lo, hi)[0]
    rng = np.random.default_rng(0)
    shrink = np.exp2(-3 * rng.random((2, 400)))
    if target.is_symmetric:
        others = scores.divergence(d, target, -d.absmax * shrink[0], d.absmax * shrink[0])
    else:
        others = scores.divergence(d, target, d.lo * shrink[0], d.hi * shrink[1])
    assert found <= others.min() * 1.05, "more than the score's own roughness"
    assert hi < d.hi, "heavy tails are clipped"


def test_adaptive_tries_entropy_only_where_it_is_asked_for(calibrators, monkeypatch):
    c = calibrators["normal"]
    assert "entropy" in [m.method for m in c.statistics("int8").methods]
    sought = []
    monkeypatch.setattr(methods, "divergence", lambda d, t, lo, hi: sought.append(1) or scores.divergence(d, t, lo, hi))
    c.calibrate("int8", method="adaptive")
    assert not sought
    assert "entropy" not in [m.method for m in c.choices[0].costs]
    c.calibrate("int8", method=Adaptive(["mse", "entropy"]))
    assert sought
    assert {m.method for m in c.choices[0].costs} == {"mse", "entropy"}


def test_an_outlier_does_not_blind_entropy(calibrators):
    c = calibrators["spiky"]
    assert float(c.calibrate("int8", method="entropy").scale) * 127 < 20


def test_numbers_that_were_quantized_before_are_recognised():
    rng = np.random.default_rng(0)
    x = (rng.integers(-127, 128, 50_000) * 0.037).astype(np.float32)
    c = Calibrator()
    c.add(x)
    p = c.calibrate("int8")
    assert true_mse(x, p) < 1e-6 * float(np.mean(x.astype(np.float64) ** 2))


def test_the_sample_decides_where_the_histogram_misleads():
    """Of a grid of 47 numbers, min_max keeps each; by the histogram, which spreads them over bins, mse loses less."""
    rng = np.random.default_rng(30)
    levels, step = int(rng.integers(3, 200)), rng.uniform(0.001, 1)
    x = (rng.integers(-levels, levels + 1, 20000) * step).astype(np.float32)
    c = Calibrator()
    c.add(x)
    c.calibrate("int8")
    choice = c.choices[0]
    assert (choice.method, choice.decided_by) == ("min_max", "values")
    assert min(choice.costs, key=lambda cost: cost.mse).method == "mse"


# ---- every method, dtype and scope ----------------------------------------------------------------------------------


def test_min_max_and_averages_are_exact():
    data = [np.float32([-1, 2]), np.float32([-3, 8]), np.float32([0, 5])]
    c = Calibrator("min_max")
    c.add_many(data)
    assert c.calibrate("uint8").scale == np.float32(11) / np.float32(255)
    averaged = c.calibrate("uint8", method=MovingAverage())
    lo, hi = np.float32(-4 / 3), np.float32(5)
    assert averaged == params_of("uint8", lo, hi)


def test_binary_takes_the_mean_and_logarithmic_a_range():
    x = DISTRIBUTIONS["normal"]
    p = lb.calibrate(x, "binary", "mse")
    assert float(p.scale) == pytest.approx(np.abs(x.astype(np.float64)).mean(), rel=1e-6)
    q = lb.calibrate(x, "int4", "mse", scheme="logarithmic")
    plain = lb.calibrate(x, "int4", "min_max", scheme="logarithmic")
    assert true_mse(x, q) <= true_mse(x, plain)
    assert float(plain.scale) == np.abs(x).max()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("method", ["min_max", "moving_average", "percentile", "entropy", "mse", "adaptive"])
def test_every_method_serves_every_linear_dtype(dtype, method):
    p = lb.calibrate(DISTRIBUTIONS["laplace"][:5000], dtype, method)
    assert p.dtype.name == dtype
    assert float(p.scale) > 0


@pytest.mark.parametrize("axis", [0, -1])
def test_channels_are_calibrated_by_themselves(axis):
    rng = np.random.default_rng(0)
    x = (rng.standard_t(3, (6, 4000)) * np.arange(1, 7)[:, None]).astype(np.float32)
    x = x if axis == 0 else x.T.copy()
    p = lb.calibrate([x[:, :2000], x[:, 2000:]] if axis == 0 else [x[:2000], x[2000:]], "int4", "mse", axis=axis)
    assert p.axis == axis
    assert p.scale.shape == (6,)
    rows = x if axis == 0 else x.T
    for i in range(6):
        one = lb.calibrate(rows[i], "int4", "mse")
        assert true_mse(rows[i], params_of("int4", -7 * p.scale[i], 7 * p.scale[i])) <= 1.02 * true_mse(rows[i], one)
    blocks = lb.calibrate(x, "int4", "mse", axis=-1, group_size=1000 if axis == 0 else 2)
    assert blocks.scale.shape == ((6, 4) if axis == 0 else (4000, 3))


def test_mixed_channels_each_have_their_width():
    x = np.random.default_rng(0).standard_normal((3, 4000)).astype(np.float32)
    dtype = lb.QuantizedDType.mixed([8, 4, 2])
    c = Calibrator("mse", axis=0)
    c.add(x)
    p = c.calibrate(dtype)
    assert p.scale[0] < p.scale[1] < p.scale[2]
    lb.quantize(x, params=p)


def test_custom_methods_see_the_distribution():
    x = DISTRIBUTIONS["normal"]
    p = lb.calibrate(x, "int8", lambda d: (-3 * d.std, 3 * d.std))
    assert float(p.scale) == pytest.approx(3 * x.std() / 127, rel=1e-5)
    assert Custom(lambda d: (0, 1)).name == "custom"
    wrongs = (lambda d: 3, lambda d: (1, 0), lambda d: (0, np.nan), lambda d: (0, np.inf), lambda d: "ab")
    for wrong in wrongs:
        with pytest.raises(InvalidProblem, match="the callable returned"):
            lb.calibrate(x, "int8", wrong)


def test_adaptive_says_which_won_and_by_how_much(calibrators):
    c = calibrators["student_t"]
    c.calibrate("int4", method=Adaptive(["min_max", "mse"]))
    (choice,) = c.choices
    assert [cost.method for cost in choice.costs] == ["mse", "min_max"]
    assert choice.costs[0].mse < choice.costs[1].mse
    assert "mse" in str(choice)
    assert "below min_max" in str(choice)


def test_float64_data_has_float64_scales():
    assert lb.calibrate(np.linspace(-1, 1, 100), "int8", "min_max").scale.dtype == np.float64
    assert lb.calibrate(np.float16([-1, 1]), "int8", "min_max").scale.dtype == np.float32


def test_constant_and_zero_data():
    for method in ("min_max", "percentile", "entropy", "mse", "adaptive"):
        assert float(lb.calibrate(np.zeros(10, np.float32), "int8", method).scale) == 1.0
        p = lb.calibrate(np.full(1000, 3.0, np.float32), "uint8", method)
        assert lb.dequantize(lb.quantize(np.float32([3.0]), params=p))[0] == pytest.approx(3.0, rel=0.01)


def test_options_of_the_target_are_honoured():
    x = DISTRIBUTIONS["normal"]
    assert lb.calibrate(x, "int8", "mse", full_range=True).qmin == -128
    p = lb.calibrate(x, "int8", "mse", qmin=-10, qmax=10)
    assert (p.qmin, p.qmax) == (-10, 10)
    assert float(p.scale) * 10 < x.max()
    assert float(lb.calibrate(np.abs(x), "int8", "mse", scheme="asymmetric").zero_point) == -128
    assert lb.calibrate(x, "int4", "mse", scheme="logarithmic", steps_per_octave=2.0).steps_per_octave == 2.0


# ---- the calibrator -------------------------------------------------------------------------------------------------


def test_a_calibrator_counts_clears_and_merges():
    c = Calibrator("percentile")
    c.add(np.ones((2, 3), np.float32))
    c.add_many([np.zeros(4, np.float32), np.ones(1, np.float32)], progress=True)
    assert (c.num_samples, c.count) == (3, 11)
    assert c.method == Percentile()
    c.method = MSE()
    other = Calibrator()
    other.add(np.full(5, 9.0, np.float32))
    c.merge(other)
    assert (c.num_samples, c.count) == (4, 16)
    c.clear()
    assert (c.num_samples, c.count) == (0, 0)
    with pytest.raises(InvalidProblem, match="no samples"):
        c.calibrate()


def test_interrupted_and_resumed_it_ends_in_the_same_params(tmp_path):
    rng = np.random.default_rng(4)
    data = [rng.standard_t(3, rng.integers(1, 9000)).astype(np.float32) for _ in range(20)]
    whole = Calibrator("entropy", name="x")
    whole.add_many(data)
    for stop in rng.integers(0, 20, 4):
        first = Calibrator("entropy", name="x")
        first.add_many(data[:stop])
        first.save(tmp_path / "c.safetensors")
        rest = Calibrator.load(tmp_path / "c.safetensors")
        rest.add_many(data[stop:])
        for dtype in ("int8", "uint4"):
            assert rest.calibrate(dtype) == whole.calibrate(dtype)
            assert rest.calibrate(dtype, method="adaptive") == whole.calibrate(dtype, method="adaptive")
    (tmp_path / "c.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(FormatError):
        Calibrator.load(tmp_path / "c.safetensors")


def test_shards_merged_in_any_order_give_the_same_params():
    rng = np.random.default_rng(4)
    shards = []
    for i in range(8):
        shards.append(Calibrator())
        shards[-1].add((rng.standard_normal(3000) * (i + 1)).astype(np.float32))
    found = set()
    for _ in range(6):
        total = Calibrator()
        for i in rng.permutation(8):
            total.merge(shards[i])
        found.add(tuple(total.calibrate(t, method=m).to_json() for t in ("int8", "uint4") for m in ("mse", "adaptive")))
    assert len(found) == 1


def test_statistics_say_what_was_seen_and_what_to_take():
    rng = np.random.default_rng(0)
    x = np.append(rng.standard_normal(99_999), 50.0).astype(np.float32)
    x[:1000] = 0
    c = Calibrator(name="act")
    c.add(x)
    s = c.statistics("int8")
    assert (s.name, s.count, s.num_samples, s.max, s.zero_share) == ("act", 100_000, 1, 50.0, 0.01)
    wide = x.astype(np.float64)
    outside = (np.abs(wide - wide.mean()) > 4 * wide.std()).mean()
    assert s.outlier_share == pytest.approx(outside, abs=2e-5)
    assert s.excess_kurtosis > 3
    assert s.methods[0].mse == min(m.mse for m in s.methods)
    assert s.recommended[0][0] == s.methods[0].method
    assert "min_max" in s.recommended[0][1]
    json.dumps(s.to_dict())
    assert "take" in str(s)


def test_percentile_calibrator():
    c = PercentileCalibrator(90.0, name="x")
    c.add(np.linspace(-1, 1, 10_001).astype(np.float32))
    assert float(c.calibrate("int8").scale) * 127 == pytest.approx(0.9, abs=0.01)


# ---- the cache ------------------------------------------------------------------------------------------------------


def test_the_same_question_is_answered_from_the_cache(tmp_path, caplog, monkeypatch):
    path = tmp_path / "cache" / "calibration.json"
    x = DISTRIBUTIONS["normal"][:5000]
    first = lb.calibrate(x, "int8", "mse", cache=path)
    c = Calibrator("mse")
    c.add(x)
    monkeypatch.setattr(MSE, "range", lambda *_: pytest.fail("searched again"))
    with caplog.at_level(logging.INFO, "lowbit"):
        assert c.calibrate("int8", cache=path) == first
    assert c.from_cache
    assert "cache" in caplog.text
    monkeypatch.undo()
    for other in ({"dtype": "int4"}, {"method": "percentile"}, {"method": Percentile(99.0)}, {"full_range": True}):
        c.calibrate(**{"dtype": "int8", "method": "mse", **other}, cache=path)
        assert not c.from_cache
    c.add(x[:10])
    c.calibrate("int8", cache=path)
    assert not c.from_cache, "other data"


def test_a_fingerprint_given_saves_the_pass_over_the_data():
    cache = CalibrationCache()

    def samples():
        yield DISTRIBUTIONS["normal"][:1000]

    first = lb.calibrate(samples(), "int8", "mse", cache=cache, fingerprint="data-v1")

    def never():
        pytest.fail("looked at the data")
        yield

    assert lb.calibrate(never(), "int8", "mse", cache=cache, fingerprint="data-v1") == first
    with pytest.raises(InvalidProblem, match="fingerprint"):
        lb.calibrate(samples(), "int8", "mse", fingerprint="data-v1")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 99, "entries": {}}', '{"version": 1, "entries": 3}'])
def test_a_damaged_cache_is_begun_anew(tmp_path, content):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.warns(UserWarning, match="begun anew"):
        p = lb.calibrate(DISTRIBUTIONS["normal"][:500], "int8", "mse", cache=path)
    assert lb.calibrate(DISTRIBUTIONS["normal"][:500], "int8", "mse", cache=path) == p
    assert json.loads(path.read_text())["version"] == 1


@pytest.mark.parametrize("content", ['{"model_type": "llama"}', "# Notes", "[1, 2]"])
def test_a_file_that_is_no_cache_is_neither_replaced_nor_removed(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    cache = CalibrationCache(path)
    with pytest.warns(UserWarning, match="kept as it is"):
        lb.calibrate(DISTRIBUTIONS["normal"][:500], "int8", "mse", cache=cache)
    cache.clear()
    assert path.read_text() == content


def test_a_damaged_entry_is_left_out(tmp_path):
    path = tmp_path / "c.json"
    p = lb.calibrate(DISTRIBUTIONS["normal"][:500], "int8", "mse", cache=path)
    kept = json.loads(path.read_text())
    kept["entries"] = dict.fromkeys(kept["entries"], '{"scale": -1}')
    path.write_text(json.dumps(kept))
    with pytest.warns(UserWarning, match="edited or damaged"):
        assert lb.calibrate(DISTRIBUTIONS["normal"][:500], "int8", "mse", cache=path) == p


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_errors_come_before_work_and_name_the_tensor():
    def never():
        pytest.fail("looked at the data")
        yield

    with pytest.raises(Unsupported, match="entropy needs evenly spaced codes"):
        lb.calibrate(never(), "binary", "entropy")
    with pytest.raises(Unsupported, match="entropy needs evenly spaced codes"):
        lb.calibrate(never(), "int8", "entropy", scheme="logarithmic")
    with pytest.raises(InvalidProblem, match="asymmetric"):
        lb.calibrate(never(), "binary", "mse", scheme="asymmetric")
    with pytest.raises(InvalidProblem, match="asymmetric"):
        lb.calibrate(never(), lb.QuantizedDType.mixed([8, 4]), "mse", scheme="asymmetric", axis=0)
    with pytest.raises(InvalidProblem, match="method: 'kl'; expected one of min_max"):
        lb.calibrate(never(), "int8", "kl")
    with pytest.raises(InvalidProblem, match="p: 0"):
        Percentile(0)
    with pytest.raises(InvalidProblem, match="channel_wise needs the calibrator to have axis"):
        lb.calibrate(never(), "int8", "mse", scheme="channel_wise")
    with pytest.raises(InvalidProblem, match="samples: no samples"):
        lb.calibrate([], "int8")
    with pytest.raises(InvalidProblem, match=r"acts\[1\]: nan at index \(0, 2\)"):
        lb.calibrate([np.ones(3, np.float32), np.float32([[1, 2, np.nan]])], "int8", name="acts")
    with pytest.raises(InvalidProblem, match="left out"):
        lb.calibrate(np.float32([np.nan]), "int8", on_nonfinite="ignore")
    with pytest.raises(InvalidProblem, match="expected an array or an iterable"):
        lb.calibrate(3.0, "int8")
    c = Calibrator(collect="range")
    c.add(np.ones(3, np.float32))
    with pytest.raises(InvalidProblem, match="collect='all'"):
        c.calibrate("int8", method="mse")
    with pytest.raises(InvalidProblem, match="method: 3"):
        CalibrationMethod.of(3)
    with pytest.raises(InvalidProblem, match="too wide"):
        lb.calibrate(np.array([0.0, 1e300]), "int8", "min_max")
    assert CalibrationMethod.of(MinMax) == CalibrationMethod.of("minmax") == MinMax()
