"""Convolutions of codes on a GPU: torch tensors in, torch tensors out. Images are [n, h, w, c] inside.

weight = conv_weight(codes, scale, zero_point)                  # once; codes [out, c / groups, kh, kw]
y = conv2d(x, weight, x_scale, x_zero, Finish(torch.float16), stride=(2, 2), padding=(1, 1, 1, 1))
"""

from __future__ import annotations

from typing import Any

import torch
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.launch_gemm import Finish, Weight, gpu_of, greatest, on_device, vector
from lowbit.gpu.tiles import Gpu, int8_tile
from lowbit.numerics.errors import InvalidProblem, Unsupported

__all__ = ["conv2d", "conv_weight"]

_GROUP = 8  # tiles of rows that share filters in cache
_FLAT = 32  # channels of a group: below, blocks of k run across taps


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
    finish: Finish,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    gpu: Gpu | None = None,
    path: str | None = None,
) -> torch.Tensor:
    """x of bytes, padded (top, left, bottom, right) with its zero point, by `conv_weight`'s filters; in x's layout.

    path: "matrix" (Tensor Cores), "dp4a" or "depthwise"; chosen by the shape and the GPU where it is None.
    """
    if layout not in ("NCHW", "NHWC"):
        raise InvalidProblem(f"layout: {layout!r}; expected 'NCHW' or 'NHWC'")
    if x.ndim != 4 or x.dtype not in (torch.int8, torch.uint8):
        raise InvalidProblem(f"x: {x.dtype} {tuple(x.shape)}; expected bytes of 4 axes")
    image = (x.permute(0, 2, 3, 1) if layout == "NCHW" else x).contiguous()
    n, h, w, c = image.shape
    out_channels, kh, kw, per_group = weight.codes.shape
    if groups < 1 or c != groups * per_group or out_channels % groups:
        raise InvalidProblem(f"groups: {groups} of {c} channels, filters {tuple(weight.codes.shape)}; they do not fit")
    least = -128 if x.dtype == torch.int8 else 0
    if not least <= x_zero <= least + 255:
        raise InvalidProblem(f"x_zero: {x_zero}; expected a code of {x.dtype}")
    top, left, bottom, right = padding
    oh = (h + top + bottom - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (w + left + right - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    if oh < 1 or ow < 1:
        raise InvalidProblem(f"x: {h} by {w} with padding {padding} is smaller than the kernel, {kh} by {kw}")
    rows, columns = n * oh * ow, out_channels // groups
    # In a kernel a place in one image and the number of a row are i32; images and rows are i64 apart.
    if h * w * c >= 2**31 or rows >= 2**31:
        raise Unsupported(f"x: {h} by {w} by {c}, {rows} results; expected fewer than 2^31 codes an image, and results")
    out = torch.empty((n, oh, ow, out_channels), dtype=finish.dtype, device=x.device)

    gpu = gpu_of(x) if gpu is None else gpu
    if path is None:
        path = "depthwise" if per_group == 1 else "matrix" if gpu.has_int8_dot else "dp4a"
    if path == "matrix" and not gpu.has_int8_dot:
        raise Unsupported(f"path: matrix on sm_{gpu.capability}; expected dp4a, Triton has no int8 products there")
    if path == "dp4a" and per_group % 4:
        image, weight = _whole_words(image, weight, x_zero, groups)
        c, per_group = image.shape[3], weight.codes.shape[3]
    has_zero = x_zero != 0 or x.dtype == torch.uint8
    arguments = weight.arguments()
    depth = kh * kw * per_group
    product = greatest(image, has_zero) * greatest(weight.codes, arguments["HAS_ZB"])
    arguments |= finish.arguments(out_channels, depth, product)
    arguments |= {
        "x": image, "w": arguments.pop("b"), "out": out, "sa": vector("x_scale", x_scale, torch.float32, 1),
        "za": torch.full((1,), x_zero, dtype=torch.int32, device=x.device), "M": rows, "N": columns, "H": h, "W": w,
        "C": c, "OH": oh, "OW": ow, "KW": kw, "taps": kh * kw, "per_group": per_group, "stride_h": stride[0],
        "stride_w": stride[1], "top": top, "left": left, "dilation_h": dilation[0], "dilation_w": dilation[1],
        "A_UNSIGNED": x.dtype == torch.uint8, "HAS_ZA": has_zero, "enable_fp_fusion": False,
    }  # fmt: skip
    if arguments["bias"] is None:
        arguments["bias"] = weight.scale
    if out.numel():
        with on_device(x):
            _launch(path, arguments, groups, gpu)
    return out.permute(0, 3, 1, 2) if layout == "NCHW" else out


def _launch(path: str, arguments: dict[str, Any], groups: int, gpu: Gpu) -> None:
    rows, columns, per_group = (arguments[name] for name in ("M", "N", "per_group"))
    if path == "matrix":
        tile = int8_tile(rows, columns, per_group if per_group >= _FLAT else per_group * arguments["taps"], gpu)
        int8_conv2d[(-(-rows // tile.rows) * -(-columns // tile.columns), groups)](
            **arguments, FLAT=per_group < _FLAT, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            GROUP_M=_GROUP, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    elif path == "dp4a":
        int8_conv2d_dp4a[(-(-rows // 64) * -(-columns // 64), groups)](
            **arguments, BACKEND=gpu.backend, BLOCK_M=64, BLOCK_N=64, GROUP_M=_GROUP, num_warps=4
        )
    elif path == "depthwise":
        if per_group != 1 or arguments["WIDE"]:
            raise Unsupported(f"path: depthwise of {per_group} channels a group, {arguments['taps']} taps")
        unused = ("column_sums", "per_group", "A_UNSIGNED", "B_UNSIGNED", "WIDE")
        given = {name: value for name, value in arguments.items() if name not in unused}
        given |= {"N": columns * groups, "multiplier": columns}
        int8_conv2d_depthwise[(-(-rows // 32), -(-columns * groups // 64))](
            **given, BLOCK_M=32, BLOCK_N=64, num_warps=4
        )
    else:
        raise InvalidProblem(f"path: {path!r}; expected 'matrix', 'dp4a' or 'depthwise'")


def _whole_words(image: torch.Tensor, weight: Weight, zero: int, groups: int) -> tuple[torch.Tensor, Weight]:
    """Channels of each group padded to a multiple of 4: with the zero point in x, so that they add nothing."""
    n, h, w, c = image.shape
    per_group = c // groups
    more = -per_group % 4
    split = image.reshape(n, h, w, groups, per_group)
    padded = torch.nn.functional.pad(split, (0, more), value=zero).reshape(n, h, w, groups * (per_group + more))
    unsigned = weight.codes.dtype == torch.uint8
    filters = torch.nn.functional.pad(weight.codes, (0, more), value=128 if unsigned else 0)  # 0 in the sums
    return padded, Weight(filters, weight.scale, weight.zero_point, weight.sums)
