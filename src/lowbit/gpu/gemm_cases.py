"""The products and convolutions as they are compiled ahead of time: one case for each shape of code that matters.

Where NVIDIA and AMD have tiles of their own, two cases share a name and divide the targets among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.gpu.ahead import AMD, NVIDIA, Case
from lowbit.gpu.arguments import ConvShape, Epilogue, GemmShape, Int4Rules, Int4Shape, Rules, Scales
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.dp4a import int8_gemm_dp4a, int8_gemv_dp4a
from lowbit.gpu.gemm import int8_gemm
from lowbit.gpu.tiles import DEPTHWISE, DP4A, Gpu, Tile, int4_tile, int8_tile
from lowbit.gpu.weight_only import int4_gemm

_TYPES = {"s8": "*i8", "u8": "*u8", "s32": "*i32", "s64": "*i64", "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32"}
_NO_DOT = {"sm_75": "Triton has no int8 products on Turing's Tensor Cores: the DP4A path"}
_OWN_TILE = "has a tile of its own"
_GPUS = Gpu("cuda", 80), Gpu("hip", 80)

_SCALES = Scales("*fp32", "*i32", "*fp32", "*i32", "*i32")
_EPILOGUE = Epilogue("*fp32", "fp32", "i32", "i32", "i32", "fp32", "fp32")
_LENGTHS = ("K", "a_row", "b_row", "out_row", "x_row", "q_row", "C", "per_group", "group")


def _rules(a: str, b: str, out: str, *, tokens: bool = True, zb: bool = False) -> Rules:
    kind = "sums" if out in ("s32", "s64") else "codes" if out in ("s8", "u8") else "floats"
    bias = {"sums": "none", "codes": "steps", "floats": "floats"}[kind]
    steps = (int(tokens), int(tokens), 1, int(zb))
    return Rules(*steps, a == "u8", b == "u8", a == "u8", zb or b == "u8", False, kind, bias)


def _signature(a: str, b: str, out: str, shape: Any, names: str = "a b") -> dict[str, Any]:
    """Of int8 kernels. names: of the operands."""
    operands = dict(zip(names.split(), (_TYPES[a], _TYPES[b]), strict=True))
    sizes = {"g" if isinstance(shape, ConvShape) else "shape": shape}
    return {**operands, "out": _TYPES[out], "scales": _SCALES, **sizes, "epilogue": _EPILOGUE}


def _aligned(signature: Mapping[str, Any], ragged: bool = False) -> tuple[str, ...]:
    """What a launch finds to be multiples of 16: pointers, and lengths of rows where they are."""
    types: dict[str, str] = {}
    for name, kind in signature.items():
        types |= {name: kind} if isinstance(kind, str) else {f"{name}.{f}": k for f, k in kind._asdict().items()}
    lengths = () if ragged else _LENGTHS
    return tuple(name for name, k in types.items() if k.startswith("*") or name.partition(".")[2] in lengths)


def _tiled(
    name: str, kernel: Any, signature: Mapping[str, Any], constants: Mapping[str, Any], tiles: list[Tile], ragged: bool
) -> list[Case]:
    """A case for NVIDIA and one for AMD, each with its tile."""
    cases = []
    for tile, others in zip(tiles, (AMD, NVIDIA), strict=True):
        not_on = dict.fromkeys(others, _OWN_TILE)
        if others is AMD and kernel is not int4_gemm:
            not_on |= _NO_DOT
        given = {**constants, "TILE": tile}
        aligned = _aligned(signature, ragged)
        full = name.format(rows=tile.rows)
        cases.append(Case(full, kernel, signature, given, aligned, tile.warps, tile.stages, not_on))
    return cases


def _int8(name: str, a: str, b: str, out: str, m: int, *, ragged: bool = False, **rules: Any) -> list[Case]:
    """On matrix units, with the tile that a product of m rows gets."""
    constants = {"RULES": _rules(a, b, out, **rules), "EVEN_K": not ragged}
    tiles = [int8_tile(m, 4096, 4095 if ragged else 4096, gpu) for gpu in _GPUS]
    signature = _signature(a, b, out, GemmShape(*["i32"] * 6))
    return _tiled(f"int8_gemm {a}·{b} → {out}, {name}", int8_gemm, signature, constants, tiles, ragged)


def _dp4a(kernel: Any, a: str, b: str, out: str, *, whole: bool = True, **rules: Any) -> Case:
    signature = _signature(a, b, out, GemmShape(*["i32"] * 6))
    constants = {"RULES": _rules(a, b, out, **rules), "WHOLE": whole, "BACKEND": "cuda"}
    if kernel is int8_gemm_dp4a:
        constants["TILE"] = DP4A
    name = f"{kernel.__name__} {a}·{b} → {out}{'' if whole else ', odd K'}"
    return Case(name, kernel, signature, constants, _aligned(signature, not whole))


def _int4(x: str, m: int, group: int = 128, *, signed: bool = True, even: bool = True) -> list[Case]:
    signature = {"x": _TYPES[x], "q": "*u8", "out": _TYPES[x], "s": "*fp32", "z": "*i8", "bias": "*fp32"}
    signature |= {"shape": Int4Shape(*["i32"] * 8), "floor": "fp32", "ceiling": "fp32"}  # type: ignore[dict-item]
    name = f"int4_gemm {x}·{'s4' if signed else 'u4'}, {{rows}} rows{'' if even else ', ragged K'}"
    constants = {"RULES": Int4Rules(signed, not signed, True, even)}
    tiles = [int4_tile(m, 4096, group, gpu) for gpu in _GPUS]
    return _tiled(name, int4_gemm, signature, constants, tiles, not even)


def _conv(kernel: Any, a: str, b: str, out: str, *, flat: bool = False) -> list[Case]:
    signature = _signature(a, b, out, ConvShape(*["i32"] * 16), "x w")
    name = f"{kernel.__name__} {a}·{b} → {out}{', few channels' if flat else ''}"
    constants: dict[str, Any] = {"RULES": _rules(a, b, out, tokens=False)}
    if kernel is int8_conv2d:
        tiles = [int8_tile(4096, 256, 27 if flat else 256, gpu) for gpu in _GPUS]
        return _tiled(name, kernel, signature, constants | {"FLAT": flat}, tiles, flat)
    if kernel is int8_conv2d_depthwise:
        signature["multiplier"] = "i32"
        constants |= {"TILE": DEPTHWISE}
    else:
        constants |= {"BACKEND": "cuda", "TILE": DP4A}
    return [Case(name, kernel, signature, constants, _aligned(signature, flat))]


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
