"""Write the table of kernel families in docs/internals/kernels.md, from core/kernels/families.inc.

python scripts/kernel_table.py            write the table
python scripts/kernel_table.py --check    write nothing; fail where the table differs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "core" / "kernels"
PAGE = ROOT / "docs" / "internals" / "kernels.md"
_BEGIN, _END = "<!-- kernel families: python scripts/kernel_table.py -->\n", "<!-- end -->\n"
_FAMILY = re.compile(r'^FAMILY\((\w+), (\w+), (\w+), \(([^)]*)\),\s*"([^"]*)"\)$', re.MULTILINE)


class Family(NamedTuple):
    name: str
    keys: str  # members of a row that tell it from the others
    computes: str
    rows: int


def families() -> Iterator[Family]:
    for name, _, _, keys, computes in _FAMILY.findall((KERNELS / "families.inc").read_text()):
        table = KERNELS / name / "kernels.inc"
        rows = len(re.findall(r"^ROW\(", table.read_text(), re.MULTILINE)) if table.exists() else 1
        yield Family(name, keys.replace("r.", ""), computes, rows)


def table() -> str:
    head = "| family | computes | a row for each | rows |\n|---|---|---|---|\n"
    return head + "".join(f"| `{f.name}` | {f.computes} | {f.keys} | {f.rows} |\n" for f in families())


def page() -> str:
    before, rest = PAGE.read_text().split(_BEGIN)
    return before + _BEGIN + "\n" + table() + "\n" + _END + rest.split(_END)[1]


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif PAGE.read_text() != wanted:
        sys.exit(f"{PAGE}: the table differs from core/kernels/families.inc; run python scripts/kernel_table.py")
