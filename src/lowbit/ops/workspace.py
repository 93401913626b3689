"""Bytes that products work in, beside their arguments and their result: bounds from sizes alone.

For contiguous arguments, any bias, and the number of threads as it is now. Native blocks are counted as they are
allocated; what NumPy needs on the way is counted in bytes per element of the largest arrays alive at once.
"""

from __future__ import annotations

import math

import numpy as np

from lowbit.numerics.errors import Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.ops.conv import conv_path_of
from lowbit.ops.conv_geometry import ConvGeometry, is_depthwise
from lowbit.ops.epilogue import PART, takes_sums
from lowbit.ops.operands import BYTES, SUMS
from lowbit.runtime.native import core

_EPILOGUE = 48  # bytes per element: sums, floats, steps and codes of a part whose epilogue NumPy applies
_LOOKED_AT = 1 << 20  # elements checked at once for NaN and Inf
_OBJECTS = 1 << 14  # views, scalars and params


def matmul_workspace(
    path: str, m: int, n: int, k: int, a: QuantizationParams, b: QuantizationParams, prepacked: bool = False
) -> int:
    """Of `qmatmul` of [m, k] by [k, n]; prepacked: b comes as a PackedMatrix."""
    left, right = m * k * a.dtype.is_packed, k * n * b.dtype.is_packed  # unpacked codes
    rest = left + right + _parameters(m, n, a, b) + (4 * k * n if prepacked and path != "integer" else 0)
    if path == "integer":
        rest += 0 if prepacked else core.PackedMatrix.bytes_for(k, n) + right
        return rest + _integer(m, n, k)
    rest += _epilogue(m, n)
    if path == "groups":
        assert b.group_size is not None
        native, kept = core.GroupGemmPlan.workspace_for(m, n, k, b.dtype.bits, b.group_size)
        return rest + native + kept + 8 * k * n  # transposed, packed, moved up, and packed as kernels read it
    if path == "binary":
        return rest + core.BinaryGemmPlan.workspace_for(m, n, k) + 2 * m * k + 3 * k * n + 4 * m * n
    if path == "general":
        numbers = m * k * (2 if a.dtype.is_mixed else 1) + k * n * (2 if b.dtype.is_mixed else 1)
        return rest + 9 * numbers + 12 * m * n  # mixed ones are put in order
    depth = min(k, b.group_size or k)
    native = _packed_and_multiplied(m, n, depth)
    if path == "blocks":
        return rest + native + m * depth + depth * n + 24 * m * n
    return rest + native + 20 * (m * k + k * n) + 48 * m * n  # integer16


def linear_workspace(path: str, m: int, n: int, k: int, weight: QuantizationParams) -> int:
    """Of a `QuantizedLinear` with these weights [n, k] on m rows."""
    rest = _parameters(m, n, weight)
    rows = _rows_at_once(m, max(n, k))
    parts = 5 * rows * k + 4 * rows * n + 8 * min(m * k, _LOOKED_AT) + _epilogue(rows, n)  # activations first
    if path == "integer":
        at_once = core.LinearPlan.workspace_for(m, k) + _integer(m, n, k, False)
        return rest + max(at_once, parts + _integer(rows, n, k))
    if path == "groups":
        assert weight.group_size is not None
        native = core.GroupGemmPlan.workspace_for(m, n, k, weight.dtype.bits, weight.group_size)[0]
        return rest + native + max(core.LinearPlan.workspace_for(m, k), parts)
    if path == "float":
        native = core.WeightOnly.workspace_for(m, k)
        if weight.group_size is not None and weight.dtype.bits in (2, 4):
            grouped = core.GroupGemmPlan.float_workspace_for(m, n, k, weight.dtype.bits, weight.group_size)
            native = max(native, grouped)
        return rest + native + _epilogue(_rows_at_once(m, n), n)
    if path == "blocks":
        depth = min(k, weight.group_size or k)
        return rest + parts + _packed_and_multiplied(rows, n, depth) + 3 * k * n + rows * depth + 24 * rows * n
    return rest + parts + 18 * k * n + 12 * rows * k + 12 * rows * n


def conv_workspace(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    x: QuantizationParams,
    w: QuantizationParams,
    g: ConvGeometry,
    item: int,
    prepacked: bool = False,
) -> int:
    """Of `qconv2d` with results of `item` bytes per element; prepacked: w comes as a PackedConv."""
    path = conv_path_of(x, w, w_shape, g.groups)
    if path == "binary":
        raise Unsupported("workspace_size: it is not known for convolutions of binary codes")
    n, out_h, out_w, out = g.output_nhwc(x_shape, w_shape)
    image, pixels, depth = math.prod(x_shape), out_h * out_w, math.prod(w_shape[1:])
    turned = n * pixels * out * item if g.layout == "NCHW" else 0
    if path == "general":  # float64: x, w in two orders, an image with its padding, and a part of the result
        _, _, _, c = g.nhwc(x_shape)
        numbers = image * (2 if x.dtype.is_mixed else 1) + math.prod(w_shape) * (3 if w.dtype.is_mixed else 2)
        part = _rows_at_once(out_h, out_w * max(out, c)) * out_w * max(out, c)
        return _parameters(0, out, x, w) + turned + 8 * (numbers + _padded(x_shape, g)) + (40 + _EPILOGUE) * part
    if path == "integer16":  # bytes of codes, and int64 sums of one image
        bytes_of = QuantizationParams("int8"), QuantizationParams("int8", scale=w.scale, axis=w.axis)
        parts = conv_workspace(x_shape, w_shape, *bytes_of, g, item)
        return 2 * parts + 8 * image + 8 * math.prod(w_shape) + 32 * pixels * out
    rest = image * x.dtype.is_packed + _parameters(0, out, w) + g.groups * 1024
    rest += image + turned if g.layout == "NCHW" else 0
    rest += 8 * pixels * out + _epilogue(pixels, out)  # of one image, where NumPy applies the epilogue
    if is_depthwise(w_shape, g.groups):
        rest += 0 if prepacked else 5 * math.prod(w_shape)
        return rest + _depthwise(x_shape, w_shape, x, g)
    if not prepacked:
        filled = 2 * depth + 8  # kernel rows, at most
        rest += 5 * math.prod(w_shape) + g.groups * core.PackedMatrix.bytes_for(filled, out // g.groups)
    return rest + core.GemmPlan.workspace_for(pixels * n, out // g.groups, depth)


def codes_workspace(elements: int, out: QuantizationParams | None) -> int:
    """Of codes of out_params where kernels do not write them: the float32 result that is quantized, or codes that are
    to be packed."""
    if out is None:
        return 0
    if not takes_sums(out):
        return (8 if out.dtype.is_mixed else 4) * elements + 24 * out.scale.size + _OBJECTS  # mixed: put in order
    return elements if out.dtype.is_packed else 0


def reference_workspace(m: int, n: int, k: int) -> int:
    """Of a product in NumPy alone: everything in eight bytes, several times over."""
    return 40 * (m * k + k * n) + (40 + _EPILOGUE) * m * n + 64 * (m + n) + _OBJECTS


def reference_conv_workspace(x_shape: tuple[int, ...], w_shape: tuple[int, ...], g: ConvGeometry) -> int:
    """The same of a convolution."""
    outputs = math.prod(g.output_shape(x_shape, w_shape))
    return (
        40 * (x_shape[0] * _padded(x_shape, g) + math.prod(w_shape))
        + (40 + _EPILOGUE) * outputs
        + 64 * w_shape[0]
        + _OBJECTS
    )


# ---- terms ----


def _rows_at_once(m: int, length: int) -> int:
    return min(m, max(1, PART // max(1, length)))


def _padded(x_shape: tuple[int, ...], g: ConvGeometry) -> int:
    """Elements of an image with its padding."""
    _, height, width, c = g.nhwc(x_shape)
    top, left, bottom, right = g.padding
    return c * (height + top + bottom) * (width + left + right)


def _epilogue(m: int, n: int) -> int:
    return _EPILOGUE * _rows_at_once(m, n) * n


def _parameters(m: int, n: int, *given: QuantizationParams) -> int:
    """Scales, zero points and biases in other types and orders."""
    return _OBJECTS + 64 * (m + n) + 24 * sum(p.scale.size for p in given)


def _integer(m: int, n: int, k: int, numpy_epilogue: bool = True) -> int:
    native = core.GemmPlan.workspace_for(m, n, k)
    if not numpy_epilogue:
        return native
    return max(native, core.GemmPlan.workspace_for(m, n, k, True) + 8 * _rows_at_once(m, n) * n + _epilogue(m, n))


def _packed_and_multiplied(m: int, n: int, k: int) -> int:
    return core.GemmPlan.workspace_for(m, n, k) + core.PackedMatrix.bytes_for(k, n)


def _depthwise(x_shape: tuple[int, ...], w_shape: tuple[int, ...], x: QuantizationParams, g: ConvGeometry) -> int:
    out, _, kh, kw = w_shape
    window = core.Window(g.nhwc(x_shape), (kh, kw), g.stride, g.padding, g.dilation, g.groups)
    # Sizes do not depend on the weights' values; these are as good as any.
    code, filters = BYTES[x.dtype.code_dtype], np.zeros((out, kh, kw), np.int8)
    weights = core.DepthwiseWeights(window, code, filters, core.Code.s8, None)
    native = core.DepthwiseConvPlan(weights, window, 0, SUMS).workspace_bytes
    # Weights are prepared when a stride and dilation are first met, and kept.
    return native + 2 * weights.nbytes + 16 * (out + 16)
