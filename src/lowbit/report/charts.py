"""The charts of a report as inline SVG: size, error by layer, latency.

Marks are stretched to the width of the page (preserveAspectRatio="none") and labels are HTML beside them, so that both
fit phones and wide screens without a script.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lowbit.models.report import Latency, ModelReport, WeightRow
from lowbit.report.wording import decimal, escaped, size

# Kinds get the classes k0, k1, ... in order of falling bytes; style.css has seven colours that colour-blind readers can
# tell apart. Further kinds share the last.
_COLOURS = 7
_MAX_BARS = 240  # more cannot be told apart on a screen
_LARGEST = 10
_HIGHEST = 160  # decibels; more than float32 has
_FEWEST_SLOTS = 16  # limits the width of bars of small networks


def colours_of(rows: Iterable[WeightRow]) -> dict[str, int]:
    """The colour of each kind, in order of falling bytes.

    >>> colours_of([WeightRow("a", "Conv", (1,), "float32", bytes_before=1),
    ...             WeightRow("b", "Gemm", (9,), "float32", bytes_before=9)])
    {'Gemm': 0, 'Conv': 1}
    """
    held: Counter[str] = Counter()
    for row in rows:
        held[row.kind] += row.bytes_before
    return {kind: min(i, _COLOURS - 1) for i, (kind, _) in enumerate(held.most_common())}


def size_chart(report: ModelReport, colours: Mapping[str, int]) -> str:
    """The size of the file before and after, one bar of kinds each, to the same scale."""
    whole = max(report.bytes_before, report.bytes_after, sum(r.bytes_before for r in report.rows), 1)
    before, after = Counter[str](), Counter[str]()
    for row in report.rows:
        before[row.kind] += row.bytes_before
        after[row.kind] += row.bytes_after
    kinds = sorted(before, key=lambda kind: -before[kind])
    bars, rests = [], []
    for label, held, total in (("Before", before, report.bytes_before), ("After", after, report.bytes_after)):
        rests.append(max(total - held.total(), 0))
        parts = [(kind, f"k{colours[kind]}", held[kind]) for kind in kinds]
        at, marks = 0.0, []
        for kind, colour, count in (*parts, ("everything else", "rest", rests[-1])):
            if count > 0:
                title = f"<title>{escaped(kind)}: {size(count)}</title>"
                marks.append(
                    f'<rect class="part {colour}" x="{at:.2f}" y="0" width="{1000 * count / whole:.2f}" height="10">'
                    f"{title}</rect>"
                )
            at += 1000 * count / whole
        bars.append(_bar(label, _svg(marks, 1000, 10, f"{label}: {size(total)}"), size(total)))
    entries = [(f"k{colours[kind]}", kind, f"{size(before[kind])} → {size(after[kind])}") for kind in kinds[:_COLOURS]]
    if len(kinds) > _COLOURS:
        entries[-1] = (f"k{_COLOURS - 1}", f"{len(kinds) - _COLOURS + 1} other kinds", "")
    if max(rests) > 0:
        entries.append(("rest", "everything else", " → ".join(map(size, rests))))
    return f'<div class="sizes">{"".join(bars)}</div>{_legend(entries)}'


def largest_layers(rows: Sequence[WeightRow], colours: Mapping[str, int]) -> str:
    """The largest weights: before as a pale bar, after as a full one."""
    largest = sorted(rows, key=lambda r: -r.bytes_before)[:_LARGEST]
    whole = max((max(r.bytes_before, r.bytes_after) for r in largest), default=0)
    if whole == 0:
        return ""
    lines = []
    for row in largest:
        label = f"{row.name}: {size(row.bytes_before)} before, {size(row.bytes_after)} after"
        marks = [
            f'<rect class="{shade} k{colours[row.kind]}" x="0" y="0" width="{1000 * held / whole:.2f}" height="10"/>'
            for shade, held in (("was", row.bytes_before), ("part", row.bytes_after))
        ]
        lines.append(
            f'<li><span class="name" title="{escaped(row.name)}">{escaped(row.name)}</span>'
            f"{_svg(marks, 1000, 10, label)}"
            f'<span class="figures">{size(row.bytes_before)} → <b>{size(row.bytes_after)}</b></span></li>'
        )
    return f'<h3>Largest weights</h3><ol class="largest">{"".join(lines)}</ol>'


def error_chart(rows: Sequence[WeightRow], colours: Mapping[str, int]) -> str:
    """The relative error of each quantized weight on a logarithmic scale, in the order of the model; of very many, the
    largest of neighbouring ones."""
    known = [(i, r, r.sqnr_db) for i, r in enumerate(rows) if r.treated and r.sqnr_db is not None]
    if not known:
        return '<p class="none">No weight was quantized with a measured error.</p>'
    low, high = _decades([s for _, _, s in known])
    few = math.ceil(len(known) / _MAX_BARS)
    groups = [known[at : at + few] for at in range(0, len(known), few)]
    marks = []
    for slot, group in enumerate(groups):
        index, row, sqnr = min(group, key=lambda entry: _badness(entry[2]))
        height = 100.0 if math.isnan(sqnr) else 100 * min(max((_exponent(sqnr) - low) / (high - low), 0.008), 1)
        extra = " nan" if math.isnan(sqnr) else " exact" if math.isinf(sqnr) and sqnr > 0 else ""
        title = f"{row.name}\n{row.kind}, {row.described}\n{_error(sqnr)}"
        if len(group) > 1:
            title += f"\nthe largest of {len(group)} neighbours"
        marks.append(
            f'<g data-row="{index}"><title>{escaped(title)}</title>'
            f'<rect class="hit" x="{slot}" y="0" width="1" height="100"/>'
            f'<rect class="bar k{colours[row.kind]}{extra}" x="{slot + 0.1:.1f}" y="{100 - height:.2f}" '
            f'width="0.8" height="{height:.2f}"/></g>'
        )
    ticks = "".join(
        f'<i style="bottom:{100 * (at - low) / (high - low):.2f}%"><span>{_percent(10.0**at)}</span></i>'
        for at in range(low, high + 1, math.ceil((high - low) / 6))
    )
    shown = Counter(r.kind for _, r, _ in known)
    entries = [(f"k{colours[kind]}", kind, f"{n}") for kind, n in shown.most_common()]
    if any(s == math.inf for _, _, s in known):
        entries.append(("exact rest", "no error", ""))
    if any(math.isnan(s) for _, _, s in known):
        entries.append(("nan", "not a number", ""))
    label = f"Relative error of {len(known)} weights in percent, in the order of the model; lower is better"
    return (
        f'<div class="plot" id="errors"><div class="ticks" aria-hidden="true">{ticks}</div>'
        f"{_svg(marks, max(len(groups), _FEWEST_SLOTS), 100, label)}</div>{_legend(entries[: _COLOURS + 2])}"
        + (f'<p class="hint">Each bar is the largest of up to {few} neighbouring weights.</p>' if few > 1 else "")
        + _worst(known)
    )


def _exponent(sqnr: float) -> float:
    """log10 of the relative error, the RMS of the noise over that of the signal."""
    return -min(max(sqnr, -_HIGHEST), _HIGHEST) / 20


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The exponents of the powers of ten between which the errors lie."""
    exponents = [_exponent(s) for s in values if math.isfinite(s)] or [-2.0]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    return low, max(high, low + 1)


def latency_chart(runs: Sequence[Latency]) -> str:
    """Medians as bars and their 95 % confidence intervals as lines, to the same scale."""
    times = [t for r in runs for t in (r.float_ms, r.quantized_ms, *r.float_interval, *r.quantized_interval)]
    whole = max(filter(math.isfinite, times), default=0.0)
    made = []
    for run in runs:
        lines = []
        for label, median, (low, high), colour in (
            ("float", run.float_ms, run.float_interval, "rest"),
            ("quantized", run.quantized_ms, run.quantized_interval, "accent"),
        ):
            marks = []
            if whole > 0 and math.isfinite(median):
                marks.append(
                    f'<rect class="part {colour}" x="0" y="2" width="{1000 * median / whole:.2f}" height="8"/>'
                )
            spread = ""
            if math.isfinite(low) and math.isfinite(high):
                spread = f", 95 % confidence interval {decimal(low, 3)} to {decimal(high, 3)} ms"
                if whole > 0:
                    a, b = 1000 * low / whole, 1000 * high / whole
                    marks.append(f'<path class="interval" d="M{a:.2f} 6H{b:.2f}M{a:.2f} 3V9M{b:.2f} 3V9"/>')
            title = f"{label}: {decimal(median, 3)} ms{spread}"
            chart = _svg([f"<title>{title}</title>", *marks], 1000, 12, title)
            lines.append(_bar(label, chart, f"{decimal(median, 3)} ms"))
        threads = f"{run.threads} thread{'s' * (run.threads != 1)}"
        mood, slower = ("good", "") if run.speedup >= 1 else ("bad", ": slower")
        made.append(
            f'<div class="run"><p><b>{escaped(run.runtime)}</b>, {escaped(run.shape)}, {threads}: '
            f'<b class="{mood}">{run.speedup:.2f}× as fast{slower}</b></p>{"".join(lines)}</div>'
        )
    return "".join(made)


def _worst(known: Sequence[tuple[int, WeightRow, float]]) -> str:
    worst = sorted(known, key=lambda entry: _badness(entry[2]))[:5]
    buttons = "".join(
        f'<li><button type="button" class="link name" data-row="{i}">{escaped(r.name)}</button> '
        f'<span class="figures">{_error(s)}</span></li>'
        for i, r, s in worst
    )
    return f'<h3>Largest errors</h3><ol class="worst">{buttons}</ol>'


def _badness(sqnr: float) -> float:
    return -math.inf if math.isnan(sqnr) else sqnr  # NaN is the worst


def _error(sqnr: float) -> str:
    """The relative error, and the SQNR."""
    if math.isnan(sqnr) or sqnr == math.inf:
        return "not a number" if math.isnan(sqnr) else "no error"
    db = decimal(sqnr) if abs(sqnr) > _HIGHEST else f"{sqnr:.1f}".replace("-", "−")
    return f"{_percent(10 ** _exponent(sqnr))} ({db} dB)"


def _percent(share: float) -> str:
    """A share in percent, with two significant digits.

    >>> _percent(1.0), _percent(0.00891), _percent(1e-8), _percent(10.0)
    ('100 %', '0.89 %', '1e-06 %', '1,000 %')
    """
    value = float(f"{100 * share:.2g}")
    return f"{value:,.0f} %" if value >= 100 else f"{value:g} %"


def _bar(label: str, chart: str, figure: str) -> str:
    return f'<div class="size"><span>{label}</span>{chart}<b>{figure}</b></div>'


def _svg(marks: Iterable[str], width: int, height: int, label: str) -> str:
    return (
        f'<svg role="img" aria-label="{escaped(label)}" viewBox="0 0 {width} {height}" preserveAspectRatio="none">'
        f"{''.join(marks)}</svg>"
    )


def _legend(entries: Iterable[tuple[str, str, str]]) -> str:
    items = "".join(
        f'<li><i class="swatch {colour}"></i>{escaped(label)}<span>{escaped(more)}</span></li>'
        for colour, label, more in entries
    )
    return f'<ul class="legend">{items}</ul>'
