"""Moments of what weights are multiplied with: the rows of every operator, against sums computed another way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.moments import few_rows, iterate_moments, observe_moments
from lowbit.numerics.errors import InvalidProblem
from onnx_builder import Builder
from onnx_models import info, model, node, normal
from onnx_running import run

F16 = onnx.TensorProto.FLOAT16


def observed(proto: onnx.ModelProto, *batches: Any, **options: Any) -> dict[str, Any]:
    return observe_moments(proto, list(batches), progress=False, **options)


def outer(rows: Any) -> Any:
    """E[x x^T] in float64 of rows [rows, inputs] or [rows, groups, inputs]."""
    wide = rows.astype(np.float64).reshape(len(rows), -1, rows.shape[-1])
    found = np.einsum("tgi,tgj->gij", wide, wide) / len(rows)
    return found if rows.ndim == 3 and rows.shape[1] > 1 else found[0]


def close(found: Any, rows: Any) -> None:
    """Moments of these rows: within the fixed point of 2^-15 of each row's largest magnitude."""
    assert found.count == len(rows)
    expected = outer(rows)
    assert np.abs(found.gram() - expected).max() <= 1e-4 * np.abs(expected).max()


# ---- matrix products ----------------------------------------------------------------------------------


def test_rows_of_a_matmul_are_the_last_axis() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], "y")], [info("x", ["b", 5, 16])], [info("y", ["b", 5, 8])], {"w": normal(16, 8)}
    )
    x = normal(3, 5, 16)
    close(observed(proto, {"x": x})["w"], x.reshape(-1, 16))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_rows_of_a_gemm_follow_its_transpositions(trans_a: int, trans_b: int) -> None:
    w = normal(8, 16) if trans_b else normal(16, 8)
    x = normal(16, 5) if trans_a else normal(5, 16)
    proto = model(
        [node("Gemm", ["x", "w"], "y", transA=trans_a, transB=trans_b)],
        [info("x", list(x.shape))], [info("y", [5, 8])], {"w": w},
    )  # fmt: skip
    close(observed(proto, {"x": x})["w"], x.T if trans_a else x)


def test_a_transposed_weight_is_multiplied_with_the_same_rows() -> None:
    proto = model(
        [node("Transpose", ["w"], "t", perm=[1, 0]), node("MatMul", ["x", "t"], "y")],
        [info("x", ["b", 16])], [info("y", ["b", 8])], {"w": normal(8, 16)},
    )  # fmt: skip
    x = normal(5, 16)
    close(observed(proto, {"x": x})["w"], x)


@pytest.mark.parametrize(
    ("stack", "lead"), [((3,), (3,)), ((3,), (2, 3)), ((3,), ()), ((2, 3), (3,)), ((2, 3), (2, 1)), ((1, 3), (4, 3))]
)
def test_a_stack_of_matrices_has_moments_for_each(stack: tuple[int, ...], lead: tuple[int, ...]) -> None:
    w, x = normal(*stack, 16, 8), normal(*lead, 5, 16)
    shape = np.matmul(x, w).shape
    proto = model([node("MatMul", ["x", "w"], "y")], [info("x", list(x.shape))], [info("y", list(shape))], {"w": w})
    found = observed(proto, {"x": x})["w"]
    wide = np.broadcast_to(x, (*shape[:-1], 16))
    wide = wide.reshape(-1, 3, 5, 16).swapaxes(1, 2).reshape(-1, 3, 16) if stack == (1, 3) else wide
    if stack == (3,):
        wide = np.moveaxis(wide.reshape(-1, 3, 5, 16), 1, 2).reshape(-1, 3, 16)
    if stack[0] == 2:
        wide = wide.transpose(2, 0, 1, 3).reshape(-1, 6, 16)
    assert found.groups == math.prod(stack)
    close(found, wide)


def test_float16_activations_count_as_they_are() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], "y")], [info("x", ["b", 16], F16)], [info("y", ["b", 8], F16)],
        {"w": normal(16, 8).astype(np.float16)},
    )  # fmt: skip
    x = normal(5, 16).astype(np.float16)
    close(observed(proto, {"x": x})["w"], x)


def test_input_weights_of_an_lstm_are_multiplied_with_its_input() -> None:
    constants = {"w": normal(2, 32, 6), "r": normal(2, 32, 8)}
    proto = model(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=8, direction="bidirectional")],
        [info("x", [5, "b", 6])], [info("y", [5, 2, "b", 8])], constants,
    )  # fmt: skip
    x = normal(5, 3, 6)
    found = observed(proto, {"x": x})
    assert set(found) == {"w"}  # r is multiplied with the state of each step
    close(found["w"], x.reshape(-1, 6))


# ---- convolutions -------------------------------------------------------------------------------------


def patches(x: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, groups: int) -> Any:
    """A loop over all outputs."""
    count = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)])
    outputs = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]  # fmt: skip
    rows = []
    for image in padded:
        for at in np.ndindex(*outputs):
            where = tuple(
                slice(i * s, i * s + (k - 1) * d + 1, d)
                for i, s, k, d in zip(at, strides, kernel, dilations, strict=True)
            )
            rows.append(image[(slice(None), *where)].reshape(groups, -1))
    found = np.stack(rows)
    return found[:, 0] if groups == 1 else found


CONVOLUTIONS = {
    "1d": ((9,), (3,), (1,), (1,), (1, 1), 1),
    "1d, strided and dilated": ((12,), (3,), (2,), (2,), (0, 3), 1),
    "1x1": ((4, 5), (1, 1), (1, 1), (1, 1), (0,) * 4, 1),
    "same": ((6, 5), (3, 3), (1, 1), (1, 1), (1,) * 4, 1),
    "uneven in every way": ((8, 7), (2, 3), (2, 1), (1, 2), (1, 0, 2, 3), 1),
    "groups": ((5, 5), (3, 3), (1, 1), (1, 1), (1,) * 4, 2),
    "depthwise": ((5, 5), (3, 3), (2, 2), (1, 1), (1,) * 4, 4),
    "3d": ((4, 5, 3), (2, 3, 1), (1, 2, 1), (1, 1, 1), (0, 1, 0, 1, 1, 0), 1),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_rows_of_a_convolution_are_its_patches(case: str) -> None:
    sizes, kernel, strides, dilations, pads, groups = CONVOLUTIONS[case]
    w, x = normal(8, 4 // groups, *kernel), normal(3, 4, *sizes)
    options = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    proto = model(
        [node("Conv", ["x", "w"], "y", **options)], [info("x", ["n", 4, *sizes])],
        [info("y", ["n", 8, *[None] * len(sizes)])], {"w": w},
    )  # fmt: skip
    found = observed(proto, {"x": x}, positions=1000)["w"]
    rows = patches(x, kernel, strides, dilations, pads, groups)
    close(found, rows)
    # They are what the filters are multiplied with, in the order of the filters.
    filters = w.reshape(groups, 8 // groups, -1)
    products = np.einsum("tgi,goi->tgo", rows.reshape(len(rows), groups, -1), filters).reshape(3, -1, 8)
    (y,) = run(proto, {"x": x})
    np.testing.assert_allclose(np.moveaxis(products, 1, 2).reshape(y.shape), y, atol=1e-4)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_paddings_by_name_are_those_of_the_runtime(auto_pad: str, stride: int) -> None:
    w, x = normal(8, 4, 4, 3), normal(2, 4, 7, 6)
    proto = model(
        [node("Conv", ["x", "w"], "y", auto_pad=auto_pad, strides=[stride, stride])], [info("x", ["n", 4, 7, 6])],
        [info("y", ["n", 8, None, None])], {"w": w},
    )  # fmt: skip
    m = observed(proto, {"x": x})["w"]
    (y,) = run(proto, {"x": x})
    assert m.count == 2 * y.shape[2] * y.shape[3]
    # The mean square of the outputs follows from the moments of the patches.
    power = np.einsum("oi,ij,oj->o", w.reshape(8, -1), m.gram(), w.reshape(8, -1))
    np.testing.assert_allclose(power, np.square(y, dtype=np.float64).mean((0, 2, 3)), rtol=1e-4)


def test_of_large_images_the_same_positions_of_each_are_taken() -> None:
    b = Builder({"x": ["n", 2, 40, 40]})
    b.nodes.append(node("Conv", ["x", b.normal(4, 2, 3, 3, name="w")], "y", pads=[1] * 4))
    proto, x = b.model("y"), normal(6, 2, 40, 40)
    whole = observed(proto, {"x": x}, positions=64)["w"]
    split = observed(proto, *({"x": x[i : i + 2]} for i in (4, 0, 2)), positions=64)["w"]
    assert whole.count == 6 * 64
    np.testing.assert_array_equal(whole.gram(), split.gram())
    every = observed(proto, {"x": x}, positions=10_000)["w"]
    assert every.count == 6 * 1600
    assert np.abs(whole.diagonal() / every.diagonal() - 1).max() < 0.25  # 384 of 9600 rows


# ---- which weights share rows -------------------------------------------------------------------------


def test_weights_that_multiply_the_same_tensor_share_its_moments() -> None:
    proto = model(
        [node("MatMul", ["x", w], y) for w, y in (("q", "y"), ("k", "z"))],
        [info("x", ["b", 16])], [info("y", ["b", 8]), info("z", ["b", 4])], {"q": normal(16, 8), "k": normal(16, 4)},
    )  # fmt: skip
    found = observed(proto, {"x": normal(5, 16)})
    assert found["q"] is found["k"]
    assert found["q"].count == 5


def test_a_weight_of_several_nodes_gets_the_rows_of_all() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], "h"), node("MatMul", ["h", "w"], "y")],
        [info("x", ["b", 16])], [info("y", ["b", 16])], {"w": normal(16, 16)},
    )  # fmt: skip
    x = normal(5, 16)
    close(observed(proto, {"x": x})["w"], np.concatenate([x, x @ normal(16, 16)]))


def test_a_table_that_is_also_multiplied_counts_the_products_alone() -> None:
    proto = model(
        [
            node("Gather", ["table", "tokens"], "h"), node("Transpose", ["table"], "t", perm=[1, 0]),
            node("MatMul", ["h", "t"], "y"),
        ],
        [info("tokens", ["b"], onnx.TensorProto.INT64)], [info("y", ["b", 20])], {"table": normal(20, 16)},
    )  # fmt: skip
    tokens = np.int64([3, 1, 4, 1, 5])
    close(observed(proto, {"tokens": tokens})["table"], normal(20, 16)[tokens])


def test_weights_in_loops_and_what_no_row_reached_are_missing(tmp_path: Path) -> None:
    from onnx_models import product

    assert observed(product(16, 8), {"x": np.zeros((0, 16), np.float32)}) == {}


# ---- the same for any order ---------------------------------------------------------------------------


def test_batches_in_another_order_and_split_give_the_same_bits() -> None:
    from onnx_builder import residual_cnn

    proto, x = residual_cnn(), normal(12, 3, 16, 16)
    # Layers behind others see float sums, which the runtime may compute in another order for another batch size.
    first = observed(proto, *({"x": x[i : i + 4]} for i in (0, 4, 8)))
    other = observed(proto, *({"x": x[i : i + 4]} for i in (8, 0, 4)))
    assert set(first) == set(other)
    for name, m in first.items():
        np.testing.assert_array_equal(m.gram(), other[name].gram())
    split = observed(proto, *({"x": x[i : i + 1]} for i in range(12)), weights=["w0"])
    np.testing.assert_array_equal(split["w0"].gram(), first["w0"].gram())


def test_parts_within_a_bound_give_the_same_bits() -> None:
    from onnx_models import two_layers

    proto, data = two_layers(), [{"x": normal(5, 64, seed=s)} for s in range(3)]
    whole, parts = observed(proto, *data), list(iterate_moments(proto, data, max_bytes=1, progress=False))
    assert [set(part) for part in parts] == [{"u"}, {"v", "w"}]
    for part in parts:
        for name, m in part.items():
            np.testing.assert_array_equal(m.gram(), whole[name].gram())


def test_an_iterator_serves_one_pass_only() -> None:
    from onnx_models import two_layers

    data = [{"x": normal(5, 64)}]
    (only,) = iterate_moments(two_layers(), iter(data), progress=False)
    assert set(only) == {"u", "v", "w"}
    with pytest.raises(InvalidProblem, match=r"an iterator.*2 passes.*give a list or files"):
        list(iterate_moments(two_layers(), iter(data), max_bytes=1, progress=False))


# ---- what is asked for --------------------------------------------------------------------------------


def test_a_diagonal_alone_is_that_of_the_gram_matrix() -> None:
    from onnx_models import product

    x = {"x": normal(50, 64)}
    plain, full = observed(product(), x, gram=False)["w"], observed(product(), x)["w"]
    assert not plain.has_gram
    np.testing.assert_array_equal(plain.diagonal(), full.diagonal())


def test_weights_are_chosen_by_name_or_predicate() -> None:
    from onnx_models import two_layers

    x = {"x": normal(5, 64)}
    assert set(observed(two_layers(), x, weights=["v"])) == {"v"}
    assert set(observed(two_layers(), x, weights=lambda name: name < "w")) == {"u", "v"}
    with pytest.raises(InvalidProblem, match="weights: 'fc' is no weight of the model; expected u, v, w"):
        observed(two_layers(), x, weights=["fc"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_activations_that_are_not_finite_are_refused_by_tensor_and_batch(value: float) -> None:
    from onnx_models import two_layers

    bad = normal(5, 64)
    bad[3, 7] = value
    with pytest.raises(InvalidProblem, match=r"batch 1: 'x' is (nan|inf) at index \(3, 7\); moments need finite"):
        observed(two_layers(), {"x": normal(5, 64)}, {"x": bad})
    with pytest.raises(InvalidProblem, match=r"batch 0: 'r' is"):
        observed(two_layers(), {"x": bad}, weights=["v"])


def test_no_batches_are_refused() -> None:
    from onnx_models import product

    with pytest.raises(InvalidProblem, match="no batches"):
        observed(product())


def test_fewer_rows_than_inputs_are_told_with_the_consequence() -> None:
    from onnx_models import two_layers

    few = observed(two_layers(), {"x": normal(70, 64)})
    (note,) = few_rows(few)
    assert note.startswith("2 weights have more inputs than rows of data (v: 96 inputs, 70 rows)")
    assert few_rows(observed(two_layers(), {"x": normal(96, 64)})) == []
    assert few_rows(observed(two_layers(), {"x": normal(70, 64)}, gram=False)) == []


def test_a_graph_that_was_prepared_is_taken_as_it_is() -> None:
    from onnx_models import product

    assert set(observe_moments(Graph.load(product()), [{"x": normal(5, 64)}], progress=False)) == {"w"}
