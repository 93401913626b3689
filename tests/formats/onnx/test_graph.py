"""lowbit.formats.onnx.graph: questions to a graph, changes of it, and files that are not what they claim."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_models as made
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.weight_uses import quantized_uses, weights
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported


def relu(name="y", reads="x"):
    return helper.make_node("Relu", [reads], [name])


def unchecked(nodes, inputs=("x",), outputs=("y",), constants=()):
    shapes = [made.info(n, [2, 2]) for n in inputs], [made.info(n, [2, 2]) for n in outputs]
    graph = helper.make_graph(nodes, "g", *shapes, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# ---- questions ----------------------------------------------------------------------------------------


def test_who_makes_and_who_reads():
    g = Graph.load(made.two_layers())
    assert g.producer("r").op_type == "Relu"
    assert g.producer("x") is None
    assert g.producer("u") is None
    assert [(n.op_type, i) for n, i in g.consumers("r")] == [("MatMul", 0), ("MatMul", 0)]
    assert g.consumers("r")[0][0] is g.nodes[2]
    assert g.is_graph_output("z")
    assert not g.is_graph_output("r")
    assert g.opset == 17


def test_types_and_shapes_are_inferred_without_large_weights():
    g = Graph.load(made.two_layers(k=64, inner=5000))
    assert g.shape("r") == (None, 5000)
    assert g.element_type("r") == TensorProto.FLOAT
    assert g.shape("u") == (64, 5000)
    assert g.element_type("nowhere") == TensorProto.UNDEFINED


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, ml_dtypes.int4])
def test_constants_are_read_as_stored(dtype):
    a = made.normal(5, 7).astype(dtype)
    g = Graph.load(unchecked([relu()], constants=[numpy_helper.from_array(a, "a")]))
    assert np.array_equal(g.constant("a"), a)
    assert g.constant("a").dtype == dtype
    assert g.constant("x") is None


def test_constants_in_typed_fields_and_in_nodes():
    t = helper.make_tensor("a", TensorProto.FLOAT, [2, 2], [1, 2, 3, 4])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(made.normal(3, 4))),
        helper.make_node("Constant", [], ["d"], value_floats=[1.0, 2.0]),
        relu(),
    ]
    g = Graph.load(unchecked(nodes, constants=[t]))
    assert g.constant("a").tolist() == [[1, 2], [3, 4]]
    assert np.array_equal(g.constant("c"), made.normal(3, 4))
    assert g.constant("d").tolist() == [1, 2]


def test_a_default_that_callers_may_replace_is_no_constant():
    proto = unchecked([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs=("x", "w"))
    proto.graph.initializer.append(numpy_helper.from_array(made.normal(2, 2), "w"))
    g = Graph.load(proto)
    assert g.constant("w") is None
    assert "callers may replace it" in weights(g)[0].why_not
    proto.ir_version = 3  # had to be inputs then
    assert Graph.load(proto).constant("w") is not None


# ---- changes ------------------------------------------------------------------------------------------


def test_inserting_replacing_and_removing_keeps_the_index():
    g = Graph.load(made.two_layers())
    old = g.producer("y")
    g.add_constant("u", np.float32(2).reshape(()))  # the name is taken
    assert "u_1" in {t.name for t in g.proto.graph.initializer}
    assert g.constant("u_1").shape == ()
    (twice,) = g.insert_before(old, [helper.make_node("Mul", ["r", "u_1"], ["r2"])])
    g.replace_input(old, 0, "r2")
    assert g.producer("r2") is twice
    assert g.consumers("r2")[0] == (old, 0)
    assert [n.op_type for n, _ in g.consumers("r")] == ["MatMul", "Mul"]
    onnx.checker.check_model(g.proto, full_check=True)
    g.replace_input(old, 0, "r")
    g.remove(twice)
    g.remove_unused()
    assert g.producer("r2") is None
    assert g.constant("u_1") is None
    onnx.checker.check_model(g.proto, full_check=True)


def test_unused_constants_go_inside_bodies_too():
    proto = made.branches()
    body = proto.graph.node[0].attribute[0].g
    body.initializer.append(numpy_helper.from_array(made.normal(9, 9), "idle"))
    body.node.insert(0, helper.make_node("Constant", [], ["idle2"], value_float=1.0))
    g = Graph.load(proto)
    g.remove_unused()
    body = g.proto.graph.node[0].attribute[0].g
    assert len(body.initializer) == 1
    assert len(body.node) == 1


def test_the_same_name_in_two_bodies_becomes_two():
    g = Graph.load(made.branches())
    assert len({u.name for u in weights(g)}) == 2
    feeds = {"flag": np.array(False), "x": made.normal(3, 64)}
    assert np.array_equal(made.run(g.proto, feeds)[0], made.run(made.branches(), feeds)[0])


def test_a_body_with_a_name_and_its_numbered_form_keeps_them_apart():
    inner = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["y_1"])]
    body = helper.make_graph(inner, "b", [], [made.info("y_1", [2, 2])])
    outer = [relu(), helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)]
    graph = Graph.load(unchecked(outer, inputs=("x", "c"), outputs=("y", "z")))
    names = [o for a in graph.proto.graph.node[1].attribute for n in a.g.node for o in n.output]
    assert len(set(names)) == 4
    for a in graph.proto.graph.node[1].attribute:
        assert a.g.node[1].input == a.g.node[0].output
        assert a.g.output[0].name == a.g.node[1].output[0]


def test_many_bodies_with_one_name_are_told_apart_in_a_step_each(monkeypatch):
    """The numbers that are tried are counted: it was the square of the number of bodies."""
    from lowbit.formats.onnx import model_file

    tried = 0

    class Counted(dict):
        def __contains__(self, key):
            nonlocal tried
            tried += 1
            return super().__contains__(key)

    taken = Counted()
    found = [model_file.unused("x", taken) for _ in range(2000)]
    assert found[:2] == ["x", "x_1"]
    assert len(set(found)) == 2000
    assert tried <= 4100


def test_nodes_out_of_order_are_sorted():
    proto = unchecked([relu("y", "h"), relu("h", "x")])
    assert [n.output[0] for n in Graph.load(proto).nodes] == ["h", "y"]


def test_raising_the_opset_changes_no_output():
    g = Graph.load(made.gemm())
    x = made.normal(4, 64)
    before = made.run(g.proto, {"x": x})[0]
    g.raise_opset(21)
    assert g.opset == 21
    assert g.proto.ir_version == 10
    onnx.checker.check_model(g.proto, full_check=True)
    assert np.array_equal(made.run(g.proto, {"x": x})[0], before)
    g.raise_opset(13)
    assert g.opset == 21


def test_split_into_equal_parts_survives_the_opset_that_wants_their_number():
    proto = made.model(
        [made.node("Split", ["x"], ["a", "b"], axis=1)], [made.info("x", [2, 4])],
        [made.info("a", [2, 2]), made.info("b", [2, 2])], opset=13,
    )  # fmt: skip
    g = Graph.load(proto)
    g.raise_opset(21)
    x = made.normal(2, 4)
    assert np.array_equal(made.run(g.proto, {"x": x})[1], x[:, 2:])


def test_an_operator_that_changed_is_converted():
    proto = made.model(
        [made.node("ReduceMax", ["x"], "y", axes=[1])], [made.info("x", [2, 4])], [made.info("y", [2, 1])], opset=13
    )
    g = Graph.load(proto)
    g.raise_opset(21)
    x = made.normal(2, 4)
    assert np.array_equal(made.run(g.proto, {"x": x})[0], x.max(1, keepdims=True))


def test_an_opset_that_cannot_be_reached_is_unsupported_and_nothing_changes():
    proto = unchecked(
        [helper.make_node("Upsample", ["x", "s"], ["y"])], constants=[numpy_helper.from_array(np.float32([1, 1]), "s")]
    )
    proto.opset_import[0].version = 9
    g = Graph.load(proto)
    g.proto.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises(Unsupported, match="NoSuchOp"):
        g.raise_opset(21)
    assert g.opset == 9


def test_local_functions_are_put_in_place():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    function = helper.make_function("own", "Product", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
    proto = unchecked(
        [helper.make_node("Product", ["x", "w"], ["y"], domain="own")],
        constants=[numpy_helper.from_array(made.normal(2, 2), "w")],
    )
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    assert [u.op for u in weights(Graph.load(proto))] == ["MatMul"]


# ---- weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (made.matmul(), ("linear", "MatMul", 1, 1, (64, 32))),
        (made.gemm(), ("linear", "Gemm", 1, 0, (32, 64))),
        (made.gemm(trans_b=0), ("linear", "Gemm", 1, 1, (64, 32))),
        (made.conv(), ("conv", "Conv", 1, 0, (16, 8, 3, 3))),
        (made.conv(transpose=True), ("conv", "ConvTranspose", 1, 1, (8, 16, 3, 3))),
        (made.embedding(), ("embedding", "Gather", 0, 0, (300, 64))),
    ],
    ids=["matmul", "gemm", "gemm, not turned", "conv", "transposed conv", "embedding"],
)  # fmt: skip
def test_weights_of_each_layer(proto, expected):
    (u,) = weights(Graph.load(proto))
    assert (u.kind, u.op, u.input_index, u.channel_axis, u.shape) == expected
    assert not u.why_not


def test_weights_behind_transpose_identity_cast_and_constant_nodes():
    w = made.normal(32, 64, dtype=np.float16)
    nodes = [
        helper.make_node("Constant", [], ["stored"], value=numpy_helper.from_array(w)),
        made.node("Identity", ["stored"], "same"), made.node("Cast", ["same"], "wide", to=TensorProto.FLOAT),
        made.node("Transpose", ["wide"], "turned"), made.node("MatMul", ["x", "turned"], "y"),
    ]  # fmt: skip
    g = Graph.load(made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 32])]))
    (u,) = weights(g)
    assert (u.name, u.shape, u.channel_axis, u.dtype) == ("stored", (64, 32), 1, "float32")
    assert np.array_equal(u.value(g), w.astype(np.float32).T)


def test_tied_weights_are_known_to_be_shared():
    uses = weights(Graph.load(made.tied()))
    assert [(u.name, u.op, u.shared) for u in uses] == [("table", "Gather", 2), ("table", "MatMul", 2)]


def test_what_is_not_treated_says_why():
    w = made.normal(4, 4)
    nodes = [made.node("MatMul", ["w", "x"], "l"), made.node("Mul", ["l", "m"], "y")]
    g = Graph.load(made.model(nodes, [made.info("x", [4, 4])], [made.info("y", [4, 4])], {"w": w, "m": w}))
    assert [u.why_not for u in weights(g)] == ["the left operand of MatMul", "used by Mul"]


def test_quantized_layers_are_recognised():
    nodes = [made.node("DequantizeLinear", ["q", "s"], "d", axis=1), made.node("MatMul", ["x", "d"], "y")]
    constants = {"q": np.ones((64, 32), np.int8), "s": np.ones(32, np.float32)}
    g = Graph.load(made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 32])], constants))
    assert weights(g) == []
    (u,) = quantized_uses(g)
    assert (u.name, u.op, u.why_not) == ("q", "MatMul", "came quantized (DequantizeLinear)")


# ---- files --------------------------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(tmp_path):
    g = Graph.load(made.matmul())
    size = g.save(tmp_path / "a.onnx")
    assert size == (tmp_path / "a.onnx").stat().st_size
    assert onnx.load(tmp_path / "a.onnx") == g.proto
    assert os.listdir(tmp_path) == ["a.onnx"]


def test_external_data_out_and_in(tmp_path):
    g = Graph.load(made.two_layers())
    size = g.save(tmp_path / "a.onnx", external_data=True)
    assert [re.sub("[0-9a-f]{16}", "*", n) for n in sorted(os.listdir(tmp_path))] == ["a-*.data", "a.onnx"]
    assert size == sum(f.stat().st_size for f in tmp_path.iterdir())
    onnx.checker.check_model(str(tmp_path / "a.onnx"), full_check=True)
    back = Graph.load(tmp_path / "a.onnx")
    assert isinstance(back.constant("u"), np.memmap)
    assert np.array_equal(back.constant("u"), g.constant("u"))
    x = made.normal(3, 64)
    assert np.array_equal(made.run(tmp_path / "a.onnx", {"x": x})[0], made.run(g.proto, {"x": x})[0])
    back.save(tmp_path / "b.onnx")  # and inside again
    assert onnx.load(tmp_path / "b.onnx").graph.initializer[0].raw_data == g.constant("u").tobytes()
    back.save(tmp_path / "c.onnx", external_data=True)
    assert np.array_equal(Graph.load(tmp_path / "c.onnx").constant("w"), g.constant("w"))


def test_the_input_is_not_overwritten_unless_asked(tmp_path):
    path = made.saved(made.matmul(), tmp_path)
    g = Graph.load(path)
    before = path.read_bytes()
    with pytest.raises(InvalidProblem, match="overwrite=True"):
        g.save(path)
    with pytest.raises(InvalidProblem, match="overwrite=True"):
        g.save(tmp_path / "." / "model.onnx", external_data=True)
    assert path.read_bytes() == before
    g.save(path, external_data=True, overwrite=True)
    again = Graph.load(path)
    with pytest.raises(InvalidProblem, match="overwrite=True"):
        again.save(tmp_path / "model.onnx", external_data=True)
    again.save(path, external_data=True, overwrite=True)  # its own data file too
    assert np.array_equal(Graph.load(path).constant("w"), made.normal(64, 32))


@pytest.mark.parametrize("failing", ["check", "rename"])
def test_a_failure_leaves_old_files_as_they_were(tmp_path, monkeypatch, failing):
    Graph.load(made.matmul()).save(tmp_path / "a.onnx", external_data=True)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert len(before) == 2
    replace, check = os.replace, None
    if failing == "check":

        def check(path):
            assert path.exists()
            assert len(list(path.parent.glob("a-*.data"))) == 1
            raise RuntimeError("no")
    else:

        def second(a, b):
            if Path(b).name == "a.onnx":
                assert len(list(tmp_path.glob("a-*.data"))) == 2
                raise RuntimeError("no")
            return replace(a, b)

        monkeypatch.setattr(os, "replace", second)
    with pytest.raises(RuntimeError):
        Graph.load(made.two_layers()).save(tmp_path / "a.onnx", external_data=True, check=check)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def scaled(factor):
    """One layer whose weights, and so the name of their data file, depend on the factor."""
    proto = made.matmul()
    w = proto.graph.initializer[0]
    w.raw_data = (np.frombuffer(w.raw_data, np.float32) * np.float32(factor)).tobytes()
    return Graph.load(proto)


def data_of(path):
    """The data files that a model reads."""
    model = onnx.load(path, load_external_data=False)
    return {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}


def test_data_files_are_named_by_their_content_and_go_with_the_model_that_read_them(tmp_path):
    path = tmp_path / "a.onnx"
    scaled(1).save(path, external_data=True)
    (first,) = data_of(path)
    assert first == f"a-{hashlib.sha256((tmp_path / first).read_bytes()).hexdigest()[:16]}.data"
    inode = (tmp_path / first).stat().st_ino
    scaled(1).save(path, external_data=True)  # the same again: the file stays
    assert data_of(path) == {first}
    assert (tmp_path / first).stat().st_ino == inode
    scaled(2).save(path, external_data=True)
    assert first not in os.listdir(tmp_path)
    assert set(os.listdir(tmp_path)) == {"a.onnx"} | data_of(path)
    scaled(3).save(path)  # inside the model: no data file is left
    assert os.listdir(tmp_path) == ["a.onnx"]


def test_data_that_another_model_reads_or_that_lowbit_did_not_write_are_kept(tmp_path):
    path = tmp_path / "a.onnx"
    scaled(1).save(path, external_data=True)
    (first,) = data_of(path)
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    foreign = ["a.onnx.data", "a.data", "a-0123456789abcdef.data", "b-0123456789abcdef.data", f"a-{first[2:-5]}0.data"]
    for name in foreign:
        (tmp_path / name).write_text("precious")
    (tmp_path / "a-fedcba9876543210.data").symlink_to("a.data")
    scaled(2).save(path, external_data=True, overwrite=True)
    expected = {"a.onnx", "copy.onnx", first, "a-fedcba9876543210.data", *foreign} | data_of(path)
    assert set(os.listdir(tmp_path)) == expected
    assert all((tmp_path / name).read_text() == "precious" for name in foreign)
    (tmp_path / "copy.onnx").unlink()
    scaled(3).save(path)
    assert set(os.listdir(tmp_path)) == {"a.onnx", "a-fedcba9876543210.data", *foreign}


def test_a_file_in_the_place_of_the_data_is_replaced_only_with_overwrite(tmp_path):
    path = tmp_path / "a.onnx"
    scaled(1).save(path, external_data=True)
    (data,) = data_of(path)
    path.unlink()
    (tmp_path / data).write_text("precious")
    with pytest.raises(InvalidProblem, match=r"a-[0-9a-f]{16}\.data: already there, with other content"):
        scaled(1).save(path, external_data=True)
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {data: "precious"}
    scaled(1).save(path, external_data=True, overwrite=True)
    assert np.array_equal(Graph.load(path).constant("w"), made.normal(64, 32))


@pytest.mark.parametrize("kind", ["link", "file", "full folder"])
def test_what_stands_in_the_place_of_the_working_folder_is_kept(tmp_path, kind):
    path, work = tmp_path / "a.onnx", tmp_path / ".a.onnx.partial"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    if kind == "link":
        work.symlink_to("precious")
    elif kind == "file":
        work.write_text("x")
    else:
        (tmp_path / "precious").rename(work)
    before = sorted(str(f) for f in tmp_path.rglob("*"))
    with pytest.raises(InvalidProblem, match=r"\.a\.onnx\.partial: "):
        scaled(1).save(path)
    assert sorted(str(f) for f in tmp_path.rglob("*")) == before


def test_two_runs_do_not_write_one_model_at_once(tmp_path):
    path = tmp_path / "a.onnx"

    def check(_):
        with pytest.raises(InvalidProblem, match="another run is writing it"):
            scaled(2).save(path)

    scaled(1).save(path, check=check)
    assert np.array_equal(Graph.load(path).constant("w"), made.normal(64, 32))
    assert os.listdir(tmp_path) == ["a.onnx"]


def test_a_folder_that_cannot_be_written_is_found_before_work(tmp_path, monkeypatch):
    from lowbit.formats.onnx.convert import quantize_onnx

    source = made.saved(made.matmul(), tmp_path)
    monkeypatch.setattr(Graph, "load", lambda *_: pytest.fail("it was read"))
    with pytest.raises(OSError, match="no file can be written here"):
        quantize_onnx(source, "/proc/a.onnx", "W8A16")


# ---- files that are not what they claim ---------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_cut_short(tmp_path, share):
    whole = made.two_layers().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(FormatError, match=r"m\.onnx"):
        Graph.load(path)


@pytest.mark.parametrize("content", [b"garbage" * 100, b"\x00" * 64, b"\x80\x04\x95", b"{}", bytes(range(256))])
def test_garbage(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(FormatError, match=r"m\.onnx"):
        Graph.load(tmp_path / "m.onnx")


def test_every_cut_and_random_bytes_are_a_format_error_or_a_model(tmp_path):
    whole = made.matmul(k=4, n=4).SerializeToString()
    rng = np.random.default_rng(0)
    path = tmp_path / "m.onnx"
    for i in range(len(whole)):
        cut = bytearray(whole)
        cut[i] = rng.integers(256)
        for content in (whole[:i], bytes(cut)):
            path.write_bytes(content)
            with contextlib.suppress(FormatError):
                weights(Graph.load(path))


def bad_tensor(**changes):
    t = numpy_helper.from_array(made.normal(2, 2), "w")
    for name, value in changes.items():
        if name == "dims":
            del t.dims[:]
            t.dims.extend(value)
        else:
            setattr(t, name, value)
    return t


BAD = {
    "a cycle": ([relu("a", "b"), relu("b", "a"), relu()], [], "cycle"),
    "a node that reads itself": ([relu("y", "y")], [], "cycle"),
    "a missing input": ([relu("y", "nothing")], [], "'nothing', which no node produces"),
    "two makers": ([relu(), relu()], [], "two node outputs"),
    "two initializers": ([relu()], [bad_tensor(), bad_tensor()], "two initializers"),
    "made and given": ([relu("x", "x"), relu()], [], "also an input"),
    "an output nobody makes": ([relu("z", "x")], [], "'y': an output"),
    "too little data": ([relu()], [bad_tensor(dims=[2, 3])], "16 bytes of data; shape .2, 3. needs 24"),
    "a huge shape": ([relu()], [bad_tensor(dims=[1 << 40, 1 << 40])], "bad shape"),
    "a negative shape": ([relu()], [bad_tensor(dims=[-1, -4])], "bad shape"),
    "an unknown type": ([relu()], [bad_tensor(data_type=99)], "unknown element type 99"),
    "no type": ([relu()], [bad_tensor(data_type=0)], "unknown element type 0"),
    "too few": ([relu()], [TensorProto(name="w", data_type=1, dims=[2], float_data=[1.0])], "1 numbers in float_data"),
    "no numbers": ([relu()], [TensorProto(name="w", data_type=1, dims=[1 << 30])], "0 numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_graphs_that_cannot_be(case):
    nodes, constants, message = BAD[case]
    with pytest.raises(FormatError, match=message):
        Graph.load(unchecked(nodes, constants=constants))


def external(location, offset="0", length="16", dims=(2, 2)):
    t = TensorProto(name="w", data_type=1, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            t.external_data.add(key=key, value=value)
    return t


ESCAPES = {
    "up": "../secret", "absolute": "/etc/passwd", "up inside": "sub/../../secret", "backslash": "..\\secret",
    "a link out": "link", "a folder": "sub", "missing": "nothing.bin", "empty": "", "no location": None,
    "a NUL": "da\0ta", "a drive": "C:\\secret", "a linked folder": "linked/secret",
}  # fmt: skip


@pytest.mark.parametrize("case", ESCAPES)
def test_external_data_stay_in_the_models_folder(tmp_path, case):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"s" * 64)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    proto = unchecked([relu()], constants=[external(ESCAPES[case])])
    with pytest.raises(FormatError, match="'w'"):
        Graph.load(made.saved(proto, folder))


@pytest.mark.parametrize(
    ("offset", "length", "dims"),
    [("8", "16", (2, 2)), ("0", "12", (2, 2)), ("0", "64", (4, 4)), ("-4", "16", (2, 2)), ("x", "16", (2, 2)),
     ("9" * 30, "16", (2, 2)), ("0", None, (1 << 20, 1 << 20)), ("17", None, (0,))],
)  # fmt: skip
def test_external_places_are_checked(tmp_path, offset, length, dims):
    (tmp_path / "d.bin").write_bytes(b"\0" * 16)
    proto = unchecked([relu()], constants=[external("d.bin", offset, length, dims)])
    with pytest.raises(FormatError, match="'w'"):
        Graph.load(made.saved(proto, tmp_path))


def test_a_proto_without_a_path_cannot_have_external_data():
    with pytest.raises(FormatError, match="load the model by its path"):
        Graph.load(unchecked([relu()], constants=[external("d.bin")]))


def test_no_such_file_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError):
        Graph.load(tmp_path / "nothing.onnx")
    with pytest.raises(FormatError, match="not a file"):
        Graph.load(tmp_path)
    with pytest.raises(InvalidProblem, match="expected a path"):
        Graph.load(3)


def test_more_than_one_file_can_hold_goes_beside_it(tmp_path, monkeypatch):
    from lowbit.formats.onnx import saving

    monkeypatch.setattr(saving, "_LARGEST", 10_000)
    Graph.load(made.two_layers()).save(tmp_path / "a.onnx")
    assert len(list(tmp_path.glob("a-*.data"))) == 1
    with pytest.raises(InvalidProblem, match="more than one ONNX file can hold"):
        Graph.load(made.two_layers()).save(tmp_path / "b.onnx", external_data=False)


def test_axes_that_became_inputs(tmp_path):
    """What exporters of opset 11 to 17 write all the time."""
    nodes = [
        made.node("Unsqueeze", ["x"], "u", axes=[0]), made.node("ReduceMean", ["u"], "m", axes=[-1], keepdims=1),
        made.node("ReduceSum", ["m"], "s", axes=[0], keepdims=0), made.node("Squeeze", ["s"], "y", axes=[1]),
    ]  # fmt: skip
    proto = made.model(nodes, [made.info("x", [3, 4])], [made.info("y", [3])], opset=11)
    g = Graph.load(proto)
    g.raise_opset(21)
    onnx.checker.check_model(g.proto, full_check=True)
    x = made.normal(3, 4)
    assert np.allclose(made.run(g.proto, {"x": x})[0], x.mean(1), atol=1e-6)
