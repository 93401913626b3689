"""The quantize family as cases to compile ahead of time: each kernel, with the types and constants launches give it."""

from __future__ import annotations

from typing import Any

from lowbit.gpu import elementwise, learned, reductions
from lowbit.gpu.ahead import Case
from lowbit.gpu.grids import BAND, COLUMNS, FLAT, GROUP_ROWS, GROUPS, RANGE_PIECE, ROWS, TENSOR

__all__ = ["CASES"]

_KINDS = {
    TENSOR: "tensor", ROWS: "channel", COLUMNS: "last_channel", FLAT: "group", GROUPS: "ragged_group",
    GROUP_ROWS: "group_of_rows",
}  # fmt: skip
_FLOATS = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16"}
_CODES = {"s8": "i8", "u8": "u8", "s4": "u8", "u4": "u8"}
_ITEM = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
_THREADS, _WARPS = 256, 8


def _wide(element: str) -> str:
    return "fp64" if element == "f64" else "fp32"


def _case(name: str, kernel: Any, pointers: dict[str, str | None], integers: str, warps: int = _WARPS, /,
          uneven: bool = False, index: str = "i32", **constants: Any) -> Case:  # fmt: skip
    """pointers: what each points to, None where there is none. uneven: sizes are no multiples of 16."""
    signature = {k: f"*{v}" for k, v in pointers.items() if v is not None}
    absent = {k: None for k, v in pointers.items() if v is None}
    sizes = integers.split()
    bounds = ("qmin", "qmax", "divisor", "groups", "pieces", "bands", "outer")
    signature |= {k: "i32" if k in bounds else index for k in sizes}
    even = [] if uneven else [k for k in sizes if k not in bounds]
    return Case(name, kernel, signature, {**absent, **constants}, (*signature.keys() & pointers.keys(), *even), warps)


def _flat(op: str, element: str, code: str | None, kind: int, *, zero: bool = True, long: bool = True,
          group: int = 1, wide_index: bool = False, uneven: bool = False) -> Case:  # fmt: skip
    """A case of elementwise.py."""
    block = 16 // _ITEM[element] * _THREADS
    f, scale, q = _FLOATS[element], _wide(element), _CODES.get(code or "")
    packed = code in ("s4", "u4")
    z = "i32" if zero else None
    pointers: dict[str, dict[str, str | None]] = {
        "quantize": {"x": f, "scale": scale, "zero": z, "out": q},
        "dequantize": {"codes": q, "scale": scale, "zero": z, "out": f},
        "fake_quantize": {"x": f, "scale": scale, "zero": z, "out": f},
        "fake_quantize_backward": {"dy": f, "x": f, "scale": scale, "zero": z, "out": f},
        "quantize_backward": {"dy": f, "x": f, "scale": scale, "zero": z, "out": f},
        "dequantize_backward": {"dy": f, "scale": scale, "out": f},
    }
    integers = "n stored columns axis groups" if op in ("quantize", "dequantize") else "n columns axis groups"
    integers += "" if op.startswith("dequantize") else " qmin qmax"
    more: dict[str, Any] = {"PACKED": packed} if op in ("quantize", "dequantize") else {}
    more |= {"SIGNED": code == "s4" or code == "s8"} if op == "dequantize" else {}
    pair = {"quantize": f"{element}_{code}", "dequantize": f"{code}_{element}"}.get(op, element)
    marks = ("" if zero or op == "dequantize_backward" else "_no_zero") + ("" if long else "_short_rows")
    marks += ("_wide_index" if wide_index else "") + ("_uneven" if uneven else "")
    return _case(
        f"{op}_{pair}_per_{_KINDS[kind]}{marks}", getattr(elementwise, op), pointers[op], integers,
        uneven=uneven, index="i64" if wide_index else "i32", KIND=kind, GROUP=group, LONG=long, INDEX64=wide_index,
        BLOCK=block, **more,
    )  # fmt: skip


def _add(element: str, a: str, b: str, code: str, zero: bool) -> Case:
    wide, z = _wide(element), "i32" if zero else None
    pointers = {
        "a": _CODES[a], "a_scale": wide, "a_zero": z, "b": _CODES[b], "b_scale": wide, "b_zero": z,
        "out": _CODES[code], "out_scale": wide, "out_zero": z,
    }  # fmt: skip
    name = f"add_{a}_{b}_{code}" + ("" if zero else "_no_zero")
    return _case(name, elementwise.add, pointers, "n qmin qmax", INDEX64=False, BLOCK=4 * _THREADS)


def _learned(by: str, element: str) -> Case:
    f, scale = _FLOATS[element], _wide(element)
    pointers: dict[str, str | None] = {
        "dy": f, "x": f, "scale": scale, "zero": "i32", "dx": f, "ds": "fp64", "dz": "fp64"
    }  # fmt: skip
    if by == "runs":
        integers = "runs length group groups pieces scales longest qmin qmax"
        return _case(f"learned_of_runs_{element}", learned.learned_of_runs, pointers, integers, 4,
                     INDEX64=False, RUNS=16, UNROLL=8)  # fmt: skip
    integers = "rows group groups bands columns tallest qmin qmax"
    return _case(f"learned_of_columns_{element}", learned.learned_of_columns, pointers, integers, 4,
                 INDEX64=False, BLOCK=128, UNROLL=8)  # fmt: skip


def _range(by: str, element: str, width: int = 0, absolute: bool = False) -> Case:
    wide, tile = _wide(element), 16 // _ITEM[element] * _THREADS
    pointers: dict[str, str | None] = {"x": _FLOATS[element], "lo": wide, "hi": wide, "nans": "i32"}
    name = f"range_of_{by}_{element}" + (f"_of_{width}" if width else "") + ("_absolute" if absolute else "")
    if by == "runs":
        return _case(name, reductions.range_of_runs, pointers, "runs length group groups pieces longest",
                     ABSOLUTE=absolute, INDEX64=False, UNIFORM=width < 256, PIECE=RANGE_PIECE, RUNS=tile // width,
                     WIDTH=width)  # fmt: skip
    return _case(name, reductions.range_of_columns, pointers, "rows group groups bands columns tallest",
                 ABSOLUTE=absolute, INDEX64=False, BAND=BAND, HEIGHT=tile // 256, BLOCK=256)  # fmt: skip


def _fold(name: str, element: str, symmetric: bool | None = None) -> Case:
    wide = _wide(element)
    shared: dict[str, Any] = {"INDEX64": False, "SCALES": 16, "WIDTH": 64}
    pointers: dict[str, str | None] = {"lo": wide, "hi": wide, "nans": "i32"}
    integers = "scales outer pieces columns"
    if symmetric is None:
        pointers |= {"out_lo": wide, "out_hi": wide, "out_nans": "i64"}
        return _case(f"{name}_{element}", reductions.whole_range, pointers, integers, **shared)
    pointers |= {"out_scale": wide, "out_zero": None if symmetric else "i32"}
    mode = "symmetric" if symmetric else "asymmetric"
    return _case(f"{name}_{mode}_{element}", reductions.parameters_from_ranges, pointers,
                 f"{integers} qmin qmax divisor", SYMMETRIC=symmetric, **shared)  # fmt: skip


def _fused(element: str, code: str, width: int, symmetric: bool, ragged: bool = False) -> Case:
    tile = 16 // _ITEM[element] * _THREADS
    wide, mode = _wide(element), "symmetric" if symmetric else "asymmetric"
    pointers = {"x": _FLOATS[element], "out": _CODES[code], "out_scale": wide, "out_zero": None if symmetric else "i32"}
    name = f"quantize_runs_{mode}_{element}_{code}_of_{width}" + ("_ragged" if ragged else "")
    return _case(name, reductions.quantize_runs, pointers,
                 "runs length group bytes_of_group groups qmin qmax divisor", SYMMETRIC=symmetric, INDEX64=False,
                 PACKED=code in ("s4", "u4"), UNIFORM=not ragged, RUNS=max(1, tile // width), WIDTH=width)  # fmt: skip


def _added(element: str, pieces: int) -> Case:
    wide = _wide(element)
    pointers: dict[str, str | None] = {"parts_s": "fp64", "parts_z": "fp64", "ds": wide, "dz": wide}
    return _case(f"add_in_order_{element}_by_{'pieces' if pieces > 1 else 'rows'}", learned.add_in_order, pointers,
                 "scales outer pieces columns", 4, INDEX64=False, BLOCK=128, ROWS_UNROLL=16 // pieces,
                 PIECES_UNROLL=pieces)  # fmt: skip


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
