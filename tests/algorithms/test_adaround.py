"""AdaRound's objective: no single step lowers it, it is never above GPTQ's, and bytes do not depend on threads."""

import itertools

import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import adaround, gptq
from lowbit.algorithms.adaround import stepped
from lowbit.algorithms.gptq import factored, rounded
from lowbit.algorithms.grid import Grid
from lowbit.algorithms.rounding import best_scales


def problem(seed: int = 0, outputs: int = 8, inputs: int = 32, rows: int = 256):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)) @ rng.standard_normal((inputs, inputs)) / 4
    return rng.standard_normal((outputs, inputs)).astype(np.float32), x.T @ x / rows


def error(w, q, h):
    e = w - q.dequantize().astype(np.float64)
    return ((e @ h) * e).sum(1)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("group_size", [None, 12], ids=["per channel", "ragged groups"])
def test_error_of_no_row_exceeds_that_of_gptq(bits, scheme, group_size):
    w, gram = problem(bits)
    options = {"bits": bits, "scheme": scheme, "group_size": group_size}
    h = factored(gram, 32).hessian
    ours, theirs = (error(w, method(w, gram, **options), h) for method in (adaround, gptq))
    assert (ours <= theirs * (1 + 1e-6)).all()
    assert ours.sum() < 0.97 * theirs.sum()


def test_no_single_step_lowers_the_error():
    w, gram = problem()
    grid = Grid("int4", bits=2)
    scales = best_scales(w, grid)
    p = np.clip(np.rint(w / scales.scale), -2 - scales.zero_point, 1 - scales.zero_point).astype(np.float32)
    found = stepped(w, p, grid, scales, gram)

    def errors(p):
        e = w - scales.scale.astype(np.float64) * p
        return ((e @ gram) * e).sum(1)

    least = errors(found)
    assert (least < errors(p)).all()
    low, high = -2 - scales.zero_point, 1 - scales.zero_point
    assert (found >= low).all()
    assert (found <= high).all()
    for j, d in itertools.product(range(w.shape[1]), (-1, 1)):
        other = found.copy()
        other[:, j] += d
        allowed = (other[:, j] >= low[:, 0]) & (other[:, j] <= high[:, 0])
        assert (errors(other)[allowed] >= least[allowed] * (1 - 1e-5)).all(), (j, d)


def test_a_filter_of_nine_weights_is_rounded_almost_as_well_as_it_can_be():
    w, gram = problem(5, outputs=20, inputs=9)
    grid = Grid("int4", bits=3)
    scales = best_scales(w, grid)
    near = np.floor(w / scales.scale)
    factor = factored(gram, 9)
    gram = factor.hessian
    found = stepped(w, rounded(w, grid, factor, scales), grid, scales, gram)
    ups = np.array(list(itertools.product((0, 1), repeat=9)))
    low, high = -4 - scales.zero_point, 3 - scales.zero_point
    tried = np.clip(near[:, None] + ups, low[:, None], high[:, None])
    e = w[:, None] - scales.scale[:, None] * tried
    best = np.einsum("rti,ij,rtj->rt", e, gram, e).min(1).sum()
    mine = w - scales.scale * found
    assert ((mine @ gram) * mine).sum() < 1.1 * best


def test_bytes_do_not_depend_on_threads_or_on_the_rows_beside():
    w, gram = problem(outputs=150)
    before = lb.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 7):
            lb.set_num_threads(threads)
            made.append(adaround(w, gram, bits=3))
    finally:
        lb.set_num_threads(before)
    made.append(adaround(w[::-1], gram, bits=3))
    codes = [q.unpack() for q in made[:3]] + [made[3].unpack()[::-1]]
    assert all(np.array_equal(codes[0], other) for other in codes[1:])
    assert all(np.array_equal(made[0].params.scale, q.params.scale) for q in made[1:3])


def test_inputs_that_are_always_zero_and_rows_of_zeros():
    w, gram = problem()
    gram[4] = gram[:, 4] = 0
    w[2] = 0
    q = adaround(w, gram)
    assert np.isfinite(q.dequantize()).all()
    assert not q.dequantize()[2].any()


def test_refuses_what_gptq_refuses():
    w, gram = problem()
    with pytest.raises(lb.InvalidProblem, match="gram: shape"):
        adaround(w, gram[:5, :5])
    with pytest.raises(lb.InvalidProblem, match="damping"):
        adaround(w, gram, damping=0)
