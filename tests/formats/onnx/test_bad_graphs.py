"""ONNX graphs that are no graphs: FormatError or InvalidProblem in Python, one line from every command."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")
from typer.testing import CliRunner

from lowbit.cli.app import _app
from lowbit.formats.comparison import compare_files
from lowbit.formats.files import quantize_file
from lowbit.formats.inspection import inspect_file
from lowbit.formats.onnx.observe import observe
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from onnx_builder import Builder

Feed = dict[str, Any]
RECIPES = ("dynamic-int8", "static-int8", "W8A16", "W4A16")


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def convolutions() -> tuple[ModelProto, Feed]:
    b = Builder({"x": ["n", 3, 8, 8]})
    y = b.add("Relu", b.batch_norm(b.conv("x", 3, 16), 16))
    y = b.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = b.add("Add", y, b.conv(y, 16, 16))
    return b.model(b.add("Transpose", y, perm=[0, 2, 3, 1])), {"x": normal(4, 3, 8, 8)}


def products() -> tuple[ModelProto, Feed]:
    b = Builder({"x": ["n", 64]})
    y = b.add("Relu", b.add("Gemm", "x", b.normal(64, 64, name="w1"), b.normal(64, name="b1")))
    y = b.add("Add", b.add("MatMul", y, b.add("Transpose", b.normal(32, 64, name="w2"), perm=[1, 0])), b.normal(32))
    return b.model(b.add("Concat", y, y, axis=1)), {"x": normal(4, 64)}


def bodies() -> tuple[ModelProto, Feed]:
    b = Builder({"x": ["n", 32]})
    taken = b.add("Greater", b.add("ReduceMax", "x", keepdims=0), b.constant(np.float32(0)))

    def body(name: str) -> onnx.GraphProto:
        w = numpy_helper.from_array(normal(32, 32), "inner")
        made = [helper.make_tensor_value_info("made", TensorProto.FLOAT, None)]
        return helper.make_graph([helper.make_node("MatMul", ["x", "inner"], ["made"])], name, [], made, [w])

    y = b.add("If", taken, then_branch=body("yes"), else_branch=body("no"))
    rows = b.add("Gather", b.normal(100, 32, name="table"), b.constant(np.int64([1, 2, 3, 4])))
    stored = b.add("Constant", value=numpy_helper.from_array(normal(32, 64)))
    codes = b.add("DequantizeLinear", b.constant(np.ones((64, 16), np.int8)), b.constant(np.float32(0.1)))
    return b.model(b.add("MatMul", b.add("MatMul", b.add("Add", y, rows), stored), codes)), {"x": normal(4, 32)}


BASES = (convolutions, products, bodies)

# ---- one kind of fault each ----------------------------------------------------------------------------

Fault = Callable[[ModelProto], None]
FAULTS: dict[str, tuple[Callable[[], tuple[ModelProto, Feed]], Fault]] = {}


def fault(name: str, base: Callable[[], tuple[ModelProto, Feed]]) -> Callable[[Fault], Fault]:
    def register(made: Fault) -> Fault:
        assert name not in FAULTS
        FAULTS[name] = base, made
        return made

    return register


def node(m: ModelProto, op: str) -> NodeProto:
    return next(n for n in m.graph.node if n.op_type == op)


def stored(m: ModelProto, name: str, array: Any) -> None:
    next(t for t in m.graph.initializer if t.name == name).CopyFrom(numpy_helper.from_array(array, name))


for op, base in (
    ("Conv", convolutions), ("BatchNormalization", convolutions), ("MaxPool", convolutions), ("Relu", convolutions),
    ("Add", convolutions), ("Transpose", convolutions), ("Gemm", products), ("MatMul", products), ("Gather", bodies),
    ("If", bodies), ("DequantizeLinear", bodies), ("Concat", products),
):  # fmt: skip

    @fault(f"{op} without inputs", base)
    def _(m: ModelProto, op: str = op) -> None:
        del node(m, op).input[:]

    @fault(f"{op} without its last input", base)
    def _(m: ModelProto, op: str = op) -> None:
        del node(m, op).input[-1:]
        if op in ("Conv", "Gemm"):  # whose last is optional
            del node(m, op).input[1:]

    @fault(f"{op} with an empty name for its first input", base)
    def _(m: ModelProto, op: str = op) -> None:
        if op != "Concat":
            node(m, op).input[0] = ""
        else:
            del node(m, op).attribute[:]

    @fault(f"{op} without outputs", base)
    def _(m: ModelProto, op: str = op) -> None:
        del node(m, op).output[:]

    @fault(f"{op} that reads itself", base)
    def _(m: ModelProto, op: str = op) -> None:
        node(m, op).input[0] = node(m, op).output[0]

    @fault(f"{op} under an unknown name", base)
    def _(m: ModelProto, op: str = op) -> None:
        node(m, op).op_type = "Bogus"

    @fault(f"{op} of an unknown domain", base)
    def _(m: ModelProto, op: str = op) -> None:
        node(m, op).domain = "nobody's"


for where, op, attribute in (
    (convolutions, "Transpose", helper.make_attribute("perm", 3)),
    (convolutions, "Transpose", helper.make_attribute("perm", [0, 1, 2, 9])),
    (convolutions, "Transpose", helper.make_attribute("perm", [0, 1])),
    (products, "Transpose", helper.make_attribute("perm", "text")),
    (products, "Transpose", helper.make_attribute("perm", [-(2**63), 2**63 - 1])),
    (products, "Gemm", helper.make_attribute("transB", [1])),
    (products, "Gemm", helper.make_attribute("alpha", "text")),
    (convolutions, "Conv", helper.make_attribute("group", 2**62)),
    (convolutions, "Conv", helper.make_attribute("group", 1.5)),
    (convolutions, "BatchNormalization", helper.make_attribute("epsilon", "text")),
    (bodies, "Gather", helper.make_attribute("axis", 2**62)),
    (bodies, "Gather", helper.make_attribute("axis", "text")),
    (bodies, "If", helper.make_attribute("then_branch", 3)),
    (bodies, "Constant", helper.make_attribute("value", 3)),
    (products, "Concat", AttributeProto(name="axis")),
):

    @fault(f"{op} with {attribute.name} {helper.printable_attribute(attribute)}", where)
    def _(m: ModelProto, op: str = op, a: AttributeProto = attribute) -> None:
        for i in reversed([i for i, old in enumerate(node(m, op).attribute) if old.name == a.name]):
            del node(m, op).attribute[i]
        node(m, op).attribute.append(a)


for label, name, array in (
    ("a vector", "w1", normal(64)), ("a number", "w1", np.float32(1)), ("nothing", "w1", normal(64, 0)),
    ("a bias of another length", "b1", normal(63)), ("a matrix for a bias", "b1", normal(64, 2)),
    ("another width", "w1", normal(63, 64)), ("integers", "w1", np.ones((64, 64), np.int64)),
):  # fmt: skip

    @fault(f"a Gemm's constant that is {label}", products)
    def _(m: ModelProto, name: str = name, array: Any = array) -> None:
        stored(m, name, array)


for at, array in ((1, normal(15)), (2, normal(16, 2)), (3, normal(0)), (4, np.float32(1))):

    @fault(f"a batch normalisation whose input {at} has shape {np.shape(array)}", convolutions)
    def _(m: ModelProto, at: int = at, array: Any = array) -> None:
        stored(m, node(m, "BatchNormalization").input[at], array)


@fault("an input without a type", products)
def _(m: ModelProto) -> None:
    m.graph.input[0].ClearField("type")


@fault("an input of an unknown element type", products)
def _(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.elem_type = 99


@fault("an input that is a sequence", products)
def _(m: ModelProto) -> None:
    m.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


@fault("an input of a negative size", products)
def _(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -3


@fault("two inputs of one name", products)
def _(m: ModelProto) -> None:
    m.graph.input.append(m.graph.input[0])


@fault("no opset for the operators' domain", products)
def _(m: ModelProto) -> None:
    m.opset_import[0].domain = "com.microsoft"


@fault("an opset of the far future", products)
def _(m: ModelProto) -> None:
    m.opset_import[0].version = 2**62


@fault("a negative opset", products)
def _(m: ModelProto) -> None:
    m.opset_import[0].version = -1


@fault("no inputs", products)
def _(m: ModelProto) -> None:
    del m.graph.input[:]


@fault("no nodes", products)
def _(m: ModelProto) -> None:
    del m.graph.node[:]


@fault("a body that reads what nothing makes", bodies)
def _(m: ModelProto) -> None:
    node(m, "If").attribute[0].g.node[0].input[0] = "ghost"


@fault("a body that makes a name of the outer graph", bodies)
def _(m: ModelProto) -> None:
    body = node(m, "If").attribute[0].g
    body.node[0].output[0] = body.output[0].name = "made" + "x"
    body.node.append(helper.make_node("Relu", ["ghost"], ["x"]))


@fault("a body without nodes", bodies)
def _(m: ModelProto) -> None:
    del node(m, "If").attribute[0].g.node[:]


@fault("an If with one branch", bodies)
def _(m: ModelProto) -> None:
    del node(m, "If").attribute[1]


@fault("a Constant without a value", bodies)
def _(m: ModelProto) -> None:
    del node(m, "Constant").attribute[:]


# What onnx's check and ONNX Runtime both let pass: it fails, if at all, when the model is run.
TOLERATED = (
    "Conv with group group = 4611686018427387904", "Gather with axis axis = 4611686018427387904",
    "a Gemm's constant that is a bias of another length", "a Gemm's constant that is a matrix for a bias",
    "an input of a negative size",
)  # fmt: skip


def written(m: ModelProto, feed: Feed, folder: Path) -> tuple[Path, Path]:
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    np.savez(folder / "d.npz", **feed)
    return folder / "m.onnx", folder / "d.npz"


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_graph_is_one_line_from_every_command(name: str, tmp_path: Path) -> None:
    base, made = FAULTS[name]
    m, feed = base()
    made(m)
    model, data = written(m, feed, tmp_path)
    out = ["-o", str(tmp_path / "out.onnx"), "--seconds", "0"]
    for line in (
        *(["quantize", str(model), "-r", r, *out] for r in ("dynamic-int8", "W8A16")),
        ["quantize", str(model), "-r", "static-int8", "--data", str(data), *out],
        ["compare", str(model), str(model), "--seconds", "0"],
        ["inspect", str(model)],
    ):
        result = CliRunner().invoke(_app(), line)
        judged = line[0] == "quantize" and name not in TOLERATED
        assert result.exit_code in ((2,) if judged else (0, 2)), (line, result.output)
        assert "Traceback" not in result.output
        if result.exit_code:
            assert result.stderr.startswith("lowbit: ")
            assert len(result.stderr.splitlines()) == 1
        assert (tmp_path / "out.onnx").exists() == (line[0] == "quantize" and result.exit_code == 0)
        (tmp_path / "out.onnx").unlink(missing_ok=True)


@pytest.mark.parametrize("name", [n for n in FAULTS if n != "an input of a negative size"])
def test_observe_raises_what_it_promises(name: str) -> None:
    base, made = FAULTS[name]
    m, feed = base()
    made(m)
    with pytest.raises((FormatError, InvalidProblem)):
        observe(m, [feed], progress=False)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_graphs_without_a_fault_are_fine(base: Any, recipe: str, tmp_path: Path) -> None:
    m, feed = base()
    model, _ = written(m, feed, tmp_path)
    quantize_file(model, tmp_path / "o.onnx", recipe, data=[feed], seconds=0, progress=False)
    assert observe(m, [feed], progress=False)


# ---- several faults at random --------------------------------------------------------------------------

INTEGERS = (0, -1, 1, 2, 3, 7, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)
NAMES = ("", "x", "ghost", "w1", "table", "Add", ":/\\")
OPS = (
    "", "Conv", "Gemm", "MatMul", "Gather", "Constant", "If", "Loop", "BatchNormalization", "Transpose", "Cast",
    "Identity", "DequantizeLinear", "QuantizeLinear", "Concat", "Clip", "Reshape", "LSTM", "Bogus", "ConvTranspose",
)  # fmt: skip
ATTRIBUTES = (
    "group", "axis", "perm", "transB", "transA", "alpha", "kernel_shape", "to", "value", "value_ints", "epsilon",
    "training_mode", "then_branch",
)  # fmt: skip


def some_attribute(rng: random.Random) -> AttributeProto:
    name = rng.choice(ATTRIBUTES)
    value = rng.choice([
        rng.choice(INTEGERS), 1.5, "text", [rng.choice(INTEGERS) for _ in range(rng.randrange(1, 5))], [1.0, 2.0],
        ["a", "b"], numpy_helper.from_array(np.zeros((0, 3), np.float32)), None,
    ])  # fmt: skip
    if value is not None:
        return helper.make_attribute(name, value)
    return AttributeProto(name=name, type=rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11)))


def spoil(m: ModelProto, rng: random.Random) -> None:
    g = m.graph
    n, t = rng.choice(g.node), rng.choice(g.initializer)
    shapes = [(0,), (0, 64), (64, 0), (1,), (), (2, 2), (64,), (3, 3, 3, 3), (16,), (15,), (1, 64, 64)]
    dtypes = [np.float32, np.float16, np.float64, np.int64, np.int8, bool]
    rng.choice([
        lambda: n.input.__delitem__(rng.randrange(len(n.input))),
        lambda: n.input.__delitem__(slice(None)),
        lambda: n.output.__delitem__(slice(None)),
        lambda: n.input.__setitem__(rng.randrange(len(n.input)), rng.choice(NAMES)),
        lambda: n.output.__setitem__(rng.randrange(len(n.output)), rng.choice(NAMES)),
        lambda: setattr(n, "op_type", rng.choice(OPS)),
        lambda: setattr(n, "domain", rng.choice(["", "ai.onnx", "com.microsoft", "bogus"])),
        lambda: n.attribute.append(some_attribute(rng)),
        lambda: n.attribute.__delitem__(slice(None)),
        lambda: g.node.append(n),
        lambda: g.node.__delitem__(rng.randrange(len(g.node))),
        lambda: t.dims.__setitem__(rng.randrange(len(t.dims)), rng.choice(INTEGERS)),
        lambda: setattr(t, "data_type", rng.choice([0, 1, 2, 3, 7, 10, 11, 16, 21, 99])),
        lambda: setattr(t, "name", rng.choice(NAMES)),
        lambda: t.CopyFrom(numpy_helper.from_array(np.ones(rng.choice(shapes), rng.choice(dtypes)), t.name)),
        lambda: g.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", rng.choice(INTEGERS)),
        lambda: g.output.__delitem__(slice(None)),
        lambda: setattr(m.opset_import[0], "version", rng.choice([0, 1, 7, 11, 13, 21, 25, 999, -1])),
        lambda: setattr(m, "ir_version", rng.choice([1, 3, 4, 8, 13, 99, 2**40])),
    ])()  # fmt: skip


@pytest.mark.parametrize("seed", range(160))
def test_random_faults_raise_what_is_promised(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    m, feed = rng.choice(BASES)()
    for _ in range(rng.randrange(1, 4)):
        try:
            spoil(m, rng)
        except (ValueError, IndexError, TypeError):  # there was nothing of that kind to spoil
            continue
    model, data = written(m, feed, tmp_path)
    static = {"data": rng.choice([data, [feed]])} if seed % 2 else {}
    recipe = "static-int8" if seed % 2 else rng.choice(("dynamic-int8", "W8A16", "W4A16"))
    for call in (
        lambda: quantize_file(model, tmp_path / "o.onnx", recipe, seconds=0, progress=False, **static),
        lambda: compare_files(model, model, seconds=0),
        lambda: inspect_file(model),
    ):
        try:
            call()
        except (FormatError, InvalidProblem, Unsupported):
            continue


def test_the_check_neither_copies_nor_reads_weights() -> None:
    """Weights in files that are not there, in the graph and in a body, and one too large for a message of protobuf."""
    from lowbit.formats.onnx.inference import _without_large_constants, check_model

    m, _ = bodies()
    table = next(t for t in m.graph.initializer if t.name == "table")
    inner = node(m, "If").attribute[0].g.initializer[0]
    for t, rows in ((table, 1 << 40), (inner, 32)):
        t.ClearField("raw_data")
        t.dims[0] = rows
        t.data_location = TensorProto.EXTERNAL
        t.external_data.add(key="location", value="nowhere.bin")
    check_model(m, "m")
    assert _without_large_constants(m).ByteSize() < 20_000
    node(m, "MatMul").input[1] = "ghost"
    with pytest.raises(FormatError, match="ghost"):
        check_model(m, "m")
