"""QuantizedConv2d with bounds of its result."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import lowbit as lb


@pytest.mark.parametrize("clamp", [(0.0, 6.0), (0.0, np.inf), (-1.0, 0.5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"groups": 4},
        {"dtype": "int4", "activation_dtype": "uint8"},
        {"dtype": "uint8", "scheme": "asymmetric"},
        {"dtype": "int16"},
    ],
    ids=str,
)
def test_clamp_bounds_the_result(options: dict[str, Any], dtype: Any, clamp: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 4 // options.get("groups", 1), 3, 3)).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    x = (2 * rng.standard_normal((2, 4, 7, 9))).astype(dtype)
    plain = lb.QuantizedConv2d(weight, bias, **options)
    layer = lb.QuantizedConv2d(weight, bias, clamp=clamp, **options)
    expected = np.clip(plain(x), *np.asarray(clamp, dtype))
    assert np.array_equal(layer(x), expected)
    last = layer(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "NHWC")
    assert np.array_equal(last.transpose(0, 3, 1, 2), expected)
    for twin in (copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.clamp == clamp
        assert np.array_equal(twin(x), expected)
    assert f"clamp={clamp}" in repr(layer)
    assert "clamp" not in repr(plain)


def test_bad_bounds_are_named() -> None:
    with pytest.raises(lb.InvalidProblem, match=r"^clamp"):
        lb.QuantizedConv2d(np.ones((1, 1, 2, 2), np.float32), clamp=(2.0, 1.0))
