"""Products of codes on a GPU: torch tensors in, torch tensors out. Weights stay [n, k].

    weight = Weight.of(codes, scale, zero_point)                    # once
    y = gemm(a, weight, a_scale, a_zero, Finish(torch.float16))     # many times

Integer results are exact, float ones equal the CPU's to the bit: y = f32(acc) * (sa * sb) + bias, each step rounded.
Checked here: k <= 131,071, since int32 sums of Tensor Cores saturate (`.satfinite`) where products of bytes pass 2^31.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lowbit.gpu.dp4a import int8_gemm_dp4a, int8_gemv_dp4a
from lowbit.gpu.gemm import int8_gemm
from lowbit.gpu.tiles import Gpu, int4_tile, int8_tile
from lowbit.gpu.weight_only import int4_gemm
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType

__all__ = ["MAX_DEPTH", "Finish", "Int4Weight", "Weight", "gemm", "gpu_of", "linear_int4"]

MAX_DEPTH = 131071  # 128 * 128 * k < 2^31
_BYTES = (torch.int8, torch.uint8)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_GROUP = 8  # tiles of rows that share columns in cache


@dataclass(frozen=True)
class Finish:
    """What becomes of exact sums.

    int32, int64: the sums. Floats: clamp(f32(sum) * (sa * sb) + bias, floor, ceiling). int8, uint8: codes,
    clamp(rne(f32(sum) * ((sa * sb) / scale)) + zero_point, lo, hi). bias [n]: int32 belongs to the sums; floats are
    added to float results and become steps, rne(bias / (sa * sb)), before codes. relu: floor = 0, or lo = zero_point.
    """

    dtype: torch.dtype
    bias: torch.Tensor | None = None
    floor: float = -math.inf
    ceiling: float = math.inf
    scale: float = 1.0
    zero_point: int = 0
    lo: int | None = None
    hi: int | None = None

    @property
    def kind(self) -> str:
        if self.dtype in (torch.int32, torch.int64):
            return "sums"
        if self.dtype in _FLOATS:
            return "floats"
        if self.dtype in _BYTES:
            return "codes"
        raise UnsupportedDType(f"out: {self.dtype}; expected int32, int64, float32, float16, bfloat16, int8 or uint8")

    def arguments(self, n: int, depth: int, product: int) -> dict[str, Any]:
        """The kernels' arguments, for n columns; product: the greatest |(a - za) * (b - zb)|."""
        kind, bias = self.kind, self.bias
        if depth > MAX_DEPTH:
            raise Unsupported(f"k: {depth}; expected at most {MAX_DEPTH}, so that no int32 sum saturates")
        wide = product * depth >= 2**31
        if wide and self.dtype == torch.int32:
            raise Unsupported(f"out: int32 sums of {depth} products may pass 2^31; expected int64")
        least = {torch.int8: -128, torch.uint8: 0}.get(self.dtype, 0)
        lo, hi = (least if self.lo is None else self.lo), (least + 255 if self.hi is None else self.hi)
        if kind == "codes" and not (least <= lo <= hi <= least + 255 and least <= self.zero_point <= least + 255):
            raise InvalidProblem(
                f"out: codes [{lo}, {hi}], zero point {self.zero_point}; expected {self.dtype}'s range"
            )
        if bias is not None and bias.shape != (n,):
            raise InvalidProblem(f"bias: shape {tuple(bias.shape)}; expected ({n},), one an output")
        bias_kind = "none"
        if bias is not None:
            if kind == "sums":
                raise InvalidProblem("bias: with sums; expected none")
            if bias.dtype != torch.int32 and bias.dtype not in _FLOATS:
                raise UnsupportedDType(f"bias: {bias.dtype}; expected int32 or floats")
            integers = bias.dtype == torch.int32
            bias_kind = "integers" if integers else "steps" if kind == "codes" else "floats"
            bias = bias.contiguous() if integers else bias.float().contiguous()
        return {
            "bias": bias, "sy": self.scale, "zy": self.zero_point, "lo": lo, "hi": hi, "floor": self.floor,
            "ceiling": self.ceiling, "WIDE": wide, "OUT": kind, "BIAS": bias_kind,
        }  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """Codes [n, k] (filters: [out, kh, kw, c]) with one scale and zero point, or one a row, and their sums by row."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    sums: torch.Tensor  # of centred codes: 128 less each where unsigned

    @classmethod
    def of(cls, codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None) -> Weight:
        if codes.dtype not in _BYTES or codes.ndim < 2:
            raise UnsupportedDType(f"weight: {codes.dtype} of shape {tuple(codes.shape)}; expected bytes [n, k]")
        n = codes.shape[0]
        codes = codes.contiguous()
        rows = codes.reshape(n, math.prod(codes.shape[1:]))
        if zero_point is None and codes.dtype == torch.uint8:
            zero_point = torch.zeros(1, dtype=torch.int32, device=codes.device)
        sums = rows.sum(1, dtype=torch.int64) - (128 * rows.shape[1] if codes.dtype == torch.uint8 else 0)
        return cls(
            codes, vector("weight: scale", scale, torch.float32, n),
            None if zero_point is None else vector("weight: zero_point", zero_point, torch.int32, n),
            sums.to(torch.int32),
        )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        zero = self.zero_point
        return {
            "b": self.codes, "sb": self.scale, "zb": self.sums if zero is None else zero, "column_sums": self.sums,
            "SB_STEP": step(self.scale), "ZB_STEP": 0 if zero is None else step(zero),
            "B_UNSIGNED": self.codes.dtype == torch.uint8, "HAS_ZB": zero is not None,
        }  # fmt: skip


def vector(name: str, values: torch.Tensor, dtype: torch.dtype, count: int) -> torch.Tensor:
    flat = values.reshape(-1).to(dtype).contiguous()
    if flat.numel() not in (1, count):
        raise InvalidProblem(f"{name}: {flat.numel()} values; expected 1 or {count}")
    return flat


def step(values: torch.Tensor) -> int:
    return int(values.numel() > 1)


def gpu_of(x: torch.Tensor) -> Gpu:
    """The GPU a tensor is on; one on the CPU can only be the interpreter's."""
    if x.device.type != "cuda":
        return Gpu("reference", 0)
    if torch.version.hip is not None:
        return Gpu("hip", 0)
    major, minor = torch.cuda.get_device_capability(x.device)
    return Gpu("cuda", 10 * major + minor)


def on_device(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Triton launches on torch's current device."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext()


def greatest(codes: torch.Tensor, has_zero: bool) -> int:
    """The greatest |code - zero point|."""
    return 255 if has_zero or codes.dtype == torch.uint8 else 128


def gemm(
    a: torch.Tensor,
    weight: Weight,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor | None,
    finish: Finish,
    *,
    gpu: Gpu | None = None,
    path: str | None = None,
) -> torch.Tensor:
    """a [m, k] of bytes times weight [n, k] transposed, finished, as [m, n]. a_scale, a_zero: one, or one a row.

    path: "matrix" (Tensor Cores), "dp4a" or "gemv" (a row at a time); chosen by the shape and the GPU where it is None.
    """
    if a.dtype not in _BYTES or a.ndim != 2 or weight.codes.ndim != 2 or a.shape[1] != weight.codes.shape[1]:
        raise InvalidProblem(f"a: {a.dtype} {tuple(a.shape)}; expected bytes [m, {weight.codes.shape[-1]}]")
    m, k = a.shape
    n = weight.codes.shape[0]
    gpu = gpu_of(a) if gpu is None else gpu
    if path is None:
        path = "gemv" if m == 1 else "matrix" if gpu.has_int8_dot else "dp4a"
    if path == "matrix" and not gpu.has_int8_dot:
        raise Unsupported(f"path: matrix on sm_{gpu.capability}; expected dp4a, Triton has no int8 products there")
    a = a if a.stride(1) == 1 else a.contiguous()
    out = torch.empty((m, n), dtype=finish.dtype, device=a.device)
    has_za = a_zero is not None or a.dtype == torch.uint8
    zero = torch.zeros(1, dtype=torch.int32, device=a.device) if a_zero is None else a_zero
    scale, zero = vector("a_scale", a_scale, torch.float32, m), vector("a_zero", zero, torch.int32, m)
    arguments = weight.arguments()
    product = greatest(a, has_za) * greatest(weight.codes, arguments["HAS_ZB"])
    arguments |= finish.arguments(n, k, product)
    if arguments["bias"] is None:
        arguments["bias"] = weight.scale
    arguments |= {
        "a": a, "out": out, "sa": scale, "za": zero, "M": m, "N": n, "K": k, "a_row": a.stride(0), "b_row": k,
        "out_row": n, "SA_STEP": step(scale), "ZA_STEP": step(zero), "A_UNSIGNED": a.dtype == torch.uint8,
        "HAS_ZA": has_za, "enable_fp_fusion": False,
    }  # fmt: skip
    if not m or not n:
        return out
    whole = k % 4 == 0 and a.stride(0) % 4 == 0 and a.data_ptr() % 4 == 0 and weight.codes.data_ptr() % 4 == 0
    with on_device(a):
        if path == "gemv":
            block = 16
            int8_gemv_dp4a[(-(-n // block), m)](
                **arguments, WHOLE=whole, BACKEND=gpu.backend, BLOCK_N=block, BLOCK_WORDS=64, num_warps=4
            )
        elif path == "dp4a":
            rows = 16 if m <= 16 else 64
            int8_gemm_dp4a[(-(-m // rows) * -(-n // 64),)](
                **arguments, WHOLE=whole, BACKEND=gpu.backend, BLOCK_M=rows, BLOCK_N=64, GROUP_M=_GROUP, num_warps=4
            )
        elif path == "matrix":
            tile = int8_tile(m, n, k, gpu)
            int8_gemm[(-(-m // tile.rows) * -(-n // tile.columns),)](
                **arguments, EVEN_K=k % tile.depth == 0, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
                GROUP_M=_GROUP, num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
        else:
            raise InvalidProblem(f"path: {path!r}; expected 'matrix', 'dp4a' or 'gemv'")
    return out


@dataclass(frozen=True)
class Int4Weight:
    """Packed codes [n, ceil(k / 2)], the first of a byte in its low nibble, each row starting on a byte; scales and
    zero points [n, groups] for groups of `group` along k, the last one perhaps short."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
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
                f"weight: groups of {self.group} codes; expected an even number, so that none ends in a byte"
            )


def linear_int4(
    x: torch.Tensor,
    weight: Int4Weight,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    floor: float = -math.inf,
    ceiling: float = math.inf,
    gpu: Gpu | None = None,
) -> torch.Tensor:
    """clamp(x @ w.T + bias, floor, ceiling) as [m, n] of x's type, or `dtype`; x [m, k] of f32, f16 or bf16."""
    if x.dtype not in _FLOATS or x.ndim != 2 or x.shape[1] != weight.k:
        raise InvalidProblem(f"x: {x.dtype} {tuple(x.shape)}; expected floats [m, {weight.k}]")
    m, n = x.shape[0], weight.codes.shape[0]
    if bias is not None and bias.shape != (n,):
        raise InvalidProblem(f"bias: shape {tuple(bias.shape)}; expected ({n},), one an output")
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((m, n), dtype=x.dtype if dtype is None else dtype, device=x.device)
    if out.dtype not in _FLOATS:
        raise UnsupportedDType(f"out: {out.dtype}; expected float32, float16 or bfloat16")
    if not m or not n:
        return out
    scale = weight.scale.float().contiguous()
    zero = None if weight.zero_point is None else weight.zero_point.to(torch.int8).contiguous()
    group = min(weight.group, weight.k) if weight.k else 1
    tile = int4_tile(m, n, group, gpu_of(x) if gpu is None else gpu)
    codes = weight.codes.contiguous()
    with on_device(x):
        int4_gemm[(-(-m // tile.rows) * -(-n // tile.columns),)](
            x=x, q=codes, out=out, s=scale, z=codes if zero is None else zero,
            bias=scale if bias is None else bias.float().contiguous(), M=m, N=n, K=weight.k, group=group,
            x_row=x.stride(0), q_row=codes.stride(0), out_row=n, s_row=scale.shape[1], floor=floor, ceiling=ceiling,
            SIGNED=weight.signed, HAS_Z=zero is not None, HAS_BIAS=bias is not None,
            EVEN_K=group % tile.depth == 0 and weight.k % group == 0, BLOCK_M=tile.rows, BLOCK_N=tile.columns,
            BLOCK_K=tile.depth, GROUP_M=_GROUP, num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
        )  # fmt: skip
    return out
