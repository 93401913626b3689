"""Quantized layers as torch modules, and the operations of a backend as one object."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest

import lowbit as lb

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def numpy_of(x: Any) -> Any:
    return x.float().numpy()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("options", [{}, {"dtype": "int4", "group_size": 32}, {"activation_dtype": "float"}], ids=str)
def test_a_linear_module_gives_what_the_layer_gives(dtype: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(70, 19)
    module = lt.QuantizedLinear.from_float(linear, **options)
    layer = lb.QuantizedLinear(linear.weight.detach().numpy(), linear.bias.detach().numpy(), **options)
    x = torch.randn(2, 5, 70).to(dtype)
    y = module(x)
    assert (y.dtype, y.shape) == (dtype, (2, 5, 19))
    assert np.array_equal(numpy_of(y), layer(x).astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_convolution_module_gives_what_the_layer_gives(dtype: Any) -> None:
    torch.manual_seed(1)
    conv = torch.nn.Conv2d(6, 8, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    module = lt.QuantizedConv2d.from_float(conv)
    x = torch.randn(2, 6, 9, 10).to(dtype)
    y = module(x)
    assert (y.dtype, y.shape) == (dtype, conv(x.float()).shape)
    assert np.array_equal(numpy_of(y), module.layer(x).astype(np.float32))
    assert (y.float() - conv(x.float())).abs().max() < 0.1


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_compiled_modules_give_the_same_bits(dtype: Any) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        lt.QuantizedConv2d.from_float(torch.nn.Conv2d(3, 4, 3, padding=1)), torch.nn.ReLU(), torch.nn.Flatten(),
        lt.QuantizedLinear.from_float(torch.nn.Linear(4 * 8 * 8, 10), dtype="int4", group_size=32),
    )  # fmt: skip
    x = torch.randn(2, 3, 8, 8).to(dtype)
    expected = model(x)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, expected)


def test_modules_are_copied_saved_and_loaded() -> None:
    torch.manual_seed(3)
    x = torch.randn(3, 24)
    module = lt.QuantizedLinear.from_float(torch.nn.Linear(24, 7))
    expected = module(x)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    other = lt.QuantizedLinear.from_float(torch.nn.Linear(24, 7))
    assert not torch.equal(other(x), expected)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), expected)
    assert "int8" in repr(module)


def test_modules_refuse_what_they_cannot_return() -> None:
    weight = np.ones((3, 4), np.float32)
    with pytest.raises(lb.InvalidProblem, match=r"^out_params"):
        lt.QuantizedLinear(weight, out_params=lb.QuantizationParams("int8"))
    with pytest.raises(lb.InvalidProblem, match=r"^layout"):
        lt.QuantizedConv2d(np.ones((3, 4, 1, 1), np.float32), layout="NHWC")
    with pytest.raises(lb.InvalidProblem, match=r"^padding_mode"):
        lt.QuantizedConv2d.from_float(torch.nn.Conv2d(3, 4, 3, padding_mode="reflect"))


def test_both_backends_of_operations_agree() -> None:
    rng = np.random.default_rng(4)
    fast, slow = lb.CpuQuantizationOps(), lb.ReferenceQuantizationOps()
    assert all(isinstance(o, lb.QuantizationOps) for o in (fast, slow))
    params = lb.QuantizationParams("uint8", "asymmetric", np.float32(0.03), 120)
    out = lb.QuantizationParams("int8", "asymmetric", np.float32(0.5), -3)
    x, y = (rng.standard_normal((6, 8)).astype(np.float32) for _ in range(2))
    a, b = fast.quantize(x, params), slow.quantize(y.T.copy(), params)
    assert a == slow.quantize(x, params)
    assert np.array_equal(fast.dequantize(a), slow.dequantize(a))
    for options in ({}, {"bias": np.arange(6, dtype=np.float32)}, {"out_params": out}):
        found, expected = fast.qmatmul(a, b, **options), slow.qmatmul(a, b, **options)
        assert np.array_equal(np.asarray(found), np.asarray(expected))
    image = fast.quantize(rng.standard_normal((2, 4, 5, 6)).astype(np.float32), params)
    kernel = lb.quantize(rng.standard_normal((6, 2, 3, 3)).astype(np.float32), axis=0)
    for options in ({}, {"out_params": out}):
        pair = [o.qconv2d(image, kernel, stride=2, padding=1, groups=2, **options) for o in (fast, slow)]
        assert np.array_equal(np.asarray(pair[0]), np.asarray(pair[1]))
    c = fast.quantize(y, params)
    assert fast.qadd(a, c, out_params=out) == slow.qadd(a, c, out_params=out)
    assert fast.qrelu(a) == slow.qrelu(a)
