"""Option types that several commands share."""

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from lowbit.numerics.errors import InvalidProblem

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number of seconds.")
    return value


def bytes_of(text: str, option: str) -> int:
    """The number of bytes that a size such as "2GB" or "512 MiB" means.

    >>> bytes_of("1.5GB", "--max-memory"), bytes_of("512 MiB", "--max-memory")
    (1500000000, 536870912)
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?", text.strip(), re.ASCII | re.IGNORECASE)
    value = float(found[1]) * _UNITS[(found[2] or "").lower()] if found else 0
    if value < 1:
        raise InvalidProblem(f"{option}: {text!r}; expected a size such as 500MB, 2GB or 1.5GiB")
    return int(value)


AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DATA = Annotated[
    Path | None,
    typer.Option(
        help="Input batches: an .npz file with an array per input, an .npy file, or a folder of such files. Of a "
        "checkpoint text: a .txt or .jsonl file, or a folder of them.",
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
    int | None,
    typer.Option(
        help="Maximum number of batches to read, or of sequences of a text. The default is all, and 32.",
        min=1,
        metavar="N",
    ),
]
SEQUENCE_LENGTH = Annotated[
    int | None,
    typer.Option(help="Tokens per sequence, into which text is cut. The default is 1024.", min=1, metavar="N"),
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
