"""observe: calibrators for the layers of a torch model, filled by running it on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lowbit.calibration import Calibrator
from lowbit.calibration.calibrator import MethodLike, tracked
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.batches import Inputs, call_on, first_tensors
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def observe(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    inputs: Inputs | None = None,
    modules: Callable[[str, nn.Module], bool] | None = None,
    outputs: bool = False,
    method: MethodLike = "adaptive",
    axis: int | None = None,
    progress: bool = True,
    **options: Any,
) -> dict[str, Calibrator]:
    """A calibrator for the input of each Linear, Conv1d and Conv2d, by name; memory does not grow with the loader.

    loader: batches. inputs: which elements of a batch are the model's arguments (see `lowbit.torch.quantize`). modules:
    selects other modules, by name and module. outputs: observe outputs instead of inputs. axis and other options are
    those of Calibrator. The model keeps its mode and runs without gradients. The result omits modules that no batch
    reached.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> found = observe(model, [torch.ones(2, 4), torch.zeros(5, 4)], progress=False)
    >>> {name: c.count for name, c in found.items()}
    {'0': 28, '2': 21}
    """
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    chosen = modules or (lambda _, module: isinstance(module, _LAYERS))
    watched = {name: m for name, m in model.named_modules() if chosen(name, m)}
    if not watched:
        raise InvalidProblem("model: no module to observe in it")
    found = {name: Calibrator(method, axis=axis, name=name or "model", **options) for name in watched}
    calibrators = {m: found[name] for name, m in watched.items()}

    def note(module: nn.Module, x: Tensor) -> None:
        if x.is_floating_point() and x.numel():
            calibrators[module].add(x)

    batches = 0
    with first_tensors(watched.values(), note, outputs), torch.no_grad():
        for batch in tracked(loader, "Calibrating", progress):
            call_on(model, batch, inputs)
            batches += 1
    if batches == 0:
        raise InvalidProblem("loader: no batches; there is nothing to find ranges in")
    return {name: c for name, c in found.items() if c.num_samples}
