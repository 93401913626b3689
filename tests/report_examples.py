"""Reports made up for tests: a plausible one, a hostile one, and one of any number of rows."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from lowbit.models import Accuracy, Histogram, Latency, MetricResult, ModelReport, Recipe, WeightRow

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>'&amp;"


@cache
def histogram(name: str, seed: int = 0, kind: str = "weight") -> Histogram:
    x = np.random.default_rng(seed).standard_t(4, 20_000) * 0.1
    counts, edges = np.histogram(x, 64)
    limit = float(np.quantile(np.abs(x), 0.999))
    return Histogram(name, tuple(map(float, edges)), tuple(map(int, counts)), (-limit, limit), kind)


def rows_of(count: int, seed: int = 0) -> list[WeightRow]:
    """Rows as of a transformer, in its order."""
    rng = np.random.default_rng(seed)
    parts = (("attention.query", (384, 384)), ("attention.key", (384, 384)), ("attention.value", (384, 384)),
             ("attention.output", (384, 384)), ("mlp.up", (1536, 384)), ("mlp.down", (384, 1536)))  # fmt: skip
    rows = [
        WeightRow("embeddings.word.weight", "Gather", (30522, 384), "float32", "int8 symmetric, per channel",
                  bytes_before=30522 * 384 * 4, bytes_after=30522 * 388, sqnr_db=41.2)
    ]  # fmt: skip
    for i in range(count - 1):
        part, shape = parts[i % len(parts)]
        elements = math.prod(shape)
        rows.append(
            WeightRow(
                f"encoder.layer.{i // len(parts)}.{part}.weight", "MatMul", shape, "float32",
                "int4 symmetric, groups of 64" if "mlp" in part else "int8 symmetric, per channel",
                bytes_before=4 * elements, bytes_after=elements // 2 + elements // 16 if "mlp" in part else elements,
                sqnr_db=float(rng.normal(21 if "mlp" in part else 40, 1.6)), activations="uint8 asymmetric, dynamic",
            )
        )  # fmt: skip
    return rows[:count]


@cache
def plausible(count: int = 40) -> ModelReport:
    """A report with something in every section."""
    rows = rows_of(count - 3)
    rows += [
        WeightRow("pooler.dense.weight", "Gemm", (384, 384), "float32", "", "float is faster at this shape", True,
                  589_824, 589_824, note="int8 took 1.3× as long"),
        WeightRow("classifier.weight", "Gemm", (2, 384), "float32", "", "768 elements; the recipe leaves weights below "
                  "1024", False, 3072, 3072),
        WeightRow("stem.conv.weight", "Conv", (64, 3, 7, 7), "float32", "int8 symmetric, per channel",
                  bytes_before=37_632, bytes_after=9_664, sqnr_db=38.1),
    ]  # fmt: skip
    before, after = sum(r.bytes_before for r in rows), sum(r.bytes_after for r in rows)
    return ModelReport(
        source="models/minilm-l6.onnx", target="models/minilm-l6.int8.onnx", format="onnx",
        recipe=Recipe.of("dynamic-int8").but(skip=("lm_head",)).to_dict(), rows=rows,
        bytes_before=before + 900_000, bytes_after=after + 930_000,
        accuracy=(Accuracy("last_hidden_state", 31.25, 0.999634, 0.0421, 256),
                  Accuracy("pooled", 33.1, 0.99975, 0.02, 256)),
        latency=(Latency("onnxruntime 1.31.1", "1 × 128", 1, 14.6, 6.41, (14.2, 15.3), (6.3, 6.9)),
                 Latency("onnxruntime 1.31.1", "8 × 128", 1, 118.0, 57.5, (116.0, 121.0), (56.9, 58.8))),
        metrics=(MetricResult("Spearman on STS-B", 82.032, 81.951),),
        histograms=[histogram(r.name, i) for i, r in enumerate([r for r in rows if r.treated][:24])],
        notes=("Two Constant nodes became initializers.", "The model's opset was raised from 12 to 21."),
        machine={"cpu": "An Example CPU", "isa": "avx2", "threads": 2, "versions": {"numpy": "2.4.6"}},
        seconds=12.4, lowbit_version="0.1.0",
    )  # fmt: skip


def hostile() -> ModelReport:
    """Names that would be markup, very long ones, other scripts, numbers that are none."""
    names = [
        HOSTILE,
        "層.一.重み",
        "\u202eoediv\u202c",
        "a." * 600,
        "",
        "lone \ud800 surrogate",
        "nul \x00",
        "]]>--><!--",
    ]
    values = [math.inf, math.nan, -math.inf, -3.0, None, 0.0, 1e9, 20.0]
    rows = [
        WeightRow(n, HOSTILE if i == 0 else "Conv", () if i == 3 else (8, 8), HOSTILE, HOSTILE, bytes_before=256,
                  bytes_after=64, sqnr_db=s, note=HOSTILE, activations=HOSTILE)
        for i, (n, s) in enumerate(zip(names, values, strict=True))
    ]  # fmt: skip
    rows.append(WeightRow("asked " + HOSTILE, "Gemm", (0,), "float16", "", HOSTILE, True))
    broken = Histogram("bad", (0.0, math.inf), (1,))
    return ModelReport(
        HOSTILE, HOSTILE, HOSTILE, {"name": HOSTILE, HOSTILE: [HOSTILE]}, rows, 0, 0,
        accuracy=(Accuracy(HOSTILE, math.nan, math.nan, math.inf, 0),),
        latency=(Latency(HOSTILE, HOSTILE, 2, 1.0, 0.0), Latency(HOSTILE, HOSTILE, 1, math.nan, math.nan)),
        metrics=(MetricResult(HOSTILE, math.nan, math.inf),),
        histograms=(histogram(HOSTILE), broken), notes=(HOSTILE,), machine={HOSTILE: {HOSTILE: HOSTILE}},
    )  # fmt: skip
