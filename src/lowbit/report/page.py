"""The HTML page of a report: headline, charts, table of layers, measurements, and the report as JSON.

Names may come from untrusted files. Text goes through `escaped`, the script sets text and never HTML, and a content
security policy allows only the page's own script and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from lowbit.models.report import ModelReport
from lowbit.report.charts import colours_of, error_chart, largest_layers, latency_chart, size_chart
from lowbit.report.wording import decimal, escaped, size, times
from lowbit.runtime.files.atomic import written_whole

_MAX_NAMED = 8  # of the weights that were not quantized; the table has all


def write_html(report: ModelReport, path: str | os.PathLike[str]) -> None:
    """Write the page atomically."""
    page = html(report)
    with written_whole(path) as file:
        file.write(page)


def html(report: ModelReport) -> str:
    """The report as one page that works offline, on phones, in dark mode, in print and by keyboard.

    >>> page = html(ModelReport("a.onnx", "b.onnx", "onnx", {"name": "W8A8"}, [], 1000, 250))
    >>> page.startswith("<!doctype html>"), "4.00×" in page
    (True, True)
    """
    script = '"use strict";\n' + _asset("table.js") + _asset("histograms.js") + _asset("controls.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # JSON never needs a bare "<", so that no name can end the block; ASCII preserves lone surrogates.
    data = json.dumps(report.to_dict(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = (_headline, _warnings, _skipped, _charts, _layers, _histograms, _measured, _notes, _provenance)
    body = "".join(part(report) for part in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; base-uri 'none'; form-action 'none'; script-src 'sha256-{allowed}'\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escaped(_name(report))}, quantized</title>\n<style>\n{_asset('style.css')}</style>\n</head>\n"
        f"<body>\n<main>{body}</main>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


@cache
def _asset(name: str) -> str:
    return (resources.files("lowbit.report") / name).read_text(encoding="utf-8")


def _name(report: ModelReport) -> str:
    return os.path.basename(report.source.rstrip("/\\")) or report.source or "model"


def _headline(report: ModelReport) -> str:
    recipe = str(report.recipe.get("name", "")) or "custom"
    what = f"{escaped(recipe)} · {escaped(report.format)}"
    if report.target:
        what += f" · written to <bdi>{escaped(report.target)}</bdi>"
    tiles = "".join(
        f'<div class="tile {mood}"><dt>{label}</dt><dd>{figure}</dd><dd class="more">{more}</dd></div>'
        for label, figure, more, mood in _tiles(report)
    )
    return (
        '<header><div class="title"><p class="eyebrow">lowbit report</p>'
        f'<h1><bdi>{escaped(_name(report))}</bdi></h1><p class="what">{what}</p></div>'
        '<div class="actions"><button type="button" id="theme">Dark</button>'
        '<button type="button" id="copy">Copy JSON</button><button type="button" id="download">Download JSON</button>'
        f'</div></header><dl class="tiles">{tiles}</dl>'
    )


def _tiles(report: ModelReport) -> Iterator[tuple[str, str, str, str]]:
    """(label, figure, detail, mood) of each tile of the headline."""
    arrow = f"{size(report.bytes_before)} → {size(report.bytes_after)}"
    if report.bits_per_weight is not None:
        arrow += f", {report.bits_per_weight:.2f} bits per weight"
    ratio = times(report.ratio) if report.bytes_before else "–"
    yield "Size reduction", ratio, arrow, "" if report.ratio >= 1 else "bad"
    speedups = sorted(run.speedup for run in report.latency if math.isfinite(run.speedup))
    if speedups:
        spread = times(speedups[0]) if len(speedups) == 1 else f"{speedups[0]:.2f}–{times(speedups[-1])}"
        first = report.latency[0]
        more = f"{decimal(first.float_ms, 3)} → {decimal(first.quantized_ms, 3)} ms, {escaped(first.runtime)}"
        if len(report.latency) > 1:
            more = f"in {len(report.latency)} settings"
        yield "Speed-up", spread, more, "" if speedups[0] >= 1 else "bad"
    else:
        yield "Speed-up", "–", "not measured", "absent"
    outputs = [a for a in report.accuracy if math.isfinite(a.cosine)]
    worst = min(outputs, key=lambda a: a.cosine) if outputs else None
    cosine = f"cosine {worst.cosine:.5f}" if worst else ""
    if report.metrics:
        metric = report.metrics[0]
        more = f"float {decimal(metric.float_value)}" + (f", {cosine}" if cosine else "")
        yield escaped(metric.name), decimal(metric.quantized_value), more, ""
    elif worst:
        more = f"of the outputs, SQNR {decimal(worst.sqnr_db, 3)} dB"
        yield "Cosine", f"{worst.cosine:.5f}", more, ""
    else:
        yield "Accuracy", "–", "not measured", "absent"
    treated, skipped = len(report.treated), len(report.skipped)
    more = f"{skipped} requested but not quantized" if skipped else "all that the recipe requests"
    if not treated and not skipped:
        more = "the recipe requests none"
    figure = f"{treated:,} <small>of {len(report.rows):,}</small>"
    yield "Weights quantized", figure, more, "warn" if skipped else ""


def _warnings(report: ModelReport) -> str:
    if not report.warnings:
        return ""
    items = "".join(f"<li><span>{escaped(text)}</span></li>" for text in report.warnings)
    noun = "warning" if len(report.warnings) == 1 else "warnings"
    return f'<aside class="warning texts" role="note"><h2>{len(report.warnings)} {noun}</h2><ul>{items}</ul></aside>'


def _skipped(report: ModelReport) -> str:
    skipped = report.skipped
    if not skipped:
        return ""
    items = "".join(
        f'<li><span class="name">{escaped(row.name)}</span> '
        f"<span>{escaped(row.why_not or 'no reason given')}</span></li>"
        for row in skipped[:_MAX_NAMED]
    )
    others = len(skipped) - _MAX_NAMED
    more = f'<p><button type="button" class="link" id="skipped">and {others:,} more</button></p>' if others > 0 else ""
    noun = "weight was" if len(skipped) == 1 else "weights were"
    return (
        f'<aside class="warning" role="note"><h2>{len(skipped):,} {noun} requested but not quantized</h2>'
        f"<ul>{items}</ul>{more}</aside>"
    )


def _charts(report: ModelReport) -> str:
    colours = colours_of(report.rows)
    sizes, errors = size_chart(report, colours), error_chart(report.rows, colours)
    about = (
        '<p class="about">Relative error of each quantized weight: the RMS of the quantization error in percent of the '
        "RMS of the weight, on a logarithmic scale. Lower is better. Select a bar to see its layer.</p>"
    )
    return _section("Size", sizes + largest_layers(report.rows, colours), "sizes") + _section(
        "Error by layer", about + errors if "<svg" in errors else errors, "error"
    )


def _layers(report: ModelReport) -> str:
    if not report.rows:
        return _section("Layers", '<p class="none">The model has no weights that could be quantized.</p>', "layers")
    about = []
    if any(row.predicted_db is not None for row in report.rows):
        methods = "; ".join(map(escaped, report.methods))
        about.append(f"{methods}. Outputs dB: the SQNR of a layer's outputs that statistics of its inputs predict.")
    if any(row.guard_db >= 0.05 for row in report.rows):
        about.append(
            "In brackets: the decibels that a weight gives up so that integer sums are exact on CPUs without VNNI; "
            "--target-cpu vnni leaves that out."
        )
    told = "".join(f'<p class="about">{text}</p>' for text in about)
    kinds = "".join(f"<option>{escaped(kind)}</option>" for kind in sorted({r.kind for r in report.rows}))
    return _section(
        "Layers",
        f"{told}"
        '<div class="filters"><label>Filter <input id="filter" type="search" placeholder="name, dtype, reason …" '
        'autocomplete="off" spellcheck="false"></label>'
        f'<label>Kind <select id="kind"><option value="">all</option>{kinds}</select></label>'
        '<label>State <select id="state"><option value="">all</option><option value="treated">quantized</option>'
        '<option value="skipped">requested, not quantized</option><option value="left">left float</option></select>'
        '</label><output id="shown" aria-live="polite"></output></div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Layers"><table id="layers"><thead></thead>'
        "<tbody></tbody></table></div>"
        "<noscript><p>The table and the histograms need JavaScript; the numbers are in this file as JSON.</p>"
        "</noscript>",
        "table",
    )


def _histograms(report: ModelReport) -> str:
    if not report.histograms:
        return ""
    about = (
        '<p class="about">Distribution of values, with counts on a logarithmic scale. Lines mark the clipping range; '
        "values in the shaded part are clipped to it.</p>"
    )
    choice = '<label>Show <select id="histogram"></select></label>'
    return _section("Histograms", f'{about}<div class="filters">{choice}</div><div id="gallery"></div>', "spread")


def _measured(report: ModelReport) -> str:
    parts = []
    if report.metrics:
        rows = []
        for m in report.metrics:
            difference = f"{m.quantized_value - m.float_value:+.4g}".replace("-", "−")
            rows.append((escaped(m.name), decimal(m.float_value, 6), decimal(m.quantized_value, 6), difference))
        parts.append("<h3>Your metric</h3>" + _table(("metric", "float", "quantized", "difference"), rows))
    if report.accuracy:
        outputs = [
            (escaped(a.output), decimal(a.sqnr_db, 4), f"{a.cosine:.6f}", decimal(a.max_error), f"{a.samples:,}")
            for a in report.accuracy
        ]
        heads = ("output", "SQNR dB", "cosine", "largest error", "samples")
        where = f", on the {escaped(report.compared_on)}" if report.compared_on else ""
        parts.append(f"<h3>Outputs against float{where}</h3>" + _table(heads, outputs))
    if report.latency:
        about = "Bars are medians of interleaved runs; lines are 95 % confidence intervals of the median."
        parts.append(f'<h3>Latency</h3><p class="about">{about}</p>{latency_chart(report.latency)}')
    if not parts:
        parts.append('<p class="none">The models were not run: accuracy and latency need data (--data).</p>')
    return _section("Measured", "".join(parts), "measured")


def _notes(report: ModelReport) -> str:
    if not report.notes:
        return ""
    return _section("Notes", "<ul>" + "".join(f"<li>{escaped(n)}</li>" for n in report.notes) + "</ul>", "notes")


def _provenance(report: ModelReport) -> str:
    recipe = escaped(json.dumps(report.to_dict()["recipe"], indent=2, ensure_ascii=False))
    facts = [("source", report.source), ("target", report.target)]
    if report.seconds:
        facts.append(("duration", f"{report.seconds:.1f} s"))
    if report.lowbit_version:
        facts.append(("lowbit", report.lowbit_version))
    facts += _flat(report.machine)
    listed = "".join(f"<div><dt>{escaped(k)}</dt><dd>{escaped(v)}</dd></div>" for k, v in facts if v != "")
    return _section("Recipe", f"<pre>{recipe}</pre>", "recipe") + _section(
        "Machine and versions", f'<dl class="facts">{listed}</dl>', "machine"
    )


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    made: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            made += _flat(value, f"{above}{key} ")
        else:
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            made.append((f"{above}{key}", ", ".join(map(str, value)) if listed else str(value)))
    return made


def _section(title: str, inner: str, name: str) -> str:
    heading = f'<h2 id="title-{name}">{title}</h2>'
    return f'<section id="section-{name}" aria-labelledby="title-{name}">{heading}{inner}</section>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small table of cells that are HTML already."""
    top = "".join(f'<th scope="col">{h}</th>' for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="plain"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
