"""Integer convolutions on a GPU, of torch tensors. Kernels read images as [n, h, w, c].

weight = conv_weight(codes, scale, zero_point)                  # once; codes [out, c / groups, kh, kw]
y = conv2d(x, weight, x_scale, x_zero, GpuEpilogue(torch.float16), ConvGeometry.of(2, 1, 1, 1, "NCHW"))
"""

from __future__ import annotations

from typing import Any

import torch
from lowbit.gpu.arguments import ConvShape, Rules
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.launch import launch
from lowbit.gpu.launch_gemm import GpuEpilogue, Weight, gpu_of, usable_path, vector
from lowbit.gpu.tiles import DEPTHWISE, DP4A, Gpu, int8_tile
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.ops.conv_geometry import ConvGeometry, check_fit

_FLAT = 32  # channels per group; with fewer, a k-block spans taps


def conv_weight(codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None) -> Weight:
    """Filters [out, c / groups, kh, kw] as `conv2d` reads them, [out, kh, kw, c / groups]."""
    if codes.ndim != 4:
        raise InvalidProblem(f"weight: shape {tuple(codes.shape)}; expected [out, c / groups, kh, kw]")
    return Weight.of(codes.permute(0, 2, 3, 1), scale, zero_point)


def conv2d(
    x: torch.Tensor,
    weight: Weight,
    x_scale: torch.Tensor,
    x_zero: int,
    epilogue: GpuEpilogue,
    geometry: ConvGeometry,
    *,
    gpu: Gpu | None = None,
    path: str | None = None,
) -> torch.Tensor:
    """x of bytes, padded with its zero point, by `conv_weight`'s filters; in x's layout.

    path: "matrix" (Tensor Cores), "dp4a" or "depthwise"; chosen by the shape and the GPU where it is None.
    """
    if x.ndim != 4 or x.dtype not in (torch.int8, torch.uint8):
        raise InvalidProblem(f"x: {x.dtype} {tuple(x.shape)}; expected bytes of 4 axes")
    least = torch.iinfo(x.dtype).min
    if not least <= x_zero <= least + 255:
        raise InvalidProblem(f"x_zero: {x_zero}; expected a code of {x.dtype}")
    out_channels, kh, kw, per_group = weight.codes.shape
    groups = geometry.groups
    check_fit(x.shape, (out_channels, per_group, kh, kw), geometry)
    image = (x.permute(0, 2, 3, 1) if geometry.layout == "NCHW" else x).contiguous()
    n, h, w, c = image.shape
    oh, ow = geometry.output((h, w), (kh, kw))
    rows, columns = n * oh * ow, out_channels // groups
    # Kernels index inside an image, and count rows, in 32 bits; offsets of images and rows are 64-bit.
    if h * w * c >= 2**31 or rows >= 2**31:
        raise Unsupported(f"x: {h} by {w} by {c}, {rows} results; expected fewer than 2^31 codes an image, and results")
    out = torch.empty((n, oh, ow, out_channels), dtype=epilogue.dtype, device=x.device)

    gpu = gpu_of(x) if gpu is None else gpu
    path = usable_path("depthwise" if path is None and per_group == 1 else path, gpu)
    if path == "dp4a" and per_group % 4:
        image, weight = _whole_words(image, weight, x_zero, groups)
        c, per_group = image.shape[3], weight.codes.shape[3]
    has_zero = x_zero != 0 or x.dtype == torch.uint8
    scale = vector("x_scale", x_scale, torch.float32, 1)
    zero = torch.full((1,), x_zero, dtype=torch.int32, device=x.device)
    scales, fields, rules = weight.arguments(image, scale, zero, has_zero, epilogue, kh * kw * per_group)
    sizes = (rows, columns, h, w, c, oh, ow, kw, kh * kw, per_group)
    g = ConvShape(*sizes, *geometry.stride, *geometry.padding[:2], *geometry.dilation)
    _launch(path, (image, weight.codes, out, scales), g, fields, rules, groups, gpu)
    return out.permute(0, 3, 1, 2) if geometry.layout == "NCHW" else out


def _launch(
    path: str, tensors: tuple[Any, ...], g: ConvShape, epilogue: Any, rules: Rules, groups: int, gpu: Gpu
) -> None:
    image = tensors[0]
    if path == "matrix":
        flat = g.per_group < _FLAT
        tile = int8_tile(g.M, g.N, g.per_group * g.taps if flat else g.per_group, gpu)
        launch(int8_conv2d, (tile.tiles(g.M, g.N), groups), image, tile, *tensors, g, epilogue, rules, flat, tile)
    elif path == "dp4a":
        grid = (DP4A.tiles(g.M, g.N), groups)
        launch(int8_conv2d_dp4a, grid, image, DP4A, *tensors, g, epilogue, rules, gpu.backend, DP4A)
    elif path == "depthwise":
        if g.per_group != 1 or rules.WIDE:
            raise Unsupported(f"path: depthwise of {g.per_group} channels per group, {g.taps} taps")
        whole, tile = g._replace(N=g.N * groups), DEPTHWISE
        grid = (-(-g.M // tile.rows), -(-whole.N // tile.columns))
        launch(int8_conv2d_depthwise, grid, image, tile, *tensors, whole, epilogue, g.N, rules, tile)
    else:
        raise InvalidProblem(f"path: {path!r}; expected 'matrix', 'dp4a' or 'depthwise'")


def _whole_words(image: torch.Tensor, weight: Weight, zero: int, groups: int) -> tuple[torch.Tensor, Weight]:
    """Pad the channels of each group to a multiple of 4; x takes its zero point, so that sums do not change."""
    n, h, w, c = image.shape
    per_group = c // groups
    more = -per_group % 4
    split = image.reshape(n, h, w, groups, per_group)
    padded = torch.nn.functional.pad(split, (0, more), value=zero).reshape(n, h, w, groups * (per_group + more))
    unsigned = weight.codes.dtype == torch.uint8
    filters = torch.nn.functional.pad(weight.codes, (0, more), value=128 if unsigned else 0)  # 0 once centred
    return padded, Weight(filters, weight.scale, weight.zero_point, weight.sums)
