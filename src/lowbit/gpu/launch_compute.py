"""Integer matrix products and convolutions on a GPU, of torch tensors. Weights stay [n, k], filters become
[out, kh, kw, c / groups], and kernels read images as [n, h, w, c].

    weight = Weight.of(codes, scale, zero_point)                    # once
    y = gemm(a, weight, a_scale, a_zero, GpuEpilogue(torch.float16))     # many times

    weight = conv_weight(codes, scale, zero_point)
    y = conv2d(x, weight, x_scale, x_zero, GpuEpilogue(torch.float16), ConvGeometry.of(2, 1, 1, 1, "NCHW"))

Integer results are exact, float ones equal the CPU's to the bit: y = f32(acc) * (sa * sb) + bias, each step rounded.
Checked here: k <= 131,071, since int32 sums of Tensor Cores saturate (`.satfinite`) where products of bytes pass 2^31.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from lowbit.gpu.arguments import ConvShape, Epilogue, GemmShape, Int4Rules, Int4Shape, Rules, Scales
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.gemm import int8_gemm, int8_gemm_dp4a, int8_gemv_dp4a
from lowbit.gpu.launch import launch
from lowbit.gpu.tiles import DEPTHWISE, DP4A, DP4A_SMALL, Gpu, int4_tile, int8_tile
from lowbit.gpu.weight_only import int4_gemm
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.ops.conv_geometry import ConvGeometry, check_shapes
from torch import Tensor

_FLAT = 32  # channels per group of a convolution; with fewer, a k-block spans taps
MAX_DEPTH = 131071  # 128 * 128 * k < 2^31
_BYTES = (torch.int8, torch.uint8)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_KINDS = {"sums": (torch.int32, torch.int64), "floats": _FLOATS, "codes": _BYTES}


@dataclass(frozen=True)
class GpuEpilogue:
    """The epilogue of exact sums.

    int32, int64: the sums. Floats: clamp(f32(sum) * (sa * sb) + bias, floor, ceiling). int8, uint8: codes,
    clamp(rne(f32(sum) * ((sa * sb) / scale)) + zero_point, lo, hi). bias [n]: int32 belongs to the sums; floats are
    added to float results and become steps, rne(bias / (sa * sb)), before codes. relu: floor = 0, or lo = zero_point.
    """

    dtype: torch.dtype
    bias: Tensor | None = None
    floor: float = -math.inf
    ceiling: float = math.inf
    scale: float = 1.0
    zero_point: int = 0
    lo: int | None = None
    hi: int | None = None

    @property
    def kind(self) -> str:
        for kind, dtypes in _KINDS.items():
            if self.dtype in dtypes:
                return kind
        raise UnsupportedDType(f"out: {self.dtype}; expected int32, int64, float32, float16, bfloat16, int8 or uint8")

    def arguments(self, n: int, depth: int, product: int, no_bias: Tensor) -> tuple[Epilogue, bool, str]:
        """The kernels' arguments for n columns, whether sums are 64 bits wide, and the kind of bias. product: the
        greatest |(a - za) * (b - zb)|; no_bias: the pointer passed where there is no bias."""
        kind, bias = self.kind, self.bias
        if depth > MAX_DEPTH:
            raise Unsupported(f"k: {depth}; expected at most {MAX_DEPTH}, so that no int32 sum saturates")
        wide = product * depth >= 2**31
        if wide and self.dtype == torch.int32:
            raise Unsupported(f"out: int32 sums of {depth} products may pass 2^31; expected int64")
        least = -128 if self.dtype == torch.int8 else 0
        lo, hi = (least if self.lo is None else self.lo), (least + 255 if self.hi is None else self.hi)
        if kind == "codes" and not (least <= lo <= hi <= least + 255 and least <= self.zero_point <= least + 255):
            raise InvalidProblem(
                f"out: codes [{lo}, {hi}], zero point {self.zero_point}; expected {self.dtype}'s range"
            )
        bias_kind = "none"
        if bias is not None:
            require_bias(bias, n)
            if kind == "sums":
                raise InvalidProblem("bias: with sums; expected none")
            if bias.dtype != torch.int32 and bias.dtype not in _FLOATS:
                raise UnsupportedDType(f"bias: {bias.dtype}; expected int32 or floats")
            integers = bias.dtype == torch.int32
            bias_kind = "integers" if integers else "steps" if kind == "codes" else "floats"
            bias = bias.contiguous() if integers else bias.float().contiguous()
        pointer = no_bias if bias is None else bias
        return Epilogue(pointer, self.scale, self.zero_point, lo, hi, self.floor, self.ceiling), wide, bias_kind


@dataclass(frozen=True)
class Weight:
    """Codes [n, k] (filters: [out, kh, kw, c]), one scale and zero point or one per row, and the sum of each row."""

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    sums: Tensor  # of centred codes: 128 less each where unsigned

    @classmethod
    def of(cls, codes: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Weight:
        if codes.dtype not in _BYTES or codes.ndim < 2:
            raise UnsupportedDType(f"weight: {codes.dtype} of shape {tuple(codes.shape)}; expected bytes [n, k]")
        n = codes.shape[0]
        codes = codes.contiguous()
        rows = codes.reshape(n, math.prod(codes.shape[1:]))
        if zero_point is None and codes.dtype == torch.uint8:
            zero_point = torch.zeros(1, dtype=torch.int32, device=codes.device)
        sums = rows.sum(1, dtype=torch.int64) - (128 * rows.shape[1] if codes.dtype == torch.uint8 else 0)
        zero = None if zero_point is None else vector("weight: zero_point", zero_point, torch.int32, n)
        return cls(codes, vector("weight: scale", scale, torch.float32, n), zero, sums.to(torch.int32))

    def arguments(
        self, codes: Tensor, scale: Tensor, zero: Tensor, has_zero: bool, epilogue: GpuEpilogue, depth: int
    ) -> tuple[Scales, Epilogue, Rules]:
        """The kernels' arguments for a product of `depth` with codes under these scales and zero points."""
        zb = self.zero_point
        product = _greatest(codes, has_zero) * _greatest(self.codes, zb is not None)
        fields, wide, bias_kind = epilogue.arguments(self.codes.shape[0], depth, product, self.scale)
        steps = (step(scale), step(zero), step(self.scale), 0 if zb is None else step(zb))
        unsigned = (codes.dtype == torch.uint8, self.codes.dtype == torch.uint8)
        rules = Rules(*steps, *unsigned, has_zero, zb is not None, wide, epilogue.kind, bias_kind)
        return Scales(scale, zero, self.scale, self.sums if zb is None else zb, self.sums), fields, rules


def require_bias(bias: Tensor | None, n: int) -> None:
    if bias is not None and bias.shape != (n,):
        raise InvalidProblem(f"bias: shape {tuple(bias.shape)}; expected ({n},), one per output")


def vector(name: str, values: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    flat = values.reshape(-1).to(dtype).contiguous()
    if flat.numel() not in (1, count):
        raise InvalidProblem(f"{name}: {flat.numel()} values; expected 1 or {count}")
    return flat


def step(values: Tensor) -> int:
    return int(values.numel() > 1)


def gpu_of(x: Tensor) -> Gpu:
    """The GPU a tensor is on; one on the CPU can only be the interpreter's."""
    if x.device.type != "cuda":
        return Gpu("reference", 0)
    if torch.version.hip is not None:
        return Gpu("hip", 0)
    major, minor = torch.cuda.get_device_capability(x.device)
    return Gpu("cuda", 10 * major + minor)


def usable_path(path: str | None, gpu: Gpu) -> str:
    """The path, or one that the GPU has; Unsupported where it does not have the given one."""
    if path is None:
        return "matrix" if gpu.has_int8_dot else "dp4a"
    if path == "matrix" and not gpu.has_int8_dot:
        raise Unsupported(f"path: matrix on sm_{gpu.capability}; expected dp4a, Triton has no int8 products there")
    return path


def _greatest(codes: Tensor, has_zero: bool) -> int:
    """The greatest |code - zero point|."""
    return 255 if has_zero or codes.dtype == torch.uint8 else 128


def gemm(
    a: Tensor,
    weight: Weight,
    a_scale: Tensor,
    a_zero: Tensor | None,
    epilogue: GpuEpilogue,
    *,
    gpu: Gpu | None = None,
    path: str | None = None,
) -> Tensor:
    """a [m, k] of bytes times weight [n, k] transposed, after the epilogue, as [m, n].

    a_scale, a_zero: one value, or one per row. path: "matrix" (Tensor Cores), "dp4a" or "gemv" (one row per program);
    None chooses by the shape and the GPU.
    """
    if a.dtype not in _BYTES or a.ndim != 2 or weight.codes.ndim != 2 or a.shape[1] != weight.codes.shape[1]:
        raise InvalidProblem(f"a: {a.dtype} {tuple(a.shape)}; expected bytes [m, {weight.codes.shape[-1]}]")
    m, k = a.shape
    n = weight.codes.shape[0]
    gpu = gpu_of(a) if gpu is None else gpu
    path = usable_path("gemv" if path is None and m == 1 else path, gpu)
    a = a if a.stride(1) == 1 else a.contiguous()
    out = torch.empty((m, n), dtype=epilogue.dtype, device=a.device)
    has_za = a_zero is not None or a.dtype == torch.uint8
    zero = torch.zeros(1, dtype=torch.int32, device=a.device) if a_zero is None else a_zero
    scale, zero = vector("a_scale", a_scale, torch.float32, m), vector("a_zero", zero, torch.int32, m)
    scales, fields, rules = weight.arguments(a, scale, zero, has_za, epilogue, k)
    given = (a, weight.codes, out, scales, GemmShape(m, n, k, a.stride(0), k, n), fields, rules)
    whole = k % 4 == 0 and a.stride(0) % 4 == 0 and a.data_ptr() % 4 == 0 and weight.codes.data_ptr() % 4 == 0
    if path == "gemv":
        launch(int8_gemv_dp4a, (-(-n // 16), m), a, 4, *given, whole, gpu.backend)
    elif path == "dp4a":
        tile = DP4A_SMALL if m <= 16 else DP4A
        launch(int8_gemm_dp4a, (tile.tiles(m, n),), a, tile, *given, whole, gpu.backend, tile)
    elif path == "matrix":
        tile = int8_tile(m, n, k, gpu)
        launch(int8_gemm, (tile.tiles(m, n),), a, tile, *given, k % tile.depth == 0, tile)
    else:
        raise InvalidProblem(f"path: {path!r}; expected 'matrix', 'dp4a' or 'gemv'")
    return out


def conv_weight(codes: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Weight:
    """Filters [out, c / groups, kh, kw] as `conv2d` reads them, [out, kh, kw, c / groups]."""
    if codes.ndim != 4:
        raise InvalidProblem(f"weight: shape {tuple(codes.shape)}; expected [out, c / groups, kh, kw]")
    return Weight.of(codes.permute(0, 2, 3, 1), scale, zero_point)


def conv2d(
    x: Tensor,
    weight: Weight,
    x_scale: Tensor,
    x_zero: int,
    epilogue: GpuEpilogue,
    geometry: ConvGeometry,
    *,
    gpu: Gpu | None = None,
    path: str | None = None,
) -> Tensor:
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
    check_shapes(x.shape, (out_channels, per_group, kh, kw), geometry)
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
    _convolve(path, (image, weight.codes, out, scales), g, fields, rules, groups, gpu)
    return out.permute(0, 3, 1, 2) if geometry.layout == "NCHW" else out


def _convolve(
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


def _whole_words(image: Tensor, weight: Weight, zero: int, groups: int) -> tuple[Tensor, Weight]:
    """Pad the channels of each group to a multiple of 4; x takes its zero point, so that sums do not change."""
    n, h, w, c = image.shape
    per_group = c // groups
    more = -per_group % 4
    split = image.reshape(n, h, w, groups, per_group)
    padded = torch.nn.functional.pad(split, (0, more), value=zero).reshape(n, h, w, groups * (per_group + more))
    unsigned = weight.codes.dtype == torch.uint8
    filters = torch.nn.functional.pad(weight.codes, (0, more), value=128 if unsigned else 0)  # 0 once centred
    return padded, Weight(filters, weight.scale, weight.zero_point, weight.sums)


@dataclass(frozen=True)
class Int4Weight:
    """Packed codes [n, ceil(k / 2)], the first of a byte in its low nibble, each row starting on a byte; scales and
    zero points [n, groups] for groups of `group` along k, the last one perhaps short."""

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    k: int
    group: int
    signed: bool

    def __post_init__(self) -> None:
        n = self.codes.shape[0]
        if self.codes.dtype != torch.uint8 or self.codes.shape != (n, -(-self.k // 2)):
            raise InvalidProblem(
                f"weight: {self.codes.dtype} {tuple(self.codes.shape)}; expected packed bytes of [n, k]"
            )
        groups = -(-self.k // self.group) if self.group > 0 else 0
        for name, values in (("scale", self.scale), ("zero_point", self.zero_point)):
            if values is not None and values.shape != (n, groups):
                raise InvalidProblem(f"weight: {name} of shape {tuple(values.shape)}; expected {(n, groups)}")
        if self.group % 2 and self.group < self.k:
            raise Unsupported(
                f"weight: groups of {self.group} codes; expected an even number, so that each ends on a byte"
            )


def linear_int4(
    x: Tensor,
    weight: Int4Weight,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    gpu: Gpu | None = None,
) -> Tensor:
    """x @ w.T + bias as [m, n] of x's type, or `dtype`; x [m, k] of f32, f16 or bf16."""
    if x.dtype not in _FLOATS or x.ndim != 2 or x.shape[1] != weight.k:
        raise InvalidProblem(f"x: {x.dtype} {tuple(x.shape)}; expected floats [m, {weight.k}]")
    m, n = x.shape[0], weight.codes.shape[0]
    require_bias(bias, n)
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((m, n), dtype=x.dtype if dtype is None else dtype, device=x.device)
    if out.dtype not in _FLOATS:
        raise UnsupportedDType(f"out: {out.dtype}; expected float32, float16 or bfloat16")
    scale = weight.scale.float().contiguous()
    zero = None if weight.zero_point is None else weight.zero_point.to(torch.int8).contiguous()
    group = min(weight.group, weight.k) if weight.k else 1
    tile = int4_tile(m, n, group, gpu_of(x) if gpu is None else gpu)
    codes = weight.codes.contiguous()
    shape = Int4Shape(m, n, weight.k, group, x.stride(0), codes.stride(0), n, scale.shape[1])
    even = group % tile.depth == 0 and weight.k % group == 0
    rules = Int4Rules(weight.signed, zero is not None, bias is not None, even)
    pointers = (codes if zero is None else zero, scale if bias is None else bias.float().contiguous())
    launch(int4_gemm, (tile.tiles(m, n),), x, tile, x, codes, out, scale, *pointers, shape, rules, tile)
    return out
