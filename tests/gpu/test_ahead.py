"""Kernels compiled for GPUs that are not there: what must, and what must not, be in the emitted text.

A quick tier compiles every case for one target of NVIDIA and one of AMD, in turn, and one product for all; the deep
tier compiles everything. The table in docs/internals/gpu_instructions.md is held against what is compiled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

if os.environ.get("TRITON_INTERPRET"):
    raise RuntimeError("these tests compile kernels; run them in a process of their own without TRITON_INTERPRET")

from gpu.compiled import instructions as emitted
from gpu.compiled.ahead import AMD, NVIDIA, TARGETS, Case, backend_of, compile_case
from gpu.compiled.cases import CASES
from lowbit.gpu.language import jit, tl
from lowbit.numerics.errors import InvalidProblem, Unsupported

Pair = tuple[int, str]
Texts = dict[str, str]
DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "gpu_instructions.md"
EVERYWHERE = "int8_gemm s8·s8 → bf16, 64 rows"
# Bytes of shared memory that a block may have; AMD: of LDS.
FUSED = (r"fma\.rn\.f32", r"v_\w*fma\w*_f32\w*")
SHARED = {"sm_75": 65536, "sm_80": 166912, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}


def quick(pair: Pair) -> bool:
    i, target = pair
    return CASES[i].name == EVERYWHERE or target in (NVIDIA[i % len(NVIDIA)], AMD[i % len(AMD)], _only(i))


def _only(i: int) -> str:
    """A target for cases that the turn would leave with none."""
    turn = {NVIDIA[i % len(NVIDIA)], AMD[i % len(AMD)]}
    return "" if turn & set(CASES[i].targets) else CASES[i].targets[-1]


PAIRS = [
    pytest.param(p, id=f"{CASES[p[0]].name} {p[1]}", marks=() if quick(p) else pytest.mark.deep)
    for p in emitted.pairs()
]


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[dict[Pair, Future[Texts]]]:
    """The texts of every pair that is going to be asked for, made by all cores at once."""
    items = (getattr(item, "callspec", None) for item in request.session.items)
    wanted = dict.fromkeys(spec.params["pair"] for spec in items if spec is not None and "pair" in spec.params)
    with ProcessPoolExecutor() as pool:
        yield {pair: pool.submit(emitted.emitted, pair) for pair in wanted}


def fused(texts: Texts) -> int:
    """How many fused multiply-adds of floats the text has, beyond AMD's divisions: five steps of each are fused."""
    if "ptx" in texts:
        return len(re.findall(r"\bfma\.", texts["ptx"]))
    code = texts["amdgcn"]
    return len(re.findall(emitted.FUSED, code)) - 5 * len(re.findall(r"\bv_div_fixup_f\d+", code))


def parsed(document: str) -> dict[tuple[str, str], str]:
    """The cells of a document that `emitted.table` made."""
    cells = {}
    for line in document.split("|---|---|---|\n")[1].splitlines():
        kernel, targets, text = line.strip("| ").split(" | ")
        cells.update({(kernel, target): text for target in targets.split(", ")})
    return cells


def is_matrix_product(case: Case) -> bool:
    return case.kernel.__name__ in ("int8_gemm", "int8_conv2d")


def expected_product(case: Case, target: str) -> str | None:
    """A pattern of the instruction that a product must be made of; None where it is no product of bytes or floats."""
    kernel = case.kernel.__name__
    amd_matrix = "v_wmma" if target == "gfx1100" else "v_mfma"
    if is_matrix_product(case):
        if target in AMD:
            return rf"{amd_matrix}_i32_\w*i\w*8"
        if case.constexprs["TILE"].rows >= 64 and target in ("sm_90", "sm_100"):
            return r"wgmma\.mma_async\S*\.s32\.s8\.s8" if target == "sm_90" else r"tcgen05\.mma\S*kind::i8"
        return r"mma\.sync\S*m16n8k32\S*\.satfinite\.s32\.s8\.s8\.s32"
    if kernel.endswith("dp4a"):
        return r"dp4a\.s32\.s32" if target in NVIDIA else r"v_dot4c?_i32_i\w*8\w*"
    if kernel == "int4_gemm":
        x = {"*fp16": "f16", "*bf16": "bf16", "*fp32": "f32"}[case.signature["x"]]
        if target in AMD:
            return rf"{amd_matrix}_f32_\w*{x}\w*" if x != "f32" or target != "gfx1100" else FUSED[1]
        if target == "sm_75" or x == "f32":  # no Tensor Cores: Triton's on Turing, and those of f32 round to tf32
            return FUSED[0]
        if case.constexprs["TILE"].rows >= 64 and target in ("sm_90", "sm_100"):
            return rf"wgmma\.mma_async\S*\.{x}\.{x}" if target == "sm_90" else r"tcgen05\.mma\S*kind::f16"
        return rf"mma\.sync\S*m16n8k16\S*f32\.{x}\.{x}\.f32"
    return None


@pytest.mark.parametrize("pair", PAIRS)
def test_emitted_text(pair: Pair, compiled: dict[Pair, Future[Texts]]) -> None:
    case, target = CASES[pair[0]], pair[1]
    texts = compiled[pair].result()
    opcodes = emitted.opcodes(texts)
    assert len(opcodes) > 20

    product = expected_product(case, target)
    if product is not None:
        assert any(re.fullmatch(product, opcode) for opcode in opcodes), f"no {product}"

    # Division: as IEEE rounds it, and nothing else; nothing flushed to zero.
    for opcode in opcodes:
        assert not re.match(r"div\.(full|approx)|rcp\.approx|sqrt|ex2|lg2", opcode), opcode
        assert ".ftz" not in opcode, opcode

    # Contraction: no product of floats is added without being rounded, but where there is no matrix unit for floats.
    # AMD turns an f32 to an i64 by its floor and a fused step: only rne(bias / (sa * sb)) does that.
    if product not in FUSED:
        steps = (
            target in AMD and "RULES" in case.constexprs and getattr(case.constexprs["RULES"], "BIAS", "") == "steps"
        )
        conversions = len(re.findall(r"\bv_floor_f32", texts["amdgcn"])) if steps else 0
        assert fused(texts) == conversions

    # Memory: nothing spilled, and no more shared memory than there is.
    if target in NVIDIA:
        assert not re.search(r"\.local\b", texts["ptx"])
    else:
        assert re.search(r"\.private_segment_fixed_size: 0\b", texts["amdgcn"])
        assert re.search(r"\.vgpr_spill_count: 0\b", texts["amdgcn"])
    assert int(texts["shared"]) <= SHARED.get(target, 65536)

    committed = parsed(DOCUMENT.read_text(encoding="utf-8"))
    assert emitted.cell(texts) == committed[case.name, target]


def test_document_has_every_kernel_and_target() -> None:
    """Every name on every target: instructions, or the reason why not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    committed = parsed(text)
    assert text == emitted.table(committed)
    assert set(committed) == {(case.name, target) for case in CASES for target in TARGETS}
    nothing = {(name, target) for (name, target), cell in committed.items() if cell.startswith("not compiled")}
    unserved = {
        (c.name, t) for c in CASES for t in TARGETS if not any(t in o.targets for o in CASES if o.name == c.name)
    }
    assert nothing == unserved
    assert {target for _, target in nothing} == {"sm_75"}
    assert "DP4A path" in committed[EVERYWHERE, "sm_75"]


def test_every_case_has_a_quick_target() -> None:
    chosen = [p for p in emitted.pairs() if quick(p)]
    assert {i for i, _ in chosen} == set(range(len(CASES)))
    assert {target for _, target in chosen} == set(TARGETS)


def test_saturating_sums_cannot_saturate() -> None:
    """`.satfinite` stops at int32's ends; the host refuses a k with which a sum of products of bytes could be there."""
    from lowbit.gpu.launch_compute import MAX_DEPTH

    assert 128 * 128 * MAX_DEPTH < 2**31 <= 128 * 128 * (MAX_DEPTH + 1)


@jit
def _hasty(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.fma(v, v, 1.0) / (v + 3.0), mask=i < n)


@jit
def _foreign(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    v = tl.load(x + tl.arange(0, BLOCK))
    v = tl.inline_asm_elementwise("cvt.rni.f32.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + tl.arange(0, BLOCK), v)


def test_checks_can_fail() -> None:
    """What the text of a kernel that divides and fuses carelessly shows."""
    hasty = Case("hasty", _hasty, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"BLOCK": 128}, ("x", "y"))
    texts = compile_case(hasty, "sm_80")
    assert emitted.instructions(texts) == ["div.full.f32"]
    assert fused(texts) == 1
    assert fused(compile_case(hasty, "gfx942")) == 1
    same = {("a", target): emitted.cell(texts) for target in ("sm_80", "sm_90")}
    assert parsed(emitted.table(same)) == dict.fromkeys(same, "`div.full.f32`")


def test_assembly_of_another_maker_is_refused() -> None:
    """Triton compiles this for AMD without an error, to a binary that does something else."""
    case = Case("foreign", _foreign, {"x": "*fp32", "y": "*fp32"}, {"BLOCK": 128})
    assert "cvt.rni.f32.f32" in emitted.opcodes(compile_case(case, "sm_75"))
    with pytest.raises(InvalidProblem, match="NVIDIA assembly in code for gfx942"):
        compile_case(case, "gfx942")


def test_what_cannot_be_compiled() -> None:
    case = next(c for c in CASES if "sm_75" in c.not_on and "sm_80" in c.targets)
    with pytest.raises(Unsupported, match="DP4A path"):
        compile_case(case, "sm_75")
    with pytest.raises(InvalidProblem, match="expected one of sm_75"):
        backend_of("sm_70")
    with pytest.raises(InvalidProblem, match=r"unknown arguments \['nothing'\], missing arguments \[\]"):
        compile_case(replace(case, divisible=("nothing",)), "sm_80")
