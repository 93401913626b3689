"""The quantize family as cases to compile ahead of time: each kernel, with the types and constants launches give it."""

from __future__ import annotations

from typing import Any

from lowbit.gpu import elementwise, learned, reductions
from lowbit.gpu.ahead import Case
from lowbit.gpu.arguments import CodeRange, CodeRules, ColumnBlock, FoldBlock, RunBlock, Spread, SpreadRules, SumBlock
from lowbit.gpu.grids import COLUMNS, FLAT, GROUP_ROWS, GROUPS, ROWS, TENSOR, Parts

_KINDS = {
    TENSOR: "tensor",
    ROWS: "channel",
    COLUMNS: "last_channel",
    FLAT: "group",
    GROUPS: "ragged_group",
    GROUP_ROWS: "group_of_rows",
}
_FLOATS = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16"}
_CODES = {"s8": "i8", "u8": "u8", "s4": "u8", "u4": "u8"}
_ITEM = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
_THREADS, _WARPS = 256, 8
_PARTS: Any = Parts(*["i32"] * 9)  # type: ignore[arg-type]
_RANGE = {"codes": CodeRange("i32", "i32", "i32")}
_EVEN = ("n", "stored", "columns", "axis", "runs", "bytes_of_group", "length", "group", "longest", "scales")


def _wide(element: str) -> str:
    return "fp64" if element == "f64" else "fp32"


def _case(
    name: str,
    kernel: Any,
    pointers: str,
    sizes: dict[str, Any],
    constants: dict[str, Any],
    warps: int = _WARPS,
    uneven: bool = False,
) -> Case:
    """pointers: "x fp32, zero -": what each points to, "-" where there is none. uneven: no size is a multiple of 16."""
    types = dict(pair.split() for pair in pointers.split(", "))
    held = {name: f"*{kind}" for name, kind in types.items() if kind != "-"}
    fields = [f"{n}.{f}" for n, kind in sizes.items() if isinstance(kind, tuple) for f in kind._fields]  # type: ignore[attr-defined]
    even = [] if uneven else [f for f in (*sizes, *fields) if f.rpartition(".")[2] in _EVEN]
    absent = {name: None for name, kind in types.items() if kind == "-"}
    return Case(name, kernel, held | sizes, absent | constants, (*held, *even), warps)


def _flat(
    op: str,
    element: str,
    code: str | None,
    kind: int,
    *,
    zero: bool = True,
    long: bool = True,
    group: int = 1,
    wide_index: bool = False,
    uneven: bool = False,
) -> Case:
    """A case of elementwise.py."""
    f, q, z = _FLOATS[element], _CODES.get(code or ""), "i32" if zero else "-"
    affine, index = f"scale {_wide(element)}, zero {z}", "i64" if wide_index else "i32"
    pointers = {
        "quantize": f"x {f}, {affine}, out {q}",
        "dequantize": f"codes {q}, {affine}, out {f}",
        "fake_quantize": f"x {f}, {affine}, out {f}",
        "dequantize_backward": f"dy {f}, scale {_wide(element)}, out {f}",
    }.get(op, f"dy {f}, x {f}, {affine}, out {f}")
    rules = SpreadRules(kind, group, long, wide_index, 16 // _ITEM[element] * _THREADS)
    sizes: dict[str, Any] = {"at": Spread(index, index, index, "i32")}
    constants: dict[str, Any] = {"RULES": rules}
    if op in ("quantize", "dequantize"):
        sizes |= {"stored": index}
        constants |= {"PACKED": code in ("s4", "u4")}
    if op == "dequantize":
        constants |= {"SIGNED": code in ("s4", "s8")}
    if not op.startswith("dequantize"):
        sizes |= {"qmin": "i32", "qmax": "i32"}
    pair = {"quantize": f"{element}_{code}", "dequantize": f"{code}_{element}"}.get(op, element)
    marks = ("" if zero or op == "dequantize_backward" else "_no_zero") + ("" if long else "_short_rows")
    marks += ("_wide_index" if wide_index else "") + ("_uneven" if uneven else "")
    name = f"{op}_{pair}_per_{_KINDS[kind]}{marks}"
    return _case(name, getattr(elementwise, op), pointers, sizes, constants, uneven=uneven)


def _add(element: str, a: str, b: str, code: str, zero: bool) -> Case:
    operands = (("a", a), ("b", b), ("out", code))
    z = "i32" if zero else "-"
    pointers = ", ".join(f"{n} {_CODES[c]}, {n}_scale {_wide(element)}, {n}_zero {z}" for n, c in operands)
    name = f"add_{a}_{b}_{code}" + ("" if zero else "_no_zero")
    sizes = dict.fromkeys(("n", "qmin", "qmax"), "i32")
    return _case(name, elementwise.add, pointers, sizes, {"INDEX64": False, "BLOCK": 4 * _THREADS})


def _learned(by: str, element: str) -> Case:
    f = _FLOATS[element]
    pointers = f"dy {f}, x {f}, scale {_wide(element)}, zero i32, dx {f}, ds fp64, dz fp64"
    sizes = {"parts": _PARTS, "qmin": "i32", "qmax": "i32"}
    if by == "runs":
        sizes |= {"runs": "i32"}
    block = SumBlock(False, 16 if by == "runs" else 128, 8)
    kernel = learned.learned_of_runs if by == "runs" else learned.learned_of_columns
    return _case(f"learned_of_{by}_{element}", kernel, pointers, sizes, {"BLOCK": block}, 4)


def _range(by: str, element: str, width: int = 0, absolute: bool = False) -> Case:
    wide, tile = _wide(element), 16 // _ITEM[element] * _THREADS
    pointers = f"x {_FLOATS[element]}, lo {wide}, hi {wide}, nans i32"
    name = f"range_of_{by}_{element}" + (f"_of_{width}" if width else "") + ("_absolute" if absolute else "")
    if by == "runs":
        block = {"ABSOLUTE": absolute, "BLOCK": RunBlock(False, width < 256, tile // width, width)}
        return _case(name, reductions.range_of_runs, pointers, {"runs": "i32", "parts": _PARTS}, block)
    block = {"ABSOLUTE": absolute, "BLOCK": ColumnBlock(False, tile // 256, 256)}
    return _case(name, reductions.range_of_columns, pointers, {"parts": _PARTS}, block)


def _fold(name: str, element: str, symmetric: bool | None = None) -> Case:
    wide, block = _wide(element), {"BLOCK": FoldBlock(False, 16, 64)}
    pointers = f"lo {wide}, hi {wide}, nans i32"
    if symmetric is None:
        pointers += f", out_lo {wide}, out_hi {wide}, out_nans i64"
        return _case(f"{name}_{element}", reductions.whole_range, pointers, {"parts": _PARTS}, block)
    pointers += f", out_scale {wide}, out_zero {'-' if symmetric else 'i32'}"
    full = f"{name}_{'symmetric' if symmetric else 'asymmetric'}_{element}"
    constants = {"SYMMETRIC": symmetric, **block}
    return _case(full, reductions.parameters_from_ranges, pointers, {"parts": _PARTS, **_RANGE}, constants)


def _fused(element: str, code: str, width: int, symmetric: bool, ragged: bool = False) -> Case:
    tile, zero = 16 // _ITEM[element] * _THREADS, "-" if symmetric else "i32"
    pointers = f"x {_FLOATS[element]}, out {_CODES[code]}, out_scale {_wide(element)}, out_zero {zero}"
    mode = "symmetric" if symmetric else "asymmetric"
    name = f"quantize_runs_{mode}_{element}_{code}_of_{width}" + ("_ragged" if ragged else "")
    sizes = {"runs": "i32", "bytes_of_group": "i32", "parts": _PARTS, **_RANGE}
    rules = CodeRules(symmetric, code in ("s4", "u4"))
    block = RunBlock(False, not ragged, max(1, tile // width), width)
    return _case(name, reductions.quantize_runs, pointers, sizes, {"RULES": rules, "BLOCK": block})


def _added(element: str, pieces: int) -> Case:
    pointers = f"parts_s fp64, parts_z fp64, ds {_wide(element)}, dz {_wide(element)}"
    name = f"add_in_order_{element}_by_{'pieces' if pieces > 1 else 'rows'}"
    block = SumBlock(False, 128, 16 // pieces, pieces)
    return _case(name, learned.add_in_order, pointers, {"parts": _PARTS}, {"BLOCK": block}, 4)


CASES: list[Case] = [
    _flat("quantize", "f32", "s8", TENSOR),
    _flat("quantize", "f32", "s8", TENSOR, wide_index=True),
    _flat("quantize", "f32", "s8", TENSOR, uneven=True),
    _flat("quantize", "f64", "u8", TENSOR),
    _flat("quantize", "f16", "s8", ROWS, zero=False),
    _flat("quantize", "f32", "u8", ROWS, long=False),
    _flat("quantize", "bf16", "u8", COLUMNS),
    _flat("quantize", "f16", "s4", FLAT, zero=False, group=32),
    _flat("quantize", "f32", "u4", GROUPS, group=48, uneven=True),
    _flat("quantize", "f32", "s8", GROUP_ROWS, group=32),
    _flat("dequantize", "f32", "s8", TENSOR),
    _flat("dequantize", "f16", "u8", ROWS),
    _flat("dequantize", "f64", "s8", COLUMNS),
    _flat("dequantize", "bf16", "s4", FLAT, zero=False, group=32),
    _flat("dequantize", "f32", "u4", GROUPS, group=48, uneven=True),
    _flat("fake_quantize", "f32", None, TENSOR),
    _flat("fake_quantize", "bf16", None, ROWS, zero=False),
    _flat("fake_quantize", "f16", None, FLAT, group=128),
    _flat("fake_quantize", "f64", None, COLUMNS),
    _flat("fake_quantize_backward", "f32", None, TENSOR),
    _flat("fake_quantize_backward", "bf16", None, ROWS, zero=False),
    _flat("fake_quantize_backward", "f16", None, FLAT, group=128),
    _flat("quantize_backward", "f32", None, TENSOR),
    _flat("quantize_backward", "f16", None, ROWS),
    _flat("quantize_backward", "f64", None, GROUP_ROWS, group=32),
    _flat("dequantize_backward", "f32", None, TENSOR),
    _flat("dequantize_backward", "bf16", None, ROWS),
    _add("f32", "s8", "u8", "s8", True),
    _add("f32", "s8", "s8", "s8", False),
    _learned("runs", "f32"),
    _learned("runs", "bf16"),
    _learned("runs", "f64"),
    _learned("columns", "f32"),
    _learned("columns", "f16"),
    _added("f32", 16),
    _added("f64", 1),
    _range("runs", "f32", 1024),
    _range("runs", "f16", 64),
    _range("runs", "f64", 512, absolute=True),
    _range("columns", "bf16"),
    _fold("whole_range", "f32"),
    _fold("parameters", "f32", True),
    _fold("parameters", "f32", False),
    _fold("parameters", "f64", False),
    _fused("f16", "s8", 4096, True),
    _fused("f32", "u8", 64, False),
    _fused("bf16", "s4", 32, True),
    _fused("f32", "s8", 128, True, ragged=True),
    _fused("f64", "u4", 128, False),
]
