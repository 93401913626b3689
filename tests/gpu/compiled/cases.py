"""Kernels as cases to compile ahead of time, with the types and constants launches give them: each kernel of the
quantize family, and one case for each shape of code that matters of the products and convolutions.

Where NVIDIA and AMD have tiles of their own, two cases share a name and divide the targets among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu.compiled.ahead import AMD, NVIDIA, Case
from lowbit.gpu import elementwise, reductions
from lowbit.gpu.arguments import (
    Block,
    CodeRules,
    ConvShape,
    Epilogue,
    GemmShape,
    Int4Rules,
    Int4Shape,
    Rules,
    Scales,
    Spread,
    SpreadRules,
    SumBlock,
)
from lowbit.gpu.conv import int8_conv2d, int8_conv2d_depthwise, int8_conv2d_dp4a
from lowbit.gpu.gemm import int8_gemm, int8_gemm_dp4a, int8_gemv_dp4a
from lowbit.gpu.grids import COLUMNS, FLAT, GROUP_ROWS, GROUPS, ROWS, TENSOR, Parts
from lowbit.gpu.tiles import DEPTHWISE, DP4A, Gpu, int4_tile, int8_tile
from lowbit.gpu.weight_only import int4_gemm

_TYPES = {
    **{"s8": "i8", "u8": "u8", "s4": "u8", "u4": "u8", "s32": "i32", "s64": "i64"},
    **{"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64"},
}
# Arguments, and fields of tuples, that launches find to be multiples of 16.
_EVEN = {
    *("n", "stored", "columns", "axis", "runs", "bytes_of_group", "length", "group", "longest", "scales"),
    *("K", "a_row", "b_row", "out_row", "x_row", "q_row", "C", "per_group"),
}


# Types of the arguments that are neither pointers nor constants, by name.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("n", "stored", "qmin", "qmax", "runs", "bytes_of_group", "multiplier"), "i32"),
    "at": Spread(*["i32"] * 4),
    "parts": Parts(*["i32"] * 9),  # type: ignore[arg-type]
    "shape": GemmShape(*["i32"] * 6),
    "g": ConvShape(*["i32"] * 16),
    "scales": Scales("*fp32", "*i32", "*fp32", "*i32", "*i32"),
    "epilogue": Epilogue("*fp32", "fp32", "i32", "i32", "i32", "fp32", "fp32"),
}


def _case(
    name: str,
    kernel: Any,
    pointers: str,
    constants: dict[str, Any],
    *,
    warps: int = 8,
    stages: int = 2,
    ragged: bool = False,
    not_on: Mapping[str, str] | None = None,
    **sizes: Any,
) -> Case:
    """pointers: "x f32, zero -": what each points to, "-" where there is none. ragged: no size is a multiple of 16.
    sizes: arguments of another type than they have in _SIZES."""
    elements = dict(pair.split() for pair in pointers.split(", "))
    signature = {n: f"*{_TYPES[kind]}" for n, kind in elements.items() if kind != "-"}
    signature |= {n: sizes.get(n, _SIZES[n]) for n in kernel.arg_names if n in _SIZES}
    types: dict[str, str] = {}
    for n, kind in signature.items():
        types |= {n: kind} if isinstance(kind, str) else {f"{n}.{f}": k for f, k in kind._asdict().items()}
    even = [n for n, k in types.items() if k.startswith("*") or (n.rpartition(".")[2] in _EVEN and not ragged)]
    absent = {n: None for n, kind in elements.items() if kind == "-"}
    return Case(name, kernel, signature, absent | constants, tuple(even), warps, stages, not_on or {})


# ---- products and convolutions ----------------------------------------------------------------------------------

_NO_DOT = {"sm_75": "Triton has no int8 products on Turing's Tensor Cores: the DP4A path"}
_OWN_TILE = "has a tile of its own"
_GPUS = Gpu("cuda", 80), Gpu("hip", 80)


def _rules(a: str, b: str, out: str, *, tokens: bool = True, zb: bool = False) -> Rules:
    kind = "sums" if out in ("s32", "s64") else "codes" if out in ("s8", "u8") else "floats"
    bias = {"sums": "none", "codes": "steps", "floats": "floats"}[kind]
    steps = (int(tokens), int(tokens), 1, int(zb))
    return Rules(*steps, a == "u8", b == "u8", a == "u8", zb or b == "u8", False, kind, bias)


def _tiled(name: str, kernel: Any, pointers: str, constants: dict[str, Any], tiles: Any, **more: Any) -> list[Case]:
    """A case for NVIDIA and one for AMD, each with its tile."""
    cases = []
    for tile, others in zip(tiles, (AMD, NVIDIA), strict=True):
        not_on = dict.fromkeys(others, _OWN_TILE)
        if others is AMD and kernel is not int4_gemm:
            not_on |= _NO_DOT
        launch = {"warps": tile.warps, "stages": tile.stages, "not_on": not_on, **more}
        cases.append(_case(name.format(rows=tile.rows), kernel, pointers, constants | {"TILE": tile}, **launch))
    return cases


def _int8(name: str, a: str, b: str, out: str, m: int, *, ragged: bool = False, **rules: Any) -> list[Case]:
    """On matrix units, with the tile that a product of m rows gets."""
    constants = {"RULES": _rules(a, b, out, **rules), "EVEN_K": not ragged}
    tiles = (int8_tile(m, 4096, 4095 if ragged else 4096, gpu) for gpu in _GPUS)
    full = f"int8_gemm {a}·{b} → {out}, {name}"
    return _tiled(full, int8_gemm, f"a {a}, b {b}, out {out}", constants, tiles, ragged=ragged)


def _dp4a(kernel: Any, a: str, b: str, out: str, *, whole: bool = True, **rules: Any) -> Case:
    constants = {"RULES": _rules(a, b, out, **rules), "WHOLE": whole, "BACKEND": "cuda"}
    if kernel is int8_gemm_dp4a:
        constants["TILE"] = DP4A
    name = f"{kernel.__name__} {a}·{b} → {out}{'' if whole else ', odd K'}"
    return _case(name, kernel, f"a {a}, b {b}, out {out}", constants, warps=4, ragged=not whole)


def _int4(x: str, m: int, group: int = 128, *, signed: bool = True, even: bool = True) -> list[Case]:
    name = f"int4_gemm {x}·{'s4' if signed else 'u4'}, {{rows}} rows{'' if even else ', ragged K'}"
    constants = {"RULES": Int4Rules(signed, not signed, True, even)}
    tiles = (int4_tile(m, 4096, group, gpu) for gpu in _GPUS)
    pointers, shape = f"x {x}, q u8, out {x}, s f32, z s8, bias f32", Int4Shape(*["i32"] * 8)
    return _tiled(name, int4_gemm, pointers, constants, tiles, ragged=not even, shape=shape)


def _conv(kernel: Any, a: str, b: str, out: str, *, flat: bool = False) -> list[Case]:
    name = f"{kernel.__name__} {a}·{b} → {out}{', few channels' if flat else ''}"
    pointers = f"x {a}, w {b}, out {out}"
    constants: dict[str, Any] = {"RULES": _rules(a, b, out, tokens=False)}
    if kernel is int8_conv2d:
        tiles = (int8_tile(4096, 256, 27 if flat else 256, gpu) for gpu in _GPUS)
        return _tiled(name, kernel, pointers, constants | {"FLAT": flat}, tiles, ragged=flat)
    constants |= {"TILE": DEPTHWISE} if kernel is int8_conv2d_depthwise else {"BACKEND": "cuda", "TILE": DP4A}
    return [_case(name, kernel, pointers, constants, warps=4)]


# ---- the quantize family ----------------------------------------------------------------------------------------

_KINDS = {
    TENSOR: "tensor",
    ROWS: "channel",
    COLUMNS: "last_channel",
    FLAT: "group",
    GROUPS: "ragged_group",
    GROUP_ROWS: "group_of_rows",
}
_ELEMENTS = {"f32": 1024, "f64": 512, "f16": 2048, "bf16": 2048}  # of a program: 16 bytes for each of 256 threads


def _wide(element: str) -> str:
    return "f64" if element == "f64" else "f32"


def _flat(
    op: str,
    element: str,
    code: str = "",
    *,
    by: int = TENSOR,
    zero: bool = True,
    long: bool = True,
    group: int = 1,
    wide_index: bool = False,
    uneven: bool = False,
) -> Case:
    """A case of elementwise.py."""
    affine, index = f"scale {_wide(element)}, zero {'s32' if zero else '-'}", "i64" if wide_index else "i32"
    pointers = {
        "quantize": f"x {element}, {affine}, out {code}",
        "dequantize": f"codes {code}, {affine}, out {element}",
        "fake_quantize": f"x {element}, {affine}, out {element}",
        "dequantize_backward": f"dy {element}, scale {_wide(element)}, out {element}",
    }.get(op, f"dy {element}, x {element}, {affine}, out {element}")
    sizes: dict[str, Any] = {"at": Spread(index, index, index, "i32"), "stored": index}
    constants: dict[str, Any] = {"RULES": SpreadRules(by, group, long, wide_index, _ELEMENTS[element])}
    kernel = getattr(elementwise, op, elementwise.backward)
    if op in ("quantize", "dequantize"):
        constants |= {"PACKED": code in ("s4", "u4")}
    if op == "dequantize":
        constants |= {"SIGNED": code in ("s4", "s8")}
    if kernel is elementwise.backward:
        constants |= {"DIVIDE": op == "quantize_backward"}
    pair = {"quantize": f"{element}_{code}", "dequantize": f"{code}_{element}"}.get(op, element)
    marks = ("" if zero or op == "dequantize_backward" else "_no_zero") + ("" if long else "_short_rows")
    marks += ("_wide_index" if wide_index else "") + ("_uneven" if uneven else "")
    return _case(f"{op}_{pair}_per_{_KINDS[by]}{marks}", kernel, pointers, constants, ragged=uneven, **sizes)


def _add(a: str, b: str, code: str, zero: bool) -> Case:
    z = "s32" if zero else "-"
    operands = (("a", a), ("b", b), ("out", code))
    pointers = ", ".join(f"{n} {c}, {n}_scale f32, {n}_zero {z}" for n, c in operands)
    name = f"add_{a}_{b}_{code}" + ("" if zero else "_no_zero")
    return _case(name, elementwise.add, pointers, {"BLOCK": Block(False, 1, 1024)})


def _learned(by: str, element: str) -> Case:
    pointers = f"dy {element}, x {element}, scale {_wide(element)}, zero s32, dx {element}, ds f64, dz f64"
    kernel = reductions.learned_of_runs if by == "runs" else reductions.learned_of_columns
    block = SumBlock(False, 16 if by == "runs" else 128, 8)
    return _case(f"learned_of_{by}_{element}", kernel, pointers, {"BLOCK": block}, warps=4)


def _added(element: str, pieces: int) -> Case:
    pointers = f"parts_s f64, parts_z f64, ds {_wide(element)}, dz {_wide(element)}"
    name = f"add_in_order_{element}_by_{'pieces' if pieces > 1 else 'rows'}"
    block = SumBlock(False, 128, 16 // pieces, pieces)
    return _case(name, reductions.add_in_order, pointers, {"BLOCK": block}, warps=4)


def _range(by: str, element: str, width: int = 0) -> Case:
    wide, tile = _wide(element), _ELEMENTS[element]
    pointers = f"x {element}, lo {wide}, hi {wide}, nans s32"
    if by == "columns":
        constants = {"BLOCK": Block(False, 256, tile // 256)}
        return _case(f"range_of_columns_{element}", reductions.range_of_columns, pointers, constants)
    constants = {"BLOCK": Block(False, tile // width, width, width < 256)}
    name = f"range_of_runs_{element}_of_{width}"
    return _case(name, reductions.range_of_runs, pointers, constants)


def _fold(element: str, symmetric: bool | None = None) -> Case:
    """The whole range; where symmetric is given, the parameters from it."""
    wide, block = _wide(element), {"BLOCK": Block(False, 16, 64)}
    pointers = f"lo {wide}, hi {wide}, nans s32"
    if symmetric is None:
        pointers += f", out_lo {wide}, out_hi {wide}, out_nans s64"
        return _case(f"whole_range_{element}", reductions.whole_range, pointers, block)
    pointers += f", out_scale {wide}, out_zero {'-' if symmetric else 's32'}"
    name = f"parameters_{'symmetric' if symmetric else 'asymmetric'}_{element}"
    constants = {"SYMMETRIC": symmetric, **block}
    return _case(name, reductions.parameters_from_ranges, pointers, constants)


def _fused(element: str, code: str, width: int, symmetric: bool, ragged: bool = False) -> Case:
    pointers = f"x {element}, out {code}, out_scale {_wide(element)}, out_zero {'-' if symmetric else 's32'}"
    mode = "symmetric" if symmetric else "asymmetric"
    name = f"quantize_runs_{mode}_{element}_{code}_of_{width}" + ("_ragged" if ragged else "")
    block = Block(False, max(1, _ELEMENTS[element] // width), width, not ragged)
    constants = {"RULES": CodeRules(symmetric, code in ("s4", "u4")), "BLOCK": block}
    return _case(name, reductions.quantize_runs, pointers, constants)


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
    _flat("quantize", "f32", "s8"),
    _flat("quantize", "f32", "s8", wide_index=True),
    _flat("quantize", "f32", "s8", uneven=True),
    _flat("quantize", "f64", "u8"),
    _flat("quantize", "f16", "s8", by=ROWS, zero=False),
    _flat("quantize", "f32", "u8", by=ROWS, long=False),
    _flat("quantize", "bf16", "u8", by=COLUMNS),
    _flat("quantize", "f16", "s4", by=FLAT, zero=False, group=32),
    _flat("quantize", "f32", "u4", by=GROUPS, group=48, uneven=True),
    _flat("quantize", "f32", "s8", by=GROUP_ROWS, group=32),
    _flat("dequantize", "f32", "s8"),
    _flat("dequantize", "f16", "u8", by=ROWS),
    _flat("dequantize", "f64", "s8", by=COLUMNS),
    _flat("dequantize", "bf16", "s4", by=FLAT, zero=False, group=32),
    _flat("dequantize", "f32", "u4", by=GROUPS, group=48, uneven=True),
    _flat("fake_quantize", "f32"),
    _flat("fake_quantize", "bf16", by=ROWS, zero=False),
    _flat("fake_quantize", "f16", by=FLAT, group=128),
    _flat("fake_quantize", "f64", by=COLUMNS),
    _flat("fake_quantize_backward", "f32"),
    _flat("fake_quantize_backward", "bf16", by=ROWS, zero=False),
    _flat("fake_quantize_backward", "f16", by=FLAT, group=128),
    _flat("quantize_backward", "f32"),
    _flat("quantize_backward", "f16", by=ROWS),
    _flat("quantize_backward", "f64", by=GROUP_ROWS, group=32),
    _flat("dequantize_backward", "f32"),
    _flat("dequantize_backward", "bf16", by=ROWS),
    _add("s8", "u8", "s8", True),
    _add("s8", "s8", "s8", False),
    _learned("runs", "f32"),
    _learned("runs", "bf16"),
    _learned("runs", "f64"),
    _learned("columns", "f32"),
    _learned("columns", "f16"),
    _added("f32", 16),
    _added("f64", 1),
    _range("runs", "f32", 1024),
    _range("runs", "f16", 64),
    _range("runs", "f64", 512),
    _range("columns", "bf16"),
    _fold("f32"),
    _fold("f32", True),
    _fold("f32", False),
    _fold("f64", False),
    _fused("f16", "s8", 4096, True),
    _fused("f32", "u8", 64, False),
    _fused("bf16", "s4", 32, True),
    _fused("f32", "s8", 128, True, ragged=True),
    _fused("f64", "u4", 128, False),
]
