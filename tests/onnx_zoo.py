"""Small ONNX models with random weights, one for each trap of quantizing real ones, and inputs for them.

MODELS[name]().model     the model
MODELS[name]().feeds(n)  n batches, each a mapping from input names to arrays
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnx_builder import Builder

Draw = Callable[[np.random.Generator], np.ndarray[Any, Any]]


@dataclass
class Entry:
    """A model, how its inputs are drawn, and which trap it stands for."""

    trap: str
    model: ModelProto
    inputs: dict[str, Draw] = field(default_factory=dict)

    def feeds(self, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            yield {name: draw(rng) for name, draw in self.inputs.items()}


def images(*shape: int) -> Draw:
    """Smooth pictures: sums of a few waves, as convolutions of noise alone have no structure."""

    def draw(rng: np.random.Generator) -> np.ndarray[Any, Any]:
        rough = rng.standard_normal((*shape[:-2], max(shape[-2] // 8, 1), max(shape[-1] // 8, 1)))
        wide = np.repeat(np.repeat(rough, 8, axis=-2), 8, axis=-1)[..., : shape[-2], : shape[-1]]
        return (wide + 0.3 * rng.standard_normal(shape)).astype(np.float32)

    return draw


def normal(*shape: int) -> Draw:
    return lambda rng: rng.standard_normal(shape).astype(np.float32)


def tokens(most: int, *shape: int) -> Draw:
    return lambda rng: rng.integers(0, most, shape)


# ---- convolutional ------------------------------------------------------------------------------------


def resnet() -> Entry:
    """Residual blocks with batch norms."""
    b = Builder({"x": ["n", 3, 64, 64]})
    relu = lambda t: b.add("Relu", t)  # noqa: E731
    x, width = relu(b.batch_norm(b.conv("x", 3, 32, 5, bias=False, strides=[2, 2]), 32)), 32
    for to in (32, 64, 128):
        stride = 1 if to == width else 2
        y = relu(b.batch_norm(b.conv(x, width, to, bias=False, strides=[stride] * 2), to))
        y = b.batch_norm(b.conv(y, to, to, bias=False), to)
        if to != width:
            x = b.batch_norm(_pointwise(b, x, width, to, strides=[stride] * 2), to)
        x, width = relu(b.add("Add", y, x)), to
    return Entry("residual sums", b.model(_head(b, x, width, 100)), {"x": images(1, 3, 64, 64)})


def mobilenet() -> Entry:
    """Inverted residuals of few channels, hard-swish, squeeze-and-excitation."""
    b = Builder({"x": ["n", 3, 96, 96]})
    x, width = _hard_swish(b, b.conv("x", 3, 16, strides=[2, 2])), 16
    for to, stride, excite in ((16, 2, True), (24, 2, False), (24, 1, False), (40, 2, True), (40, 1, True)):
        inner = 4 * width
        y = _hard_swish(b, _pointwise(b, x, width, inner))
        y = _hard_swish(b, b.conv(y, inner, inner, group=inner, strides=[stride] * 2))
        if excite:
            s = b.add("Relu", _pointwise(b, b.add("GlobalAveragePool", y), inner, inner // 4))
            y = b.add("Mul", y, b.add("HardSigmoid", _pointwise(b, s, inner // 4, inner), alpha=1 / 6, beta=0.5))
        y = _pointwise(b, y, inner, to)
        x, width = b.add("Add", x, y) if to == width and stride == 1 else y, to
    x = _hard_swish(b, _pointwise(b, x, width, 240))
    return Entry("few channels, depthwise", b.model(_head(b, x, 240, 100)), {"x": images(1, 3, 96, 96)})


def silu_detector() -> Entry:
    """Sigmoid times x after each convolution, concatenations, upsampling, two outputs."""
    b = Builder({"images": [1, 3, 128, 128]})
    silu = lambda t: b.add("Mul", t, b.add("Sigmoid", t))  # noqa: E731
    x = silu(b.conv("images", 3, 16, strides=[2, 2]))
    x = silu(b.conv(x, 16, 32, strides=[2, 2]))
    small = silu(b.conv(_split_block(b, x, 32, silu), 32, 64, strides=[2, 2]))
    small = _split_block(b, small, 64, silu)
    pooled = [small]
    for _ in range(2):
        pooled.append(b.add("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    small = silu(_pointwise(b, b.add("Concat", *pooled, axis=1), 192, 64))
    sizes = b.constant(np.array([1, 1, 2, 2], np.float32))
    upper = b.add("Resize", small, "", sizes, mode="nearest")
    x = silu(b.conv(b.add("Concat", upper, x, axis=1), 96, 32))
    shape = b.constant(np.array([1, 24, -1], np.int64))
    boxes = [b.add("Reshape", _pointwise(b, t, c, 24), shape) for t, c in ((x, 32), (small, 64))]
    found = b.add("Concat", *boxes, axis=2)
    scores = b.add("Sigmoid", found)
    return Entry("SiLU", b.model(found, scores), {"images": images(1, 3, 128, 128)})


def affine_after_conv() -> Entry:
    """A factor and a summand per channel after each convolution, as exporters of frozen batch norms write them."""
    b = Builder({"x": ["n", 3, 48, 48]})
    x, width = "x", 3
    for to in (32, 64, 64, 96):
        x = b.conv(x, width, to, bias=False, strides=[2, 2] if to == 96 else [1, 1])
        x = b.add("Mul", x, b.constant(b.rng.uniform(0.5, 1.5, (1, to, 1, 1)).astype(np.float32)))
        x = b.add("Relu", b.add("Add", x, b.normal(1, to, 1, 1, scale=0.1)))
        width = to
    return Entry("affine after Conv", b.model(_head(b, x, width, 10)), {"x": images(1, 3, 48, 48)})


def pitch() -> Entry:
    """Long one-dimensional filters."""
    b = Builder({"audio": ["n", 1, 1024]})
    x, width = "audio", 1
    for to, taps, stride in ((64, 256, 4), (32, 64, 1), (64, 64, 1)):
        name, scale = f"filters{to}_{taps}", (width * taps) ** -0.5
        x = b.add("Conv", x, b.normal(to, width, taps, scale=scale, name=name), b.normal(to, scale=0.1),
                  strides=[stride], pads=[taps // 2, taps // 2 - 1])  # fmt: skip
        x = b.add("MaxPool", b.batch_norm(b.add("Relu", x), to), kernel_shape=[2], strides=[2])
        width = to
    x = b.add("Flatten", x)
    y = b.add("Sigmoid", b.add("Gemm", x, b.normal(360, 2048, scale=0.02, name="head"), b.normal(360), transB=1))
    return Entry("one-dimensional convolutions", b.model(y), {"audio": normal(1, 1, 1024)})


def wake_word() -> Entry:
    """Ten thousand weights: scales and extra nodes weigh as much as codes."""
    b = Builder({"features": [1, 1, 76, 32]})
    x, width = "features", 1
    for to in (16, 24, 24):
        x = b.add("LeakyRelu", b.conv(x, width, to, strides=[2, 1]), alpha=0.1)
        x, width = b.add("MaxPool", x, kernel_shape=[1, 2], strides=[1, 2]), to
    return Entry("tiny", b.model(_head(b, x, width, 2)), {"features": normal(1, 1, 76, 32)})


def segmentation() -> Entry:
    """Transposed convolutions upward, sums with what came down."""
    b = Builder({"x": [1, 3, 64, 64]})
    relu = lambda t: b.add("Relu", t)  # noqa: E731
    a = relu(b.conv("x", 3, 32))
    c = relu(b.conv(a, 32, 64, strides=[2, 2]))
    d = relu(b.conv(c, 64, 96, strides=[2, 2]))
    up = lambda t, i, o: b.add(  # noqa: E731
        "ConvTranspose",
        t,
        b.normal(i, o, 2, 2, scale=(4 * i) ** -0.5, name=f"up{i}"),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    y = relu(b.add("Add", up(d, 96, 64), c))
    y = relu(b.add("Add", up(y, 64, 32), a))
    return Entry("ConvTranspose", b.model(b.add("Sigmoid", _pointwise(b, y, 32, 1))), {"x": images(1, 3, 64, 64)})


# ---- attention ----------------------------------------------------------------------------------------


def vit() -> Entry:
    """Patches, attention, GELU by Erf."""
    b = Builder({"pixels": ["n", 3, 64, 64]})
    x = b.add("Conv", "pixels", b.normal(96, 3, 8, 8, scale=0.07, name="patches"), b.normal(96, scale=0.1),
              strides=[8, 8])  # fmt: skip
    x = b.add("Transpose", b.add("Reshape", x, b.constant(np.array([0, 96, 64], np.int64))), perm=[0, 2, 1])
    x = b.add("Add", x, b.normal(1, 64, 96, scale=0.1))
    for layer in range(3):
        x = _encoder_layer(b, x, 96, 4, 64, f"layers.{layer}", _gelu_erf)
    x = b.add("ReduceMean", _layer_norm(b, x, 96), axes=[1], keepdims=0)
    y = b.add("Gemm", x, b.normal(100, 96, scale=0.1, name="head"), b.normal(100), transB=1)
    return Entry("attention over patches", b.model(y), {"pixels": images(1, 3, 64, 64)})


def convnext() -> Entry:
    """Depthwise filters, then linear layers over channels last, all of fixed sizes, GELU by Erf."""
    width, size = 64, 28
    b = Builder({"x": [1, 3, 2 * size, 2 * size]})
    x = b.conv("x", 3, width, strides=[2, 2])
    for layer in range(3):
        y = b.add("Transpose", b.conv(x, width, width, 7, group=width), perm=[0, 2, 3, 1])
        y = _gelu_erf(b, _linear(b, _layer_norm(b, y, width), width, 4 * width, f"up{layer}"))
        y = _linear(b, y, 4 * width, width, f"down{layer}")
        y = b.add("Mul", y, b.constant(b.rng.uniform(0.5, 1.5, width).astype(np.float32)))
        x = b.add("Add", x, b.add("Transpose", y, perm=[0, 3, 1, 2]))
    images_of = images(1, 3, 2 * size, 2 * size)
    return Entry("products of stacks of fixed sizes", b.model(_head(b, x, width, 100)), {"x": images_of})


def gpt() -> Entry:
    """A causal decoder whose embedding is also its head, GELU by Tanh."""
    rows, width, length = 2000, 128, 32
    b = Builder({"ids": ["n", length]})
    table = b.normal(rows, width, scale=0.05, name="wte")
    x = b.add("Add", b.add("Gather", table, "ids"), b.normal(1, length, width, scale=0.02))
    mask = b.constant(np.triu(np.full((1, 1, length, length), -1e4, np.float32), 1))
    for layer in range(3):
        x = _encoder_layer(b, x, width, 4, length, f"h.{layer}", _gelu_tanh, mask)
    y = b.add("MatMul", _layer_norm(b, x, width), b.add("Transpose", table, perm=[1, 0]))
    return Entry("tied head", _with_integers(b.model(y), "ids"), {"ids": tokens(rows, 1, length)})


def encoder() -> Entry:
    """A sentence encoder: three embeddings, layers, mean over the sequence."""
    rows, width, length = 3000, 128, 48
    b = Builder({"ids": ["batch", "sequence"], "types": ["batch", "sequence"]})
    x = b.add("Add", b.add("Gather", b.normal(rows, width, scale=0.05, name="word_embeddings"), "ids"),
              b.add("Gather", b.normal(2, width, scale=0.05, name="type_embeddings"), "types"))  # fmt: skip
    x = _layer_norm(b, x, width)
    for layer in range(3):
        x = _encoder_layer(b, x, width, 4, 0, f"encoder.{layer}", _gelu_erf)
    y = b.add("ReduceMean", x, axes=[1], keepdims=0)
    model = _with_integers(b.model(y), "ids", "types")
    return Entry("embeddings", model, {"ids": tokens(rows, 1, length), "types": tokens(2, 1, length)})


# ---- recurrent ----------------------------------------------------------------------------------------


def lstm() -> Entry:
    """Two bidirectional layers, as recognisers of text have them."""
    b = Builder({"x": ["time", 1, 96]})
    x, width = "x", 96
    for layer in range(2):
        x = _recurrent(b, "LSTM", x, width, 96, 2, f"lstm{layer}")
        width = 192
    y = b.add("MatMul", x, b.normal(192, 500, scale=0.07, name="characters"))
    return Entry("LSTM", b.model(b.add("Softmax", y, axis=-1)), {"x": normal(40, 1, 96)})


def lstm_state() -> Entry:
    """One step at a time: `state` of two rows beside `input` of one."""
    b = Builder({"input": [1, 1, 128], "state": [2, 1, 128]})
    hidden, cell = _rows(b, "state", 2)
    w, r = b.normal(1, 512, 128, scale=0.09, name="W"), b.normal(1, 512, 128, scale=0.09, name="R")
    b.nodes.append(helper.make_node("LSTM", ["input", w, r, b.normal(1, 1024, scale=0.1), "", hidden, cell],
                                    ["steps", "h", "c"], name="lstm", hidden_size=128))  # fmt: skip
    flat = b.add("Reshape", "h", b.constant(np.array([1, 128], np.int64)))
    y = b.add("Sigmoid", b.add("Gemm", flat, b.normal(1, 128, scale=0.1, name="out"), b.normal(1), transB=1))
    return Entry("state beside the input", b.model(y, b.add("Concat", "h", "c", axis=0)),
                 {"input": normal(1, 1, 128), "state": normal(2, 1, 128)})  # fmt: skip


def gru_behind_slices() -> Entry:
    """A GRU whose weights are put together in the graph, from slices of constants, as exporters write it."""
    b = Builder({"x": ["time", 1, 64]})
    parts = {}
    for name, columns in (("weight_ih", 64), ("weight_hh", 128)):
        stored = b.normal(384, columns, scale=0.09, name=name)
        cut = [
            b.add("Slice", stored, *(b.constant(np.array([v], np.int64)) for v in (128 * i, 128 * i + 128, 0)))
            for i in (1, 0, 2)
        ]
        joined = b.add("Concat", *cut, axis=0)
        parts[name] = b.add("Unsqueeze", joined, b.constant(np.array([0], np.int64)))
    x = b.add("GRU", "x", parts["weight_ih"], parts["weight_hh"], b.normal(1, 768, scale=0.1), hidden_size=128,
              linear_before_reset=1)  # fmt: skip
    x = b.add("Squeeze", x, b.constant(np.array([1], np.int64)))
    y = b.add("MatMul", x, b.normal(128, 60, scale=0.09, name="head"))
    return Entry("constants behind Slice and Concat", b.model(y), {"x": normal(50, 1, 64)})


def rnn() -> Entry:
    b = Builder({"x": ["time", 1, 64]})
    y = b.add("MatMul", _recurrent(b, "RNN", "x", 64, 128, 1, "rnn"), b.normal(128, 200, scale=0.09, name="head"))
    return Entry("RNN", b.model(y), {"x": normal(50, 1, 64)})


# ---- shapes of graphs ---------------------------------------------------------------------------------


def shared_weights() -> Entry:
    """One head for three levels of a pyramid, twice, and a float reader of one of its weights."""
    b = Builder({"x": [1, 3, 64, 64]})
    levels, x, width = [], "x", 3
    for _ in range(3):
        x = b.add("Relu", b.conv(x, width, 48, strides=[2, 2]))
        levels.append(x)
        width = 48
    head = b.normal(48, 48, 3, 3, scale=0.05, name="head.weight")
    bias = b.normal(48, scale=0.1)
    top = b.normal(48, 96, scale=0.1, name="top")
    made = []
    for level in levels:
        y = level
        for _ in range(3):
            y = b.add("Relu", b.add("Conv", y, head, bias, pads=[1] * 4))
        made.append(b.add("MatMul", b.add("Flatten", b.add("GlobalAveragePool", y)), top))
    y = b.add("Concat", *made, b.add("ReduceMean", top, axes=[0], keepdims=1), axis=0)
    return Entry("weights with many readers", b.model(y), {"x": images(1, 3, 64, 64)})


def loop() -> Entry:
    """A decoder step in a Loop: weights are read from outside, and passed in as carried values."""
    b = Builder({"x": [1, 96]})
    inner, outer = b.normal(96, 96, scale=0.1, name="inner"), b.normal(96, 96, scale=0.1, name="outer")
    nodes = [
        helper.make_node("MatMul", ["h_in", "w_in"], ["p"], name="carried"),
        helper.make_node("MatMul", ["h_in", outer], ["q"], name="captured"),
        helper.make_node("Add", ["p", "q"], ["s"], name="sum"),
        helper.make_node("Tanh", ["s"], ["h_out"], name="tanh"),
        helper.make_node("Identity", ["cond_in"], ["cond_out"], name="go_on"),
        helper.make_node("Identity", ["w_in"], ["w_out"], name="carry"),
    ]
    f, flag = TensorProto.FLOAT, TensorProto.BOOL
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes, "step",
        [
            info("i", TensorProto.INT64, []), info("cond_in", flag, []), info("h_in", f, [1, 96]),
            info("w_in", f, [96, 96]),
        ],
        [info("cond_out", flag, []), info("h_out", f, [1, 96]), info("w_out", f, [96, 96])],
    )  # fmt: skip
    times, go = b.constant(np.array(8, np.int64)), b.constant(np.array(True))
    b.nodes.append(helper.make_node("Loop", [times, go, "x", inner], ["h", "w_last"], name="loop", body=body))
    h = b.add("Reshape", "h", b.constant(np.array([1, 96], np.int64)))
    y = b.add("MatMul", h, b.normal(96, 300, scale=0.1, name="out"))
    return Entry("weights in a Loop", b.model(y), {"x": normal(1, 96)})


def branches() -> Entry:
    """Convolutions inside the branches of an If, as a model for two sampling rates has them."""
    b = Builder({"x": [1, 1, 512]})
    flag = b.add("Greater", b.add("ReduceMax", "x", keepdims=0), b.constant(np.float32(-100.0)))
    b.nodes.append(helper.make_node("If", [flag], ["h"], name="if", then_branch=_branch(1), else_branch=_branch(2)))
    y = b.add("MatMul", b.add("ReduceMean", "h", axes=[2], keepdims=0), b.normal(64, 40, scale=0.1, name="head"))
    return Entry("convolutions in an If", b.model(y), {"x": normal(1, 1, 512)})


def multilayer() -> Entry:
    """Large products of few rows: memory is all that counts."""
    b = Builder({"x": ["n", 512]})
    x, width = "x", 512
    for i, to in enumerate((1024, 1024, 512)):
        x = b.add(
            "Relu", b.add("Gemm", x, b.normal(to, width, scale=width**-0.5, name=f"fc{i}"), b.normal(to), transB=1)
        )
        width = to
    return Entry("matrix products of one row", b.model(x), {"x": normal(1, 512)})


MODELS: dict[str, Callable[[], Entry]] = {
    f.__name__: f
    for f in (
        resnet, mobilenet, silu_detector, affine_after_conv, pitch, wake_word, segmentation, vit, convnext, gpt,
        encoder, lstm,
        lstm_state, gru_behind_slices, rnn, shared_weights, loop, branches, multilayer,
    )
}  # fmt: skip


# ---- parts --------------------------------------------------------------------------------------------


def _pointwise(b: Builder, x: str, i: int, o: int, **options: Any) -> str:
    return b.conv(x, i, o, 1, **options)


def _head(b: Builder, x: str, width: int, classes: int) -> str:
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    weight = b.normal(classes, width, scale=width**-0.5, name="classifier")
    return b.add("Gemm", x, weight, b.normal(classes, scale=0.1), transB=1)


def _hard_swish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _rows(b: Builder, x: str, count: int) -> list[str]:
    """The slices of the first axis, of size 1 each."""
    return [b.add("Slice", x, *(b.constant(np.array([v], np.int64)) for v in (at, at + 1, 0))) for at in range(count)]


def _split_block(b: Builder, x: str, width: int, act: Callable[[str], str]) -> str:
    """Half of the channels through two convolutions, then all of them through one."""
    half = width // 2
    y = act(_pointwise(b, x, width, half))
    z = act(b.conv(act(b.conv(y, half, half)), half, half))
    return act(_pointwise(b, b.add("Concat", y, b.add("Add", y, z), axis=1), width, width))


def _layer_norm(b: Builder, x: str, width: int) -> str:
    d = b.add("Sub", x, b.add("ReduceMean", x, axes=[-1]))
    var = b.add("ReduceMean", b.add("Pow", d, b.constant(np.float32(2))), axes=[-1])
    y = b.add("Div", d, b.add("Sqrt", b.add("Add", var, b.constant(np.float32(1e-5)))))
    gamma = b.constant(b.rng.uniform(0.5, 1.5, width).astype(np.float32))
    return b.add("Add", b.add("Mul", y, gamma), b.normal(width, scale=0.1))


def _gelu_erf(b: Builder, x: str) -> str:
    e = b.add("Erf", b.add("Div", x, b.constant(np.float32(2**0.5))))
    y = b.add("Mul", x, b.add("Add", e, b.constant(np.float32(1))))
    return b.add("Mul", y, b.constant(np.float32(0.5)))


def _gelu_tanh(b: Builder, x: str) -> str:
    cube = b.add("Mul", b.add("Pow", x, b.constant(np.float32(3))), b.constant(np.float32(0.044715)))
    t = b.add("Tanh", b.add("Mul", b.add("Add", x, cube), b.constant(np.float32((2 / np.pi) ** 0.5))))
    half = b.add("Mul", x, b.constant(np.float32(0.5)))
    return b.add("Mul", half, b.add("Add", t, b.constant(np.float32(1))))


def _linear(b: Builder, x: str, i: int, o: int, name: str) -> str:
    return b.add("Add", b.add("MatMul", x, b.normal(i, o, scale=i**-0.5, name=name)), b.normal(o, scale=0.1))


def _encoder_layer(
    b: Builder, x: str, width: int, heads: int, length: int, name: str, gelu: Callable[[Builder, str], str],
    mask: str = "",
) -> str:  # fmt: skip
    """length 0: as long as the input is."""
    size = width // heads
    y = _layer_norm(b, x, width)
    shape = b.constant(np.array([0, length or -1, heads, size], np.int64))
    q, k, v = (
        b.add("Transpose", b.add("Reshape", _linear(b, y, width, width, f"{name}.{part}"), shape), perm=perm)
        for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
    )
    scores = b.add("Div", b.add("MatMul", q, k), b.constant(np.float32(size**0.5)))
    scores = b.add("Add", scores, mask) if mask else scores
    y = b.add("Transpose", b.add("MatMul", b.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = b.add("Reshape", y, b.constant(np.array([0, length or -1, width], np.int64)))
    x = b.add("Add", x, _linear(b, y, width, width, f"{name}.output"))
    y = gelu(b, _linear(b, _layer_norm(b, x, width), width, 4 * width, f"{name}.up"))
    return b.add("Add", x, _linear(b, y, 4 * width, width, f"{name}.down"))


def _recurrent(b: Builder, op: str, x: str, width: int, hidden: int, directions: int, name: str) -> str:
    """[time, batch, directions * hidden]"""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    w = b.normal(directions, gates * hidden, width, scale=width**-0.5, name=f"{name}.W")
    r = b.normal(directions, gates * hidden, hidden, scale=hidden**-0.5, name=f"{name}.R")
    bias = b.normal(directions, 2 * gates * hidden, scale=0.1, name=f"{name}.B")
    way = "bidirectional" if directions == 2 else "forward"
    y = b.add(op, x, w, r, bias, hidden_size=hidden, direction=way)
    y = b.add("Transpose", y, perm=[0, 2, 1, 3])
    return b.add("Reshape", y, b.constant(np.array([0, 0, directions * hidden], np.int64)))


def _branch(seed: int) -> GraphProto:
    rng = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    constants, x, width = [], "x", 1
    for i, to in enumerate((32, 64, 64)):
        w, c = (f"{seed}_{part}{i}" for part in ("w", "b"))
        constants.append(numpy_helper.from_array((rng.standard_normal((to, width, 5)) * 0.2).astype(np.float32), w))
        constants.append(numpy_helper.from_array((rng.standard_normal(to) * 0.1).astype(np.float32), c))
        nodes.append(helper.make_node("Conv", [x, w, c], [f"{seed}_c{i}"], name=f"{seed}_conv{i}", pads=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"{seed}_c{i}"], [f"{seed}_r{i}"], name=f"{seed}_relu{i}"))
        x, width = f"{seed}_r{i}", to
    made = helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 64, 512])
    return helper.make_graph(nodes, f"branch{seed}", [], [made], constants)


def _with_integers(model: ModelProto, *names: str) -> ModelProto:
    for given in model.graph.input:
        if given.name in names:
            given.type.tensor_type.elem_type = TensorProto.INT64
    return model
