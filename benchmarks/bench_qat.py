"""One training step of the CNN of docs/guide/qat.md: float, and quantization-aware with lowbit and with torch.ao."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import Peers, torch_with
from benchmarks.timing import Case, Contender, Target

BATCH = 256
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fashion_mnist_qat.py"


def cases(peers: Peers) -> Iterator[Case]:
    contenders = [
        Contender("lowbit, int8", lambda: _step(peers, _lowbit(weight="int8")), kind="lowbit"),
        Contender("lowbit, int2 learned", lambda: _step(peers, _lowbit(weight="int2", learned=True)), kind="lowbit"),
        Contender("torch.ao, int8", lambda: _step(peers, lambda example, net: example.ao_prepared(net))),
        Contender("float", lambda: _step(peers, lambda example, net: copy.deepcopy(net))),
    ]
    targets = [Target("lowbit, int8", "torch.ao, int8", 1.5, "torch.ao")]
    yield Case("training step of the docs' CNN, batch 256", 4 * 28 * 28 * BATCH, contenders, targets)


def _lowbit(**recipe: Any) -> Callable[[Any, Any], Any]:
    def prepare(example: Any, net: Any) -> Any:
        import lowbit.torch as lt

        return lt.prepare_qat(net, lt.QATRecipe(**recipe))[0]

    return prepare


def _step(peers: Peers, prepare: Callable[[Any, Any], Any]) -> Callable[[], None]:
    torch = torch_with(peers.threads)
    spec = importlib.util.spec_from_file_location("fashion_mnist_qat", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example  # dataclasses look themselves up there
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    model = prepare(example, example.network()).train()
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step
