"""An ONNX model as a graph to query and change: producers, consumers, constants, types."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from lowbit.formats.onnx import model_file
from lowbit.formats.onnx.inference import inferred_types
from lowbit.formats.onnx.opset import raised
from lowbit.formats.onnx.saving import save_model
from lowbit.numerics.errors import FormatError, InvalidProblem

Array = npt.NDArray[Any]
Use = tuple[NodeProto, int]

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
# Nodes that are removed where nothing reads their output.
_RESHUFFLE = {"Constant", "Transpose", "Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze"}
# Attributes of a Constant that hold numbers without a tensor.
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


class Graph:
    """A model with its names indexed, bodies of If, Loop and Scan included: names are unique in the whole model.

    Change it by its methods, or call `refresh` after changes to `proto`. Compare nodes by `is`.

    >>> from onnx import helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xy")
    >>> body = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    >>> g = Graph.load(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    >>> g.producer("y").op_type, g.shape("y"), g.opset
    ('Relu', (2, 2), 17)
    """

    def __init__(self, proto: ModelProto, path: Path | None) -> None:
        self.proto = proto
        self.path = path
        self.refresh()

    @classmethod
    def load(cls, source: str | os.PathLike[str] | ModelProto) -> Graph:
        """The model at a path, or a copy of a proto, local functions inlined; FormatError where it is invalid."""
        path = None
        if isinstance(source, ModelProto):
            name, proto = "model", ModelProto()
            proto.CopyFrom(source)
        elif isinstance(source, str | os.PathLike):
            name, path = os.fspath(source), Path(source)
            proto = model_file.read_proto(path)
        else:
            raise InvalidProblem(f"model: {type(source).__name__}; expected a path or an onnx.ModelProto")
        if not proto.HasField("graph") or proto.ir_version <= 0 or not proto.opset_import:
            raise FormatError(f"{name}: not an ONNX model: no graph, ir_version or opset_import in it")
        try:
            if proto.functions:
                proto = _inlined(proto)
            for t in model_file.tensors(proto.graph):
                model_file.check_tensor(t, None if path is None else path.parent)
            model_file.check_graph(proto.graph)
            _modernise(proto)
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from None
        return cls(proto, path)

    # ---- questions ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Rebuild the index of names."""
        self._home: dict[int, tuple[GraphProto, NodeProto]] = {}  # keeps the Python objects of nodes alive, for `is`
        self._producers: dict[str, NodeProto] = {}
        self._consumers: dict[str, list[Use]] = {}
        self._graphs = list(model_file.graphs(self.proto.graph))
        self._owners = {
            id(g): node for graph in self._graphs for node in graph.node for g in model_file.subgraphs(node)
        }
        self._initializers: dict[str, TensorProto] = {t.name: t for graph in self._graphs for t in graph.initializer}
        self._inputs = {i.name for graph in self._graphs for i in graph.input}
        self._outputs = {o.name for graph in self._graphs for o in graph.output}
        self._types: dict[str, onnx.TypeProto] | None = None
        sparse = [t.values.name for graph in self._graphs for t in graph.sparse_initializer]
        self._names = dict.fromkeys((*self._initializers, *self._inputs, *sparse), 0)
        for graph in self._graphs:
            for node in graph.node:
                self._enter(node, graph)

    def _enter(self, node: NodeProto, graph: GraphProto) -> None:
        self._home[id(node)] = graph, node
        for o in node.output:
            if o:
                self._producers[o] = node
                self._names.setdefault(o, 0)
        for i, name in enumerate(node.input):
            if name:
                self._consumers.setdefault(name, []).append((node, i))

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes of the main graph, in topological order."""
        return list(self.proto.graph.node)

    @property
    def all_nodes(self) -> list[NodeProto]:
        """The nodes of the main graph and of all bodies."""
        return [node for graph in self._graphs for node in graph.node]

    @property
    def names(self) -> list[str]:
        """The names of all nodes and stored tensors."""
        return [*self._initializers, *(node.name for node in self.all_nodes if node.name)]

    def home(self, node: NodeProto) -> GraphProto:
        """The graph or body a node is in."""
        return self._home[id(node)][0]

    def in_body(self, node: NodeProto) -> bool:
        """Whether a node is inside an If, Loop or Scan."""
        return self.home(node) is not self.proto.graph

    def in_loop(self, node: NodeProto) -> bool:
        """Whether a node is inside a Loop or Scan, and not only in branches of an If."""
        while self.in_body(node):
            node = self._owners[id(self.home(node))]
            if node.op_type != "If":
                return True
        return False

    def producer(self, name: str) -> NodeProto | None:
        """The node that produces a tensor; None for inputs and initializers."""
        return self._producers.get(name)

    def consumers(self, name: str) -> list[Use]:
        """(node, index of its input) for each reader of a tensor, in bodies too."""
        return list(self._consumers.get(name, ()))

    def is_graph_output(self, name: str) -> bool:
        """Whether a tensor leaves the graph, or the body of an If, Loop or Scan."""
        return name in self._outputs

    def initializer(self, name: str) -> TensorProto | None:
        """The stored tensor of this name: an initializer, or that of a Constant node."""
        if name in self._initializers:
            return self._initializers[name]
        node = self.producer(name)
        if node is not None and node.op_type == "Constant" and not node.domain:
            return next((a.t for a in node.attribute if a.name == "value"), None)
        return None

    def may_be_given(self, name: str) -> bool:
        """Whether an initializer is only the default of an input."""
        return name in self._inputs and name in self._initializers and self.proto.ir_version >= 4

    def constant(self, name: str) -> Array | None:
        """The value of a constant tensor, or None. External data are mapped; do not write to them."""
        if self.may_be_given(name):
            return None
        stored = self.initializer(name)
        if stored is not None:
            return model_file.tensor_array(stored, self.folder) if stored.data_type != TensorProto.STRING else None
        node = self.producer(name)
        if node is not None and node.op_type == "Constant" and not node.domain:
            for a in node.attribute:
                if a.name in _NUMBERS:
                    return np.asarray(onnx.helper.get_attribute_value(a), _NUMBERS[a.name])
        return None

    @property
    def folder(self) -> Path | None:
        """The folder of external data."""
        return None if self.path is None else self.path.parent

    @property
    def bytes_beside(self) -> int:
        """The size of the model's external data files."""
        return sum(p.stat().st_size for p in self.files_beside)

    @property
    def files_beside(self) -> set[Path]:
        """The model's external data files."""
        outside = [t for t in model_file.tensors(self.proto.graph) if t.data_location == TensorProto.EXTERNAL]
        return {model_file.external_place(t, self.folder)[0] for t in outside}

    # ---- types --------------------------------------------------------------------------------------

    def element_type(self, name: str) -> int:
        """The TensorProto.DataType of a tensor; UNDEFINED where shape inference does not know."""
        stored = self.initializer(name)
        if stored is not None:
            return int(stored.data_type)
        return int(self._inferred(name).elem_type)

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of a tensor, with None for unknown sizes; None where the rank is unknown."""
        stored = self.initializer(name)
        if stored is not None:
            return tuple(stored.dims)
        found = self._inferred(name)
        if not found.HasField("shape"):
            return None
        # Old exporters write -1 for any size.
        return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in found.shape.dim)

    def _inferred(self, name: str) -> onnx.TypeProto.Tensor:
        if self._types is None:
            self._types = inferred_types(self.proto)
        return self._types.get(name, onnx.TypeProto()).tensor_type

    # ---- changes ------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """A new name: this one, or the first numbered form that is free."""
        return model_file.unused(name, self._names)

    def add_constant(self, name: str, array: Array, home: GraphProto | None = None) -> str:
        """Store an array, of NumPy's or ml_dtypes' types; returns its name. home: the body to store it in."""
        name = self.fresh(name)
        home = self.proto.graph if home is None else home
        home.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        self._initializers[name] = home.initializer[-1]
        return name

    def replace_input(self, node: NodeProto, index: int, name: str) -> None:
        """Let a node read another tensor."""
        old = node.input[index]
        self._consumers[old] = [u for u in self._consumers.get(old, ()) if not (u[0] is node and u[1] == index)]
        node.input[index] = name
        self._consumers.setdefault(name, []).append((node, index))

    def dequantize_input(self, node: NodeProto, index: int, name: str, codes: Sequence[str], **options: Any) -> None:
        """Let a node read a DequantizeLinear of these constants: codes, scales and, if any, zero points."""
        made = self.fresh(name)
        self.insert_before(node, [onnx.helper.make_node("DequantizeLinear", codes, [made], name=made, **options)])
        self.replace_input(node, index, made)

    def rename_output(self, node: NodeProto, index: int, name: str) -> None:
        """Rename an output of a node; its readers are not changed."""
        self._producers.pop(node.output[index], None)
        node.output[index] = name
        self._producers[name] = node
        self._names.setdefault(name, 0)

    def insert_before(self, node: NodeProto, new: Sequence[NodeProto]) -> list[NodeProto]:
        """Insert nodes before one, in its own body; returns them as they are in the graph."""
        return self._insert(self.home(node), self._place(node), new)

    def replace(self, node: NodeProto, new: Sequence[NodeProto]) -> None:
        """Put nodes in the place of one."""
        self.insert_before(node, new)
        self.remove(node)

    def insert_after(self, node: NodeProto, new: Sequence[NodeProto]) -> list[NodeProto]:
        """Insert nodes after one, in its own body; returns them as they are in the graph."""
        return self._insert(self.home(node), self._place(node) + 1, new)

    def insert_first(self, new: Sequence[NodeProto], home: GraphProto | None = None) -> list[NodeProto]:
        """Insert nodes that read only constants before all others of the graph or a body."""
        return self._insert(self.proto.graph if home is None else home, 0, new)

    def _insert(self, graph: GraphProto, at: int, new: Sequence[NodeProto]) -> list[NodeProto]:
        placed = []
        for i, n in enumerate(new):
            graph.node.insert(at + i, n)
            placed.append(graph.node[at + i])
            self._enter(placed[-1], graph)
        self._types = None
        return placed

    def _place(self, node: NodeProto) -> int:
        return next(i for i, n in enumerate(self.home(node).node) if n is node)

    def remove(self, node: NodeProto) -> None:
        """Remove a node. Its outputs need another producer by the time the graph is saved."""
        graph, at = self.home(node), self._place(node)
        for name in node.input:
            if name:
                self._consumers[name] = [u for u in self._consumers.get(name, ()) if u[0] is not node]
        for o in node.output:
            if self._producers.get(o) is node:
                del self._producers[o]
        del graph.node[at]
        del self._home[id(node)]

    def remove_unused(self) -> None:
        """Remove constants, and nodes that reshape them, where nothing reads their output."""

        def read(name: str) -> bool:
            return bool(self._consumers.get(name)) or name in self._outputs

        while True:
            idle = [n for n in self.all_nodes if n.op_type in _RESHUFFLE and not any(map(read, n.output))]
            for node in idle:
                self.remove(node)
            if not idle:
                break
        for graph in self._graphs:
            gone = {t.name for t in graph.initializer if not read(t.name)}
            model_file.drop(graph.initializer, gone)
            if graph is self.proto.graph:  # inputs of a body are counted, not named
                model_file.drop(graph.input, gone)
            for name in gone:
                self._initializers.pop(name, None)
                self._inputs.discard(name)
        alive = {*self._producers, *self._initializers, *self._inputs}
        for graph in self._graphs:
            model_file.drop(graph.value_info, {v.name for v in graph.value_info} - alive)

    # ---- versions and files -------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators that the model uses."""
        return next((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 1)

    def raise_opset(self, minimum: int) -> None:
        """Raise the model to at least this opset, or raise Unsupported and leave it unchanged. Nodes held from before
        may no longer belong to it."""
        if self.opset < minimum:
            self.proto = raised(self.proto, minimum)
            self.refresh()

    def use_domain(self, domain: str) -> None:
        """Import the operators of a domain, of version 1."""
        if not any(o.domain == domain for o in self.proto.opset_import):
            self.proto.opset_import.append(onnx.helper.make_opsetid(domain, 1))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        external_data: bool | str = "auto",
        overwrite: bool = False,
        check: Callable[[Path], None] | None = None,
    ) -> int:
        """Write the model atomically; returns the bytes of all files.

        external_data: True stores weights in a file beside the model, `<name>-<digest of its content>.data`; "auto"
        does so where one file cannot hold them. The source is replaced only with overwrite. check: called with the
        complete files before they are renamed to the target; an exception cancels the write.
        """
        return save_model(self.proto, self.path, Path(path), external_data, overwrite, check)


def _inlined(proto: ModelProto) -> ModelProto:
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise FormatError(f"its functions cannot be inlined ({error})") from None


def _modernise(proto: ModelProto) -> None:
    """Adapt old models. Before IR 4 every initializer was an input too, which now means a default; and the domain
    "ai.onnx" is better known by its empty name."""
    for said in proto.opset_import:
        if said.domain == "ai.onnx" and not any(o.domain == "" for o in proto.opset_import):
            said.domain = ""
    for node in model_file.nodes(proto.graph):
        if node.domain == "ai.onnx":
            node.domain = ""
    if proto.ir_version < 4:
        model_file.drop(proto.graph.input, {t.name for t in proto.graph.initializer})
        proto.ir_version = 4
