"""A model's file in, a smaller one out, with what it cost: whichever format it is."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowbit.models import ModelReport, Recipe
from lowbit.numerics.errors import InvalidProblem, add_note
from lowbit.runtime.files.atomic import refuse_unwritable
from lowbit.runtime.hardware import hardware

_KEPT = 16  # batches
_MOST_THREADS = 4096
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]


def kind_of(source: str | os.PathLike[str]) -> str:
    """ "onnx" or "checkpoint", by the name alone."""
    path = Path(source)
    if not path.exists():
        raise InvalidProblem(f"{path}: not there")
    if path.suffix == ".onnx":
        return "onnx"
    if path.is_dir() or path.suffix in (".safetensors", ".bin", ".pt", ".pth") or path.name.endswith(".index.json"):
        return "checkpoint"
    raise InvalidProblem(f"{path}: expected an .onnx file, a .safetensors file or index, or a folder with one")


def default_recipe(source: str | os.PathLike[str]) -> Recipe:
    """What a model is quantized by where nobody says: dynamic-int8 for ONNX, W4A16 for checkpoints."""
    return Recipe.of("dynamic-int8" if kind_of(source) == "onnx" else "W4A16")


def default_target(source: str | os.PathLike[str], recipe: Recipe) -> Path:
    """A name beside the source: model.onnx -> model.static-int8.onnx, a folder or file -> name-W4A16.

    >>> default_target("nets/model.onnx", Recipe.of("W8A16")).as_posix()
    'nets/model.W8A16.onnx'
    """
    path = Path(source)
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in recipe.name)
    if path.suffix == ".onnx":
        return path.with_name(f"{path.stem}.{name}.onnx")
    if path.is_dir():
        whole = path.resolve()
        if not whole.name:
            raise InvalidProblem(f"{path}: it has no name to derive the target's from; give a target (--output)")
        beside = path if path.name not in ("", "..") else whole  # "." has no name of its own
        return beside.with_name(f"{whole.name}-{name}")
    return path.with_name(f"{path.name.partition('.')[0]}-{name}")


def load_metric(text: str) -> Callable[..., float]:
    """The function that `module:function` names, found from the working folder as Python would."""
    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise InvalidProblem(f"metric: {text!r}; expected module:function")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        raise InvalidProblem(f"metric: {module!r} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.pop(0)
    function = getattr(found, name, None)
    if not callable(function):
        raise InvalidProblem(f"metric: {module!r} has no function {name!r}")
    try:
        inspect.signature(function).bind("predict", "batches")
    except TypeError as error:
        raise InvalidProblem(f"metric: {text} does not take (predict, batches): {error}") from None
    except ValueError:  # some built-in functions do not say what they take
        pass
    return function  # type: ignore[no-any-return]


def check_measuring(
    data: Any, batch_size: int | None, max_batches: int | None, seconds: float, threads: Sequence[int]
) -> None:
    """Raises, before any work, where models cannot be run as asked, or something asked for would be ignored."""
    for name, value in (("batch_size", batch_size), ("max_batches", max_batches)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidProblem(f"{name}: {value!r}; expected an integer of at least 1")
        if value is not None and data is not None and not isinstance(data, str | os.PathLike):
            raise InvalidProblem(f"{name}: given; it is for files, and the data are batches already")
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidProblem(f"seconds: {seconds!r}; expected a finite number of at least 0")
    if not isinstance(threads, Sequence) or isinstance(threads, str) or not threads:
        raise InvalidProblem(f"threads: {threads!r}; expected a list of numbers of threads")
    for count in threads:
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_THREADS:
            raise InvalidProblem(f"threads: {count!r}; expected an integer from 1 to {_MOST_THREADS}")


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    recipe: RecipeLike | None = None,
    *,
    data: str | os.PathLike[str] | Iterable[Any] | None = None,
    batch_size: int | None = None,
    max_batches: int | None = None,
    metric: str | Callable[..., float] | None = None,
    strict: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    seconds: float = 2.0,
    threads: Sequence[int] = (1,),
    operator: str = "auto",
    external_data: bool | str = "auto",
    allow_pickle: bool = False,
    progress: bool = True,
) -> ModelReport:
    """Quantizes a model's file by a recipe and says what became of every weight, what it cost and what it won.

    An ONNX model becomes an ONNX model, a safetensors checkpoint a folder in the compressed-tensors layout. recipe: the
    name of a preset, a file, a mapping or a Recipe; by default dynamic-int8 for ONNX and W4A16 for checkpoints. data:
    batches for ranges and for comparing outputs: .npz or .npy files, a folder of them, or mappings from input names to
    arrays. metric: a function of (predict, batches) that gives one number, or `module:function`. seconds: how long
    latency is measured, 0 for not at all.
    """
    kind = kind_of(source)
    made = default_recipe(source) if recipe is None else Recipe.of(recipe)
    check_measuring(data, batch_size, max_batches, seconds, threads)
    to = Path(target) if target is not None else default_target(source, made)
    there = to.exists() or (kind == "onnx" and to.is_symlink())  # of a checkpoint's folder a link may be the name
    if there and not (overwrite or resume) and not (to.is_dir() and not any(to.iterdir())):
        raise InvalidProblem(f"{to}: already there; give another name, or overwrite it (--overwrite)")
    function = load_metric(metric) if isinstance(metric, str) else metric
    if function is not None and data is None:
        raise InvalidProblem("metric: given without data to compute it on")
    if data is None and (batch_size is not None or max_batches is not None):
        raise InvalidProblem("batch_size: given without data to cut; so is max_batches")
    if kind == "checkpoint":
        if data is not None:
            raise InvalidProblem("data: given; checkpoints are quantized by their weights alone")
        if operator != "auto" or external_data != "auto":
            raise InvalidProblem("operator: given; it is for ONNX models, and so is external_data")
        from lowbit.formats.compressed_tensors.convert import quantize_checkpoint

        with _bar(progress) as bar:
            report = quantize_checkpoint(
                source,
                to,
                made,
                resume=resume,
                strict=strict,
                overwrite=overwrite,
                allow_pickle=allow_pickle,
                progress=bar,
            )
        return report.but(machine=_machine())
    if resume:
        raise InvalidProblem("resume: only a checkpoint's run can be resumed; an ONNX model is written in one go")
    if allow_pickle:
        raise InvalidProblem("allow_pickle: given; it is for checkpoints")
    try:
        from lowbit.formats.onnx.convert import quantize_onnx
    except ModuleNotFoundError as error:
        text = f"ONNX models need {error.name}: pip install 'lowbit[onnx]'"
        raise ModuleNotFoundError(text, name=error.name) from None
    batches = _batches(source, data, batch_size, max_batches)
    report = quantize_onnx(
        source,
        to,
        made,
        data=None if batches is None else _feeds(batches),
        operator=operator,
        strict=strict,
        overwrite=overwrite,
        external_data=external_data,
        progress=progress,
    )
    named = None if function is None else (metric if isinstance(metric, str) else function.__name__, function)
    with says_what_is_kept(to):
        return _measured(report, batches, named, seconds, threads)


@contextmanager
def says_what_is_kept(target: Path) -> Iterator[None]:
    """Adds to an error after the writing that the target was written, and stays."""
    try:
        yield
    except BaseException as error:
        add_note(error, f"{target} is written and kept")
        raise


def refuse_report(report: Path, source: Path, target: Path, overwrite: bool) -> None:
    """Raises where a report cannot be written, or would replace the output, the source or, unasked, another file."""
    place, output, given = (Path(os.path.realpath(path)) for path in (report, target, source))
    if place == output or output in place.parents:
        raise InvalidProblem(f"report: {report} is the output, or in it; give another name")
    if place == given or (given in place.parents and place.exists()):
        raise InvalidProblem(f"report: {report} is the source, or of it; give another name")
    if place.is_dir() or not place.parent.is_dir():
        raise InvalidProblem(f"report: {report}; expected the name of a file in a folder that is there")
    if os.path.lexists(report) and not overwrite:
        raise InvalidProblem(f"report: {report} is already there; give another name, or overwrite it (--overwrite)")
    refuse_unwritable(place)


def _batches(source: str | os.PathLike[str], data: Any, batch_size: int | None, max_batches: int | None) -> Any:
    """What can be gone through more than once: a file's batches, a collection, or what is kept of an iterator."""
    from lowbit.formats.onnx.batches import Batches
    from lowbit.formats.onnx.model_file import read_proto

    if isinstance(data, str | os.PathLike):
        return Batches(data, read_proto(source), batch_size, max_batches)
    return _Once(data) if data is not None and iter(data) is data else data


def _feeds(batches: Any) -> Iterable[Any]:
    """Batches with what the model takes, and nothing else."""
    found: Iterable[Any] = batches.feeds() if hasattr(batches, "feeds") else batches
    return found


def _measured(
    report: ModelReport,
    batches: Any,
    metric: tuple[str, Callable[..., float]] | None,
    seconds: float,
    threads: Sequence[int],
) -> ModelReport:
    """The report with outputs, latency and the caller's figure of both models, where there are data to run them on."""
    from lowbit.formats.onnx import measure

    source, target, notes = Path(report.source), Path(report.target), list(report.notes)
    changes: dict[str, Any] = {"machine": _machine(measure.RUNTIME)}
    if source.resolve() == target.resolve():
        notes.append("The source was replaced, so there is nothing to compare the result with.")
    elif batches is None:
        notes.append("No data were given, so outputs and latency were not measured.")
    else:
        pair = measure.session(source), measure.session(target)
        changes["accuracy"] = measure.compare_outputs(*pair, _feeds(batches))
        if metric is not None:
            changes["metrics"] = [measure.compare_metric(*metric, *pair, lambda: iter(batches))]
        if seconds > 0:
            changes["latency"] = measure.compare_speed(source, target, next(iter(_feeds(batches))), threads, seconds)
        if isinstance(batches, _Once):
            notes.append(
                f"The data could be read once only: outputs are compared on the first {_KEPT} batches at most."
            )
    return report.but(**changes, notes=notes)


class _Once:
    """An iterator's batches: all of them the first time, and the first few, which are kept, from then on."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._left: Iterable[Any] | None = data
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        left, self._left = self._left, None
        if left is None:
            yield from self._kept
            return
        for batch in left:
            if len(self._kept) < _KEPT:
                self._kept.append(batch)
            yield batch


def _machine(runtime: str | None = None) -> dict[str, Any]:
    found = hardware()
    made: dict[str, Any] = {"cpu": found.cpu, "isa": found.isa, "threads": found.threads}
    return made | ({"runtime": runtime} if runtime else {})


@contextmanager
def _bar(wanted: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar of bytes on stderr, where it is wanted and rich is installed."""
    if not wanted or importlib.util.find_spec("rich") is None:
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn(), progress.DownloadColumn()]
    columns += [progress.TransferSpeedColumn(), progress.TimeRemainingColumn()]
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with progress.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("Planning", total=None)

        def told(done: int, total: int, name: str) -> None:
            shown.update(task, description=ascii(name)[1:-1][-40:], completed=done, total=total)

        yield told
