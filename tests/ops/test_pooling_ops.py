"""Pooling of codes: the reference's bits, on every ISA and any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, Unsupported, _core, reference
from lowbit.reference import compute as reference_compute

Array = np.ndarray[Any, Any]
F32 = np.float32
LAYOUTS = ("NCHW", "NHWC")


def params(dtype: str, scale: float, zero: int = 0, **options: Any) -> QuantizationParams:
    return QuantizationParams(dtype, "linear", F32(scale), zero, **options)


def random_codes(rng: np.random.Generator, dtype: str, shape: Any) -> Array:
    kind = lb.QuantizedDType.of(dtype)
    return rng.integers(kind.qmin, kind.qmax + 1, shape).astype(kind.code_dtype)


def nchw(x: Array, layout: str) -> Array:
    return x if layout == "NCHW" else np.moveaxis(x, 3, 1)


def back(x: Array, layout: str) -> Array:
    return x if layout == "NCHW" else np.moveaxis(x, 1, 3)


def expected_max(x: QuantizedTensor, kernel: Any, stride: Any, padding: Any, layout: str) -> Array:
    found = reference_compute.max_pool(nchw(x.unpack(), layout), kernel, stride, padding)
    return back(found.astype(x.dtype.code_dtype), layout)


def expected_average(
    x: QuantizedTensor, kernel: Any, stride: Any, padding: Any, layout: str, p: QuantizationParams, all_places: bool
) -> Array:
    px = x.params
    found = reference_compute.average_pool(
        nchw(x.unpack(), layout), kernel, stride, padding, px.scale, int(px.zero_point), F32(p.scale),
        int(p.zero_point), p.qmin, p.qmax, all_places,
    )  # fmt: skip
    return back(found.astype(p.dtype.code_dtype), layout)


@pytest.mark.parametrize("isa_name", ISAS)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_window(isa_name: str, data: st.DataObject) -> None:
    _core.set_max_isa(isa_name)
    lb.set_num_threads(data.draw(st.sampled_from(THREADS)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 20)))
    stride = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 12)))
    top, bottom = (data.draw(st.integers(0, kernel[0] - 1)) for _ in range(2))
    left, right = (data.draw(st.integers(0, kernel[1] - 1)) for _ in range(2))
    height = max(1, kernel[0] - top - bottom) + data.draw(st.integers(0, 12))
    width = max(1, kernel[1] - left - right) + data.draw(st.integers(0, 40))
    images, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 8, 17, 33, 64]))
    layout = data.draw(st.sampled_from(LAYOUTS))
    shape = (images, channels, height, width) if layout == "NCHW" else (images, height, width, channels)
    dtype, out = data.draw(st.sampled_from(["int8", "uint8"])), data.draw(st.sampled_from(["int8", "uint8"]))
    kind, wanted = lb.QuantizedDType.of(dtype), lb.QuantizedDType.of(out)
    x = QuantizedTensor(
        random_codes(rng, dtype, shape), params(dtype, 0.03, int(rng.integers(kind.qmin, kind.qmax + 1)))
    )
    padding = (top, left, bottom, right)
    got = lb.qmax_pool2d(x, kernel, stride=stride, padding=padding, layout=layout)
    want = expected_max(x, kernel, stride, padding, layout)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.data, want)
    assert got.params is x.params

    lo, hi = sorted(rng.integers(wanted.qmin, wanted.qmax + 1, 2).tolist())
    scale = data.draw(st.sampled_from([0.03, 0.015, 0.01, 0.1, 0.0371]))  # the first two make ties
    p = params(out, scale, int(rng.integers(lo, hi + 1)), qmin=lo, qmax=hi)
    everywhere = data.draw(st.booleans())
    average = lb.qavg_pool2d(
        x, kernel, stride=stride, padding=padding, layout=layout, count_include_pad=everywhere, out_params=p
    )
    want = expected_average(x, kernel, stride, padding, layout, p, everywhere)
    assert average.shape == want.shape
    np.testing.assert_array_equal(average.data, want)
    assert average.params == p


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((112, 113), (3, 3), (2, 2), (1, 1, 1, 1)),  # as after a first convolution
        ((56, 56), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((7, 7), (7, 7), (1, 1), (0, 0, 0, 0)),  # all of an image
        ((130, 9), (100, 3), (5, 3), (50, 1, 20, 2)),  # more rows than are reduced at once
        ((5, 300), (2, 130), (1, 40), (0, 5, 1, 100)),  # more columns
        ((9, 2000), (1, 3), (1, 1), (0, 1, 0, 1)),
    ],
    ids=str,
)
def test_images_across_tasks(
    isa: str, size: Any, kernel: Any, stride: Any, padding: Any, layout: str, threads: int
) -> None:
    lb.set_num_threads(threads)
    rng = np.random.default_rng(1)
    for channels in (3, 40):
        shape = (2, channels, *size) if layout == "NCHW" else (2, *size, channels)
        for dtype in ("int8", "uint8"):
            x = QuantizedTensor(random_codes(rng, dtype, shape), params(dtype, 0.02, 11))
            options: dict[str, Any] = {"stride": stride, "padding": padding, "layout": layout}
            got = lb.qmax_pool2d(x, kernel, **options)
            np.testing.assert_array_equal(got.data, expected_max(x, kernel, stride, padding, layout))
            average = lb.qavg_pool2d(x, kernel, **options)
            want = expected_average(x, kernel, stride, padding, layout, x.params, False)
            np.testing.assert_array_equal(average.data, want)


@pytest.mark.parametrize("dtype", ["int8", "int4", "binary"])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8)])
def test_no_images_and_no_channels(shape: tuple[int, ...], dtype: str) -> None:
    x = lb.quantize(np.zeros(shape, F32), params=QuantizationParams(dtype, scale=F32(0.1)))
    for pool in (lb.qmax_pool2d, lb.qavg_pool2d):
        assert pool(x, 2).shape == (*shape[:2], 4, 4)
        moved = lb.quantize(np.zeros((shape[0], 8, 8, shape[1]), F32), params=x.params)
        assert pool(moved, 2, layout="NHWC").shape == (shape[0], 4, 4, shape[1])


def test_short_forms_of_arguments() -> None:
    x = QuantizedTensor(random_codes(np.random.default_rng(2), "int8", (1, 2, 9, 8)), params("int8", 0.1, 3))
    full = lb.qmax_pool2d(x, (3, 3), stride=(3, 3), padding=(1, 1, 1, 1))
    assert lb.qmax_pool2d(x, 3, padding=1) == full
    assert lb.qmax_pool2d(x, [3, 3], stride=3, padding=(1, 1)) == full
    full = lb.qavg_pool2d(x, (2, 3), stride=(1, 2), padding=(0, 2, 0, 2))
    assert lb.qavg_pool2d(x, (2, 3), stride=(1, 2), padding=(0, 2)) == full


def test_outputs_are_written_and_returned() -> None:
    x = QuantizedTensor(random_codes(np.random.default_rng(3), "uint8", (1, 2, 8, 8)), params("uint8", 0.1, 3))
    for pool in (lb.qmax_pool2d, lb.qavg_pool2d):
        want = pool(x, 2)
        out = np.zeros(want.shape, np.uint8)
        assert pool(x, 2, out=out).data is out
        assert np.array_equal(out, want.data)
        tensor = want.copy()
        assert pool(x, 2, out=tensor) is tensor
        over = x.copy()
        assert pool(over, 1, out=over) is over
        assert over == pool(x, 1)
        moved = x.copy()
        window = QuantizedTensor(moved.data.reshape(-1)[:32].reshape(1, 2, 4, 4), x.params)
        pool(moved, 2, out=window)  # lies within its input
        assert np.array_equal(window.data, want.data)
        view = QuantizedTensor(x.data[:, :, ::-1, ::2], x.params)
        assert pool(view, 2) == pool(QuantizedTensor(np.ascontiguousarray(view.data), x.params), 2)


GENERAL = {
    "int16": QuantizationParams("int16", scale=F32(0.001), zero_point=5),
    "uint16": QuantizationParams("uint16", scale=F32(0.001), zero_point=30000),
    "int4": QuantizationParams("int4", scale=F32(0.2), zero_point=1),
    "uint2": QuantizationParams("uint2", scale=F32(1.1), zero_point=1),
    "logarithmic": QuantizationParams.logarithmic("int4", F32(2.0)),
    "binary": QuantizationParams.binary(F32(0.7)),
    "channels": QuantizationParams(
        "int8", scale=np.linspace(0.01, 0.03, 5, dtype=F32), zero_point=np.arange(5), axis=1
    ),
    "images": QuantizationParams("int4", scale=F32([0.2, 0.3]), axis=0),
    "mixed": QuantizationParams(lb.QuantizedDType.mixed([1, 2, 4, 8, 16]), scale=F32(0.1), axis=1),
}
SPATIAL = {
    "rows": QuantizationParams("int8", scale=np.linspace(0.01, 0.03, 7, dtype=F32), axis=2),
    "blocks": QuantizationParams("int8", scale=np.full((2, 5, 7, 2), 0.02, F32), axis=3, group_size=4),
}


def general_tensor(p: QuantizationParams) -> QuantizedTensor:
    return lb.quantize(np.random.default_rng(4).uniform(-2, 2, (2, 5, 7, 8)).astype(F32), params=p)


@pytest.mark.parametrize("kind", GENERAL)
def test_max_of_every_kind(kind: str) -> None:
    x = general_tensor(GENERAL[kind])
    got = lb.qmax_pool2d(x, 3, stride=2, padding=1)
    want = reference_compute.max_pool(x.unpack(), (3, 3), (2, 2), (1, 1, 1, 1))
    np.testing.assert_array_equal(got.unpack(), want)
    # The greatest code stands for the greatest number.
    padded = np.pad(x.dequantize(), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(got.dequantize(), view.max((-2, -1)))


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("kind", ["int16", "uint16", "int4", "uint2"])
def test_average_of_linear_kinds_is_the_integer_one(kind: str, everywhere: bool) -> None:
    x = general_tensor(GENERAL[kind])
    for p in (GENERAL[kind], params("int8", 0.03, 5), GENERAL["int4"]):
        got = lb.qavg_pool2d(x, 3, stride=2, padding=1, count_include_pad=everywhere, out_params=p)
        want = expected_average(x, (3, 3), (2, 2), (1, 1, 1, 1), "NCHW", p, everywhere)
        np.testing.assert_array_equal(got.unpack(), want)


def test_average_of_channels_is_that_of_each() -> None:
    x = general_tensor(GENERAL["channels"])
    out = QuantizationParams("int8", scale=np.linspace(0.02, 0.05, 5, dtype=F32), zero_point=np.arange(5), axis=1)
    for p in (None, params("uint8", 0.03, 100), out):
        got = lb.qavg_pool2d(x, (2, 3), padding=(1, 0, 0, 2), out_params=p).unpack()
        for c in range(5):
            of = x.params.replace(scale=x.params.scale[c], zero_point=x.params.zero_point[c], axis=None)
            to = of if p is None else p
            if p is out:
                to = p.replace(scale=p.scale[c], zero_point=p.zero_point[c], axis=None)
            one = lb.qavg_pool2d(
                QuantizedTensor(x.data[:, c : c + 1].copy(), of), (2, 3), padding=(1, 0, 0, 2), out_params=to
            )
            np.testing.assert_array_equal(got[:, c : c + 1], one.unpack())


@pytest.mark.parametrize("kind", ["logarithmic", "binary", "mixed", *SPATIAL])
def test_other_averages_are_computed_with_floats(kind: str) -> None:
    x = general_tensor({**GENERAL, **SPATIAL}[kind])
    p = params("int8", 0.01, 3)
    got = lb.qavg_pool2d(x, 2, stride=1, out_params=p)
    view = np.lib.stride_tricks.sliding_window_view(x.dequantize().astype(np.float64), (2, 2), (2, 3))
    np.testing.assert_array_equal(got.unpack(), reference.quantize((view.sum((-2, -1)) / 4).astype(F32), p))


def test_average_of_float64_tensors() -> None:
    values = np.random.default_rng(5).standard_normal((1, 1, 4, 4))
    x = lb.quantize(values)
    got = lb.qavg_pool2d(x, 2)
    assert got.params == x.params
    mean = x.dequantize().reshape(1, 1, 2, 2, 2, 2).sum((3, 5)) / 4
    np.testing.assert_array_equal(got.unpack(), reference.quantize(mean, x.params))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kernel": 0}, "kernel: 0"),
        ({"kernel": (2, 3, 4)}, "kernel: "),
        ({"kernel": 2.5}, "kernel: 2.5"),
        ({"kernel": 9}, "larger than the images"),
        ({"kernel": 2, "stride": 0}, "stride: 0"),
        ({"kernel": 2, "padding": -1}, "padding: -1"),
        ({"kernel": 2, "padding": 2}, "padding: 2; expected less than the kernel"),
        ({"kernel": 2, "padding": (0, 0, 0)}, "padding: "),
        ({"kernel": 2, "layout": "CHW"}, "layout: 'CHW'"),
    ],
    ids=str,
)
def test_windows_that_cannot_be_are_refused(options: dict[str, Any], match: str) -> None:
    x = QuantizedTensor(np.zeros((1, 2, 7, 6), np.int8), params("int8", 0.1))
    for pool in (lb.qmax_pool2d, lb.qavg_pool2d):
        with pytest.raises(InvalidProblem, match=match):
            pool(x, **options)  # type: ignore[operator]


def test_what_cannot_be_is_refused() -> None:
    p = params("int8", 0.1)
    x = QuantizedTensor(np.zeros((1, 2, 7, 6), np.int8), p)
    for pool in (lb.qmax_pool2d, lb.qavg_pool2d):
        with pytest.raises(InvalidProblem, match="x: ndarray"):
            pool(x.data, 2)  # type: ignore[operator]
        with pytest.raises(InvalidProblem, match="four dimensions"):
            pool(x[0], 2)  # type: ignore[operator]
        with pytest.raises(InvalidProblem, match="no places"):
            pool(QuantizedTensor(np.zeros((1, 2, 0, 6), np.int8), p), 2, padding=1)  # type: ignore[operator]
        with pytest.raises(InvalidProblem, match="out: "):
            pool(x, 2, out=np.zeros((1, 2, 3, 4), np.int8))  # type: ignore[operator]
    for spatial in SPATIAL.values():
        with pytest.raises(Unsupported, match="axis 2 or 3"):
            lb.qmax_pool2d(general_tensor(spatial), 2)
        with pytest.raises(InvalidProblem, match="out_params: none, and x's do not fit"):
            lb.qavg_pool2d(general_tensor(spatial), 2)
    with pytest.raises(InvalidProblem, match="out_params: str"):
        lb.qavg_pool2d(x, 2, out_params="int8")  # type: ignore[arg-type]
    huge = QuantizedTensor(np.broadcast_to(np.zeros((1, 1, 1, 1), np.int8), (1, 1, 4096, 4096)), p)
    with pytest.raises(Unsupported, match="kernel: "):
        lb.qavg_pool2d(huge, 4096)


@pytest.mark.parametrize("side", range(4), ids=["top", "left", "bottom", "right"])
@pytest.mark.parametrize("pool", [lb.qmax_pool2d, lb.qavg_pool2d], ids=["max", "average"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_padding_is_less_than_the_kernel_on_each_side(pool: Any, side: int, dtype: str) -> None:
    """A window that lies in the padding altogether has no greatest element, and no mean."""
    kernel = (3, 4)
    x = lb.quantize(np.random.default_rng(5).standard_normal((1, 2, 6, 7)).astype(F32), dtype)
    padding = [0, 0, 0, 0]
    padding[side] = kernel[side % 2] - 1
    most = pool(x, kernel, stride=1, padding=tuple(padding))
    assert most.shape == (1, 2, 4 + padding[0] + padding[2], 4 + padding[1] + padding[3])
    for more in (0, 1, 5):
        padding[side] = kernel[side % 2] + more
        with pytest.raises(InvalidProblem, match=r"^padding: .*; expected less than the kernel, \(3, 4\)"):
            pool(x, kernel, stride=1, padding=tuple(padding))


def test_windows_of_as_many_places_as_a_sum_holds() -> None:
    """2^23 codes of 255 are the most that int32 holds."""
    p = QuantizationParams("uint8", scale=F32(1))
    x = QuantizedTensor(np.broadcast_to(np.uint8(255), (1, 1, 4096, 2049)), p)
    assert lb.qavg_pool2d(x, (4096, 2048)).data.tolist() == [[[[255]]]]
    with pytest.raises(Unsupported, match=r"^kernel: \(4096, 2049\); windows have up to 8388608 places"):
        lb.qavg_pool2d(x, (4096, 2049))
