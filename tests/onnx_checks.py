"""Converting small ONNX models, and comparing what ONNX Runtime computes with the emulation."""

from __future__ import annotations

import numpy as np
import onnx

import onnx_models as made
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.models import Recipe, WeightRecipe
from onnx_emulation import emulate, exact_session


def recipe(dtype="int8", group=None, scheme=None, granularity="channel", method="auto"):
    scheme = scheme or ("asymmetric" if dtype.startswith("u") else "symmetric")
    return Recipe("r", WeightRecipe(dtype, scheme, group, granularity, method), min_elements=1, protect=False)


def converted(proto, tmp_path, r, **options):
    """(path of the result, report); every result opens in ONNX Runtime and passes the full check on its way."""
    source, target = made.saved(proto, tmp_path), tmp_path / "out.onnx"
    # What the recipe asks for, whatever it costs on this machine; models of a few bytes grow.
    options = {"optimize": "size", "force": True} | options
    report = quantize_onnx(source, target, r, progress=False, **options)
    onnx.checker.check_model(str(target), full_check=True)
    made_by = onnx.load(target)
    assert made_by.ir_version <= 10
    assert all(o.version <= 21 for o in made_by.opset_import)
    return target, report


def same_bits(path, feeds):
    """Asserts that the runtime gives what the emulation gives; returns it."""
    expected = emulate(path, feeds)
    for got, want in zip(exact_session(path).run(None, feeds), expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    return expected


def ops(path):
    return [n.op_type for n in onnx.load(path).graph.node]


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)
