"""Option types that several commands share."""

import math
from pathlib import Path
from typing import Annotated

import typer


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number of seconds.")
    return value


AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DATA = Annotated[
    Path | None,
    typer.Option(
        help="Input batches: an .npz file with an array per input, an .npy file, or a folder of such files.",
        metavar="PATH",
    ),
]
EVAL_DATA = Annotated[
    Path | None,
    typer.Option(
        help="Input batches to compare outputs and the metric on. The default is --data, which the ranges fit.",
        metavar="PATH",
    ),
]
BATCH_SIZE = Annotated[
    int | None,
    typer.Option(
        help="Rows per batch, into which arrays are cut. The default is the model's own where that is fixed, else 32.",
        min=1,
        metavar="N",
    ),
]
MAX_BATCHES = Annotated[
    int | None, typer.Option(help="Maximum number of batches to read. The default is all.", min=1, metavar="N")
]
METRIC = Annotated[
    str | None,
    typer.Option(
        help="Function metric(predict, batches) -> number, as module:function, to evaluate on both models.",
        metavar="MOD:FUNC",
    ),
]
SECONDS = Annotated[
    float,
    typer.Option(help="Seconds to measure latency per thread count. 0 skips it.", callback=_finite, min=0, metavar="S"),
]
THREADS = Annotated[
    list[int], typer.Option(help="Number of threads to measure latency with. Repeatable.", min=1, max=4096, metavar="N")
]
