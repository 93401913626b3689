"""The products and convolutions as they are compiled ahead of time: one case for each shape of code that matters.

Where NVIDIA and AMD have tiles of their own, two cases share a name and divide the targets among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.gpu.ahead import AMD, NVIDIA, Case
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.dp4a import int8_gemm_dp4a, int8_gemv_dp4a
from lowbit.gpu.gemm import int8_gemm
from lowbit.gpu.tiles import Gpu, Tile, int4_tile, int8_tile
from lowbit.gpu.weight_only import int4_gemm

__all__ = ["CASES"]

_TYPES = {"s8": "*i8", "u8": "*u8", "s32": "*i32", "s64": "*i64", "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32"}
_NO_DOT = {"sm_75": "Triton has no int8 products on Turing's Tensor Cores: the DP4A path"}
_OWN_TILE = "has a tile of its own"

_FINISH = {"sy": "fp32", "zy": "i32", "lo": "i32", "hi": "i32", "floor": "fp32", "ceiling": "fp32"}
_OPERANDS = {
    "sa": "*fp32", "za": "*i32", "sb": "*fp32", "zb": "*i32", "column_sums": "*i32", "bias": "*fp32",
}  # fmt: skip
_SHAPE = dict.fromkeys(("M", "N", "K", "a_row", "b_row", "out_row"), "i32")
_IMAGE = dict.fromkeys(
    ("M", "N", "H", "W", "C", "OH", "OW", "KW", "taps", "per_group", "stride_h", "stride_w", "top", "left",
     "dilation_h", "dilation_w"), "i32",
)  # fmt: skip


def _finish(a: str, b: str, out: str, *, tokens: bool = True, zb: bool = False, bias: bool = True) -> dict[str, Any]:
    kind = "sums" if out in ("s32", "s64") else "codes" if out in ("s8", "u8") else "floats"
    bias_kind = "none" if kind == "sums" or not bias else "steps" if kind == "codes" else "floats"
    return {
        "SA_STEP": int(tokens), "ZA_STEP": int(tokens), "SB_STEP": 1, "ZB_STEP": int(zb), "A_UNSIGNED": a == "u8",
        "B_UNSIGNED": b == "u8", "HAS_ZA": a == "u8", "HAS_ZB": zb or b == "u8", "WIDE": False, "OUT": kind,
        "BIAS": bias_kind,
    }  # fmt: skip


def _aligned(signature: Mapping[str, str], ragged: bool = False) -> tuple[str, ...]:
    """What a launch finds to be multiples of 16: pointers, and lengths of rows where they are."""
    lengths = () if ragged else ("K", "a_row", "b_row", "out_row", "x_row", "q_row", "C", "per_group", "group")
    return tuple(name for name, kind in signature.items() if kind.startswith("*") or name in lengths)


def _int8(name: str, a: str, b: str, out: str, m: int, *, ragged: bool = False, **finish: Any) -> list[Case]:
    """On matrix units, with the tile that a product of m rows gets."""
    signature = {"a": _TYPES[a], "b": _TYPES[b], "out": _TYPES[out], **_OPERANDS, **_SHAPE, **_FINISH}
    cases = []
    for backend, others in (("cuda", AMD), ("hip", NVIDIA)):
        tile = int8_tile(m, 4096, 4095 if ragged else 4096, Gpu(backend, 80))
        constants = {
            **_finish(a, b, out, **finish), "EVEN_K": not ragged, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns,
            "BLOCK_K": tile.depth, "GROUP_M": 8,
        }  # fmt: skip
        not_on = dict.fromkeys(others, _OWN_TILE) | (_NO_DOT if backend == "cuda" else {})
        aligned = _aligned(signature, ragged)
        full = f"int8_gemm {a}·{b} → {out}, {name}"
        cases.append(Case(full, int8_gemm, signature, constants, aligned, tile.warps, tile.stages, not_on))
    return cases


def _dp4a(kernel: Any, a: str, b: str, out: str, *, whole: bool = True, **finish: Any) -> Case:
    signature = {"a": _TYPES[a], "b": _TYPES[b], "out": _TYPES[out], **_OPERANDS, **_SHAPE, **_FINISH}
    block = {"BLOCK_N": 16, "BLOCK_WORDS": 64} if kernel is int8_gemv_dp4a else _tile(Tile(64, 64, 0, 4, 2))
    constants = {**_finish(a, b, out, **finish), "WHOLE": whole, "BACKEND": "cuda", **block}
    name = f"{kernel.__name__} {a}·{b} → {out}{'' if whole else ', odd K'}"
    return Case(name, kernel, signature, constants, _aligned(signature, not whole))


def _tile(tile: Tile) -> dict[str, int]:
    return {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "GROUP_M": 8}


def _int4(x: str, m: int, group: int = 128, *, signed: bool = True, even: bool = True) -> list[Case]:
    signature = {
        "x": _TYPES[x], "q": "*u8", "out": _TYPES[x], "s": "*fp32", "z": "*i8", "bias": "*fp32",
        **dict.fromkeys(("M", "N", "K", "group", "x_row", "q_row", "out_row", "s_row"), "i32"), "floor": "fp32",
        "ceiling": "fp32",
    }  # fmt: skip
    cases = []
    for backend, others in (("cuda", AMD), ("hip", NVIDIA)):
        tile = int4_tile(m, 4096, group, Gpu(backend, 80))
        constants = {
            "SIGNED": signed, "HAS_Z": not signed, "HAS_BIAS": True, "EVEN_K": even, "BLOCK_K": tile.depth,
            **_tile(tile),
        }  # fmt: skip
        name = f"int4_gemm {x}·{'s4' if signed else 'u4'}, {tile.rows} rows{'' if even else ', ragged K'}"
        not_on = dict.fromkeys(others, _OWN_TILE)
        aligned = _aligned(signature, not even)
        cases.append(Case(name, int4_gemm, signature, constants, aligned, tile.warps, tile.stages, not_on))
    return cases


def _conv(kernel: Any, a: str, b: str, out: str, *, flat: bool = False, **finish: Any) -> list[Case]:
    signature = {"x": _TYPES[a], "w": _TYPES[b], "out": _TYPES[out], **_OPERANDS, **_IMAGE, **_FINISH}
    constants = _finish(a, b, out, **finish)
    name = f"{kernel.__name__} {a}·{b} → {out}{', few channels' if flat else ''}"
    drop = {"SA_STEP", "ZA_STEP"}
    if kernel is int8_conv2d_depthwise:
        del signature["column_sums"], signature["per_group"]
        signature["multiplier"] = "i32"
        constants |= {"BLOCK_M": 32, "BLOCK_N": 64}
        drop |= {"A_UNSIGNED", "B_UNSIGNED", "WIDE"}
    constants = {name: value for name, value in constants.items() if name not in drop}
    if kernel is int8_conv2d_dp4a:
        constants |= {"BACKEND": "cuda", **_tile(Tile(64, 64, 0, 4, 2))}
    aligned = _aligned(signature, flat)
    if kernel is not int8_conv2d:
        return [Case(name, kernel, signature, constants, aligned)]
    cases = []
    for backend, others in (("cuda", AMD), ("hip", NVIDIA)):
        tile = int8_tile(4096, 256, 27 if flat else 256, Gpu(backend, 80))
        own = {**constants, "FLAT": flat, "BLOCK_K": tile.depth, **_tile(tile)}
        not_on = dict.fromkeys(others, _OWN_TILE) | (_NO_DOT if backend == "cuda" else {})
        cases.append(Case(name, kernel, signature, own, aligned, tile.warps, tile.stages, not_on))
    return cases


CASES: list[Case] = [
    *_int8("16 rows", "s8", "s8", "f16", 16),
    *_int8("64 rows", "s8", "s8", "bf16", 64),
    *_int8("128 rows", "s8", "s8", "f16", 4096),
    *_int8("128 rows", "u8", "s8", "s8", 4096),
    *_int8("64 rows, ragged K", "u8", "u8", "s32", 64, ragged=True, zb=True),
    *_int8("64 rows, ragged K", "s8", "s8", "f32", 64, ragged=True, tokens=False),
    _dp4a(int8_gemv_dp4a, "s8", "s8", "f16"),
    _dp4a(int8_gemv_dp4a, "u8", "s8", "u8", zb=True),
    _dp4a(int8_gemv_dp4a, "s8", "s8", "s32", whole=False),
    _dp4a(int8_gemm_dp4a, "s8", "s8", "f16"),
    _dp4a(int8_gemm_dp4a, "u8", "s8", "s8", zb=True),
    _dp4a(int8_gemm_dp4a, "s8", "s8", "s32", whole=False),
    *_int4("f16", 16),
    *_int4("f16", 64),
    *_int4("bf16", 16, signed=False),
    *_int4("bf16", 64, signed=False),
    *_int4("f32", 16),
    *_int4("f16", 16, 32, signed=False, even=False),
    *_conv(int8_conv2d, "u8", "s8", "u8"),
    *_conv(int8_conv2d, "s8", "s8", "f16", flat=True),
    *_conv(int8_conv2d_dp4a, "u8", "s8", "u8"),
    *_conv(int8_conv2d_depthwise, "u8", "s8", "u8"),
]
