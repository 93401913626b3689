"""Loss over true bits, one line per method and one picture per bed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter, ScalarFormatter

_MARKS = "osD^vP*X<>"
_HIGHEST = 300.0  # percent of perplexity: what is worse is left out


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws the best row of each method at every number of true bits, with its standard error."""
    judged = [row for row in rows if "true bits" in row]
    beds = list(dict.fromkeys(row["bed"] for row in judged))
    if not beds:
        raise ValueError(f"{path}: there are no rows to draw")
    figure, axes = plt.subplots(1, len(beds), figsize=(6.4 * len(beds), 4.8), squeeze=False)
    for axis, bed in zip(axes[0], beds, strict=True):
        of_bed = [row for row in judged if row["bed"] == bed]
        for mark, method in zip(_MARKS * 3, dict.fromkeys(row["method"] for row in of_bed), strict=False):
            _line(axis, [row for row in of_bed if row["method"] == method], method, mark)
        percent = of_bed[0]["unit"].startswith("%")
        axis.set(title=bed, xlabel="true bits per weight", ylabel=f"loss, {of_bed[0]['unit']}")
        axis.set_yscale("log" if percent else "linear")
        if percent:
            axis.yaxis.set_major_formatter(ScalarFormatter())
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _line(axis: Any, rows: Sequence[Mapping[str, Any]], label: str, mark: str) -> None:
    best: dict[float, Mapping[str, Any]] = {}
    for row in rows:
        if row["unit"].startswith("%") and not 0 < row["loss"] <= _HIGHEST:
            continue
        known = best.get(row["true bits"])
        if known is None or row["loss"] < known["loss"]:
            best[row["true bits"]] = row
    drawn = sorted(best.items())
    if drawn:
        bits, found = zip(*drawn, strict=True)
        errors = [row["loss error"] for row in found]
        axis.errorbar(bits, [row["loss"] for row in found], errors, label=label, marker=mark, ms=4, lw=1, capsize=2)
