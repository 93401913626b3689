"""Quantizing a model's file of any format: which kind it is, the default recipe and target, and the report."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowbit.calibration import Moments
from lowbit.formats.inspection import onnx_extra
from lowbit.formats.statistics.folder import open_statistics
from lowbit.models import ModelReport, Recipe
from lowbit.numerics.errors import InvalidProblem, add_note
from lowbit.runtime.files.atomic import refuse_unwritable
from lowbit.runtime.hardware import hardware

if TYPE_CHECKING:
    from lowbit.formats.onnx.batches import Batches, GivenBatches

_MOST_THREADS = 4096
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]


def kind_of(source: str | os.PathLike[str]) -> str:
    """ "onnx" or "checkpoint", judged by the name alone."""
    path = Path(source)
    if not path.exists():
        raise InvalidProblem(f"{path}: not there; expected a file or folder")
    if path.suffix == ".onnx":
        return "onnx"
    if path.is_dir() or path.suffix in (".safetensors", ".bin", ".pt", ".pth") or path.name.endswith(".index.json"):
        return "checkpoint"
    raise InvalidProblem(f"{path}: expected an .onnx file, a .safetensors file or index, or a folder with one")


def default_recipe(source: str | os.PathLike[str]) -> Recipe:
    """The recipe for a model where none is given: dynamic-int8 for ONNX, W4A16 for checkpoints."""
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


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    recipe: RecipeLike | None = None,
    *,
    data: str | os.PathLike[str] | Iterable[Any] | None = None,
    eval_data: str | os.PathLike[str] | Iterable[Any] | None = None,
    batch_size: int | None = None,
    max_batches: int | None = None,
    metric: str | Callable[..., float] | None = None,
    strict: bool = False,
    overwrite: bool = False,
    force: bool = False,
    resume: bool = False,
    seconds: float = 2.0,
    threads: Sequence[int] = (1,),
    operator: str = "auto",
    optimize: str = "balanced",
    target_cpu: str = "any",
    external_data: bool | str = "auto",
    allow_pickle: bool = False,
    stats: str | os.PathLike[str] | Mapping[str, Moments] | None = None,
    sequence_length: int | None = None,
    max_memory: int | None = None,
    progress: bool = True,
    warn: Callable[[str], None] | None = None,
) -> ModelReport:
    """Quantize a model's file by a recipe, and report what was done to every weight and what was measured.

    An ONNX model becomes an ONNX model, a safetensors checkpoint a folder in the compressed-tensors layout. recipe: the
    name of a preset, a file, a mapping or a Recipe; by default dynamic-int8 for ONNX and W4A16 for checkpoints. data:
    batches for ranges, for statistics of what weights are multiplied with, and for comparing outputs: .npz or .npy
    files, a folder of them, or mappings from input names to arrays; of a checkpoint text, `max_batches` sequences of
    `sequence_length` tokens. stats: such statistics, or the folder that `lowbit observe` wrote them to. eval_data:
    other batches to compare outputs on, as ranges fit the data that they were found in. metric: a function of (predict,
    batches) that returns one number, or `module:function`. seconds: how long latency is measured; 0 skips it. operator,
    optimize, target_cpu and force: see `quantize_onnx`; max_memory and warn: see
    `quantize_checkpoint`.
    """
    kind = kind_of(source)
    made = default_recipe(source) if recipe is None else Recipe.of(recipe)
    for batches_of in (None if kind == "checkpoint" else data, eval_data):
        check_measuring(batches_of, batch_size, max_batches, seconds, threads)
    to = Path(target) if target is not None else default_target(source, made)
    _refuse_existing(to, kind, overwrite or resume)
    function = load_metric(metric) if isinstance(metric, str) else metric
    if data is None and eval_data is None:
        needing = {"metric": metric, "batch_size": batch_size, "max_batches": max_batches}
        _refuse("given without data; give data too", **needing)
    shared: dict[str, Any] = {"strict": strict, "overwrite": overwrite}
    moments = open_statistics(stats) if isinstance(stats, str | os.PathLike) else stats
    if kind == "checkpoint":
        _refuse(
            "given; checkpoints are not run to be compared", eval_data=eval_data, metric=metric, batch_size=batch_size
        )
        given = {
            "operator": operator != "auto",
            "optimize": optimize != "balanced",
            "target_cpu": target_cpu != "any",
            "force": force,
        }
        _refuse("given; only ONNX models have it", **given, external_data=external_data != "auto")
        from lowbit.formats.compressed_tensors.convert import quantize_checkpoint

        with bar(progress) as tell:
            shared |= {"resume": resume, "allow_pickle": allow_pickle, "progress": tell}
            shared |= {"data": data, "stats": moments, "sequence_length": sequence_length}
            shared |= {"max_sequences": max_batches, "max_memory": max_memory, "warn": warn}
            return quantize_checkpoint(source, to, made, **shared).but(machine=_machine())
    _refuse(
        "given; only checkpoints have it",
        allow_pickle=allow_pickle,
        resume=resume,
        sequence_length=sequence_length,
        max_memory=max_memory,
    )
    with onnx_extra():
        from lowbit.formats.onnx.batches import reread
        from lowbit.formats.onnx.convert import quantize_onnx
    batches = None if data is None else reread(data, source, batch_size, max_batches)
    compared = batches if eval_data is None else reread(eval_data, source, batch_size, max_batches)
    shared |= {
        "operator": operator,
        "optimize": optimize,
        "target_cpu": target_cpu,
        "external_data": external_data,
        "force": force,
    }
    shared["progress"] = progress
    feeds = None if batches is None else batches.feeds()
    report = quantize_onnx(source, to, made, data=feeds, stats=moments, **shared)
    with says_what_is_kept(to):
        named = None if function is None else (metric if isinstance(metric, str) else function.__name__, function)
        fitted = made.needs_data or (moments is None and any(row.predicted_db is not None for row in report.rows))
        compared_on = "calibration data" if eval_data is None and fitted else "evaluation data"
        return _measured(report, compared, compared_on, named, seconds, threads)


def load_metric(text: str) -> Callable[..., float]:
    """The function that `module:function` names; modules of the working folder are found first."""
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
    """Raise where models cannot be run as asked, or where an option would be ignored."""
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


def _refuse(why: str, **given: Any) -> None:
    """Raise for the first option that was given."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise InvalidProblem(f"{name}: {why}")


def _refuse_existing(target: Path, kind: str, replaced: bool) -> None:
    there = target.exists() or (kind == "onnx" and target.is_symlink())  # a checkpoint's folder may be named by a link
    if there and not replaced and not (target.is_dir() and not any(target.iterdir())):
        raise InvalidProblem(f"{target}: already there; give another name, or overwrite it (--overwrite)")


@contextmanager
def says_what_is_kept(target: Path) -> Iterator[None]:
    """Add to an error after the writing that the target is complete and kept."""
    try:
        yield
    except BaseException as error:
        add_note(error, f"{target} is written and kept")
        raise


def refuse_report(report: Path, source: Path, target: Path, overwrite: bool) -> None:
    """Raise where a report cannot be written, or would replace the output, the source or, unasked, another file."""
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


def _measured(
    report: ModelReport,
    batches: Batches | GivenBatches | None,
    compared_on: str,
    metric: tuple[str, Callable[..., float]] | None,
    seconds: float,
    threads: Sequence[int],
) -> ModelReport:
    """The report with outputs, latency and the metric of both models, where there are data to run them on."""
    from lowbit.formats.onnx.measure import measure_models
    from lowbit.formats.onnx.runtime import RUNTIME

    source, target, notes = Path(report.source), Path(report.target), list(report.notes)
    changes: dict[str, Any] = {"machine": _machine(RUNTIME)}
    if source.resolve() == target.resolve():
        notes.append("The source was replaced, so there is no model to compare the result with.")
    elif batches is None:
        notes.append("No data were given, so outputs and latency were not measured.")
    else:
        changes["compared_on"] = compared_on
        if compared_on == "calibration data":
            notes.append(
                "Outputs are compared on the calibration data, which ranges and codes fit; --eval-data takes others."
            )
        changes |= measure_models(source, target, batches.feeds, lambda: iter(batches), metric, seconds, threads)
        if batches.kept:
            notes.append(
                f"The data could be read only once: outputs are compared on the first {batches.kept} batches at most."
            )
    return report.but(**changes, notes=notes)


def _machine(runtime: str | None = None) -> dict[str, Any]:
    found = hardware()
    made = {"cpu": found.cpu, "isa": found.isa, "threads": found.threads, "runtime": runtime}
    return {name: value for name, value in made.items() if value is not None}


@contextmanager
def bar(wanted: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar on stderr, where it is wanted and rich is installed."""
    if wanted and importlib.util.find_spec("rich") is not None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal:
            columns = progress.TextColumn("{task.description}", markup=False), progress.BarColumn()
            left = progress.TaskProgressColumn(), progress.TimeRemainingColumn()
            with progress.Progress(*columns, *left, console=console, transient=True) as shown:
                task = shown.add_task("Planning", total=None)

                def told(done: int, total: int, name: str) -> None:
                    shown.update(task, description=ascii(name)[1:-1][-40:], completed=done, total=total)

                yield told
                return
    yield None
