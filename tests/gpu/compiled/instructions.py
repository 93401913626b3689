"""Which instructions each kernel becomes on each target, as docs/internals/gpu_instructions.md has them.

    PYTHONPATH=tests python -m gpu.compiled.instructions > docs/internals/gpu_instructions.md

Compiles every case for every target: minutes in all.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ProcessPoolExecutor

from gpu.compiled.ahead import TARGETS, compile_case
from gpu.compiled.cases import CASES

HEADER = """\
# Kernels and the instructions they become

Made by `PYTHONPATH=tests python -m gpu.compiled.instructions` and checked by `tests/gpu/test_ahead.py`; do not edit.
Compiled by Triton 3.9 for GPUs that were not there: it shows what would run, not how fast. Left out are moves,
addresses and the like; `.aligned`, `.row.col` and `cta_group` are dropped from names. A dash: nothing of this kind,
plain arithmetic.

| kernel | target | instructions |
|---|---|---|
"""

# What tells how a kernel computes: matrix units, dot products of bytes, divisions, fused operations, conversions that
# round. Only what multiplies floats and adds in one step is fused: mad.lo.s32 and v_mad_u32 are integer arithmetic.
_MATRIX = r"mma\.sync\S*|wgmma\.mma_async\S*|tcgen05\.mma\S*|v_s?mfmac?_\w+|v_wmma_\w+"
_DOT = r"dp4a\.\S+|v_dot4\w*"
_DIVISION = r"div\.\w+(?:\.ftz)?\.f\d+|v_div_fixup_f\d+"
FUSED = r"\bfma\.rn\.\S+|\bv_(?:dual_|pk_)?(?:fma|fmac|fmaak|fmamk|mad|mac)_f\d+\w*"
_OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*(?:[.:]+\w+)*)", re.M)


def opcodes(texts: dict[str, str]) -> list[str]:
    """Every instruction of the emitted text, in order: what stands first on its line, or after its predicate."""
    return _OPCODE.findall(texts["ptx"] if "ptx" in texts else texts["amdgcn"])


def instructions(texts: dict[str, str]) -> list[str]:
    """Those that matter, each once: the matrix unit's or byte products where there are any, and divisions.

    Fused operations are named where they do the products; on AMD they are also the steps of a division.
    """
    found = sorted(set(opcodes(texts)))
    product = [f for f in found if re.fullmatch(_MATRIX, f)] or [f for f in found if re.fullmatch(_DOT, f)]
    division = [f for f in found if re.fullmatch(_DIVISION, f)]
    steps = [] if product or division else [f for f in found if re.fullmatch(FUSED, f)]
    return [*product, *division, *steps]


def cell(texts: dict[str, str]) -> str:
    """One cell of the table."""
    short = (re.sub(r"\.aligned|\.row\.col|\.cta_group::1", "", name) for name in instructions(texts))
    return ", ".join(f"`{name}`" for name in short) or "–"


def pairs() -> list[tuple[int, str]]:
    """(number of a case, target) of everything that is compiled."""
    return [(i, target) for i, case in enumerate(CASES) for target in case.targets]


def emitted(pair: tuple[int, str]) -> dict[str, str]:
    """The last texts of a case on a target, for another process."""
    texts = compile_case(CASES[pair[0]], pair[1])
    return {name: texts[name] for name in ("ptx", "amdgcn", "llir", "shared") if name in texts}


def rows(of: dict[tuple[int, str], str]) -> dict[tuple[str, str], str]:
    """Cells by (kernel, target), of cells by pair. Where no case of a name serves a target, the reason."""
    found = {}
    for i, case in enumerate(CASES):
        for target in TARGETS:
            if (i, target) in of:
                found[case.name, target] = of[i, target]
            elif target not in case.targets:
                found.setdefault((case.name, target), f"not compiled: {case.not_on[target]}")
    return found


def table(cells: dict[tuple[str, str], str]) -> str:
    """The document: targets of a kernel with the same instructions share a line."""
    lines = []
    for kernel in dict.fromkeys(name for name, _ in cells):
        own = {target: cells[kernel, target] for target in TARGETS if (kernel, target) in cells}
        for text in dict.fromkeys(own.values()):
            lines.append(f"| {kernel} | {', '.join(t for t in own if own[t] == text)} | {text} |")
    return HEADER + "\n".join(lines) + "\n"


def _cell_of(pair: tuple[int, str]) -> str:
    return cell(emitted(pair))


def main() -> None:
    wanted = pairs()
    with ProcessPoolExecutor() as pool:
        sys.stdout.write(table(rows(dict(zip(wanted, pool.map(_cell_of, wanted), strict=True)))))


if __name__ == "__main__":
    main()
