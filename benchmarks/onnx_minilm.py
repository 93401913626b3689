"""MiniLM as an ONNX file, quantized here and by ONNX Runtime's own tool: size, speed, and rank correlation on STS-B.

    python -m benchmarks.onnx_minilm

The graph is written operator by operator from the checkpoint, as exporters write BERT, so that it needs no exporter and
is the same file each time. All files run in ONNX Runtime with default options on one thread, batches interleaved.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import torch
from benchmarks import minilm
from benchmarks.results import report_table
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.models import Recipe, WeightRecipe

RESULT = Path(__file__).parent / "results" / "onnx-minilm.json"
THEIRS = "ONNX Runtime quantize_dynamic"
HEADS, WIDTH = 12, 384
TIMED = 128  # sentences of the training split
REPEATS = 12  # rounds over them
CALIBRATION = 64  # sentences of the training split, for static ranges


# ---- the model ----------------------------------------------------------------------------------------


class _Writer:
    """Nodes and constants of a graph, each made by one call."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, array: Any) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def number(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def __call__(self, op: str, *inputs: str, out: str = "", **options: Any) -> str:
        name = out or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}_{len(self.nodes)}", **options))
        return name


def build(path: Path) -> None:
    """Writes the trained model: tokens and their mask in, both int64 [batch, length]; out comes a unit vector a row."""
    stored = {k: v.numpy() for k, v in minilm.load().state_dict().items()}
    w = _Writer()

    def linear(x: str, name: str) -> str:
        product = w("MatMul", x, w.constant(f"{name}.weight", stored[f"{name}.weight"].T))
        return w("Add", product, w.constant(f"{name}.bias", stored[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale, bias = (w.constant(f"{name}.{p}", stored[f"{name}.{p}"]) for p in ("weight", "bias"))
        return w("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def heads(x: str, perm: list[int]) -> str:
        split = w("Reshape", x, w.number("by_heads", [0, 0, HEADS, WIDTH // HEADS], np.int64))
        return w("Transpose", split, perm=perm)

    length = w("Gather", w("Shape", "tokens"), w.number("one", 1, np.int64), axis=0)
    until = w("Unsqueeze", length, w.number("first", [0], np.int64))
    positions = w(
        "Slice", w.constant("positions", np.arange(512)[None]), w.number("first", [0], np.int64), until,
        w.number("second", [1], np.int64),
    )  # fmt: skip
    words = w("Gather", w.constant("word_embeddings", stored["embeddings.word_embeddings.weight"]), "tokens")
    places = w("Gather", w.constant("position_embeddings", stored["embeddings.position_embeddings.weight"]), positions)
    kind = w.constant("token_type", stored["embeddings.token_type_embeddings.weight"][0])
    x = norm(w("Add", w("Add", words, kind), places), "embeddings.LayerNorm")
    seen = w("Unsqueeze", w("Unsqueeze", "mask", w.number("second", [1], np.int64)), w.number("third", [2], np.int64))
    hidden = w("Sub", w.number("float_one", 1.0), w("Cast", seen, to=TensorProto.FLOAT))
    hidden = w("Mul", hidden, w.number("far_below", -10000.0))
    for i in range(6):
        at = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        scores = w("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
        scores = w("Div", scores, w.number("root", np.sqrt(WIDTH / HEADS)))
        shares = w("Softmax", w("Add", scores, hidden), axis=-1)
        joined = w("Transpose", w("MatMul", shares, heads(v, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        joined = w("Reshape", joined, w.number("flat", [0, 0, WIDTH], np.int64))
        x = norm(w("Add", linear(joined, f"{at}.attention.output.dense"), x), f"{at}.attention.output.LayerNorm")
        inner = linear(x, f"{at}.intermediate.dense")
        bell = w("Erf", w("Div", inner, w.number("root_two", np.sqrt(2.0))))
        inner = w("Mul", w("Mul", inner, w("Add", bell, w.number("float_one", 1.0))), w.number("half", 0.5))
        x = norm(w("Add", linear(inner, f"{at}.output.dense"), x), f"{at}.output.LayerNorm")
    share = w("Cast", w("Unsqueeze", "mask", w.number("third", [2], np.int64)), to=TensorProto.FLOAT)
    total = w("ReduceSum", w("Mul", x, share), w.number("second", [1], np.int64), keepdims=0)
    mean = w("Div", total, w("ReduceSum", share, w.number("second", [1], np.int64), keepdims=0))
    w("LpNormalization", mean, out="vectors", axis=-1, p=2)
    given = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in ("tokens", "mask")]
    made = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", WIDTH])]
    graph = helper.make_graph(w.nodes, "minilm", given, made, list(w.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


# ---- measuring ----------------------------------------------------------------------------------------


class Runs:
    """A file in ONNX Runtime, one thread, called as the torch model is."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._session.run(None, {"tokens": tokens.numpy(), "mask": mask.numpy()})[0])


def written(folder: Path) -> dict[str, Path]:
    """All files that are compared, by name."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    files = {"float": folder / "float.onnx"}
    build(files["float"])
    files[THEIRS] = folder / "ort_dynamic.onnx"
    quantize_dynamic(files["float"], files[THEIRS], per_channel=True, weight_type=QuantType.QInt8)
    groups = Recipe("int4 g64", WeightRecipe("int4", group_size=64))
    batches = minilm.batches(minilm.sentences(CALIBRATION))
    calibration = [{"tokens": tokens.numpy(), "mask": mask.numpy()} for tokens, mask in batches]
    for name, recipe, data in (
        ("lowbit dynamic-int8", "dynamic-int8", None),
        ("lowbit static-int8", "static-int8", calibration),
        ("lowbit int4 g64", groups, None),
        ("lowbit int8 weights", "W8A16", None),
    ):
        target = folder / f"{name.replace(' ', '_')}.onnx"
        try:
            report = quantize_onnx(files["float"], target, recipe, data=data, progress=False)
        except Exception as error:  # one kind of file that fails must not hide the others
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {len(report.treated)} weights treated, {len(report.skipped)} skipped; {list(report.notes)}")
        files[name] = target
    return files


def main() -> None:
    """Prints the table and writes it as JSON. Speedups are medians of the ratios of rounds: the same batches within the
    same second."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = written(Path(folder))
        models = {name: Runs(path) for name, path in files.items()}
        taken = minilm.seconds(models, minilm.batches(minilm.sentences(TIMED)), REPEATS)
        rows = []
        for name, s in taken.items():
            speedups = [float(np.median(taken[other] / s)) for other in ("float", THEIRS)]
            score, size = minilm.sts_score(models[name]), files[name].stat().st_size / 1e6
            rows.append([name, score, size, float(np.median(s)) * 1e3, *speedups])
    columns = ["file", "Spearman", "MB", f"ms per {TIMED} sentences", "× float", "× quantize_dynamic"]
    report_table("MiniLM-L6 in ONNX Runtime, STS-B test", columns, rows, RESULT)


if __name__ == "__main__":
    main()
