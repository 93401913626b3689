"""The table of operations on scales and zero points: what a plan reads, writes and computes at every granularity.

`lowbit.plans.family` makes a plan class for each operation and granularity, `lowbit.gpu.plans` its GPU counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit import reference
from lowbit.numerics.granularity import Granularity
from lowbit.plans.arguments import BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs
from lowbit.plans.descriptors import PerChannelDescriptor, PerGroupDescriptor, PerTensorDescriptor, PerTokenDescriptor
from lowbit.runtime.arrays import Array


@dataclass(frozen=True)
class Operation:
    """A row of the table. `formula(*reads, scale, zero_point, qmin, qmax, granularity)` is the contract in NumPy."""

    name: str  # of the plan classes, up to "Per"
    args: type
    doc: str
    takes_float: bool  # whether `input_element` is a kind of float
    gives_float: bool | None  # the same of `output_element`; None: the operation has none
    reads: tuple[str, ...] = ("input",)  # fields of the Args
    writes: str = "output"
    is_backward: bool = False
    in_place: bool = False  # whether `writes` may be one of `reads`
    has_zero_point: bool = True
    learns: bool = False  # whether descriptors may be `learned`
    is_symmetric: bool | None = None  # of a dynamic range
    native: str | None = None  # the method of core.FakeQuantizePlan that runs it
    formula: Callable[..., Any] | None = None

    @property
    def op(self) -> str:
        """In snake case, with the direction: "fake_quantize_backward"."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).removeprefix("_")
        return words + "_backward" * self.is_backward

    def plan_name(self, scope: str) -> str:
        return f"{self.name}Per{scope}{'Backward' * self.is_backward}Plan"

    def plan_op(self, scope: str) -> str:
        return f"{self.op.removesuffix('_backward')}_per_{scope.lower()}{'_backward' * self.is_backward}"

    @property
    def is_dynamic(self) -> bool:
        return self.is_symmetric is not None


def quantize_formula(x: Array, scale: Array, zero: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    s, z = (reference.spread(v, g, x.shape) for v in (scale, zero))
    return reference.quantize_affine(reference.widen(x), s, z, qmin, qmax)


def _dequantize(q: Array, scale: Array, zero: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    s, z = (reference.spread(v, g, q.shape) for v in (scale, zero))
    return np.asarray(reference.dequantize_affine(q, s, z))


def _dequantize_backward(dy: Array, scale: Array, zero: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    return reference.dequantize_backward(dy, scale, g)


GRANULARITIES: dict[str, tuple[type[PerTensorDescriptor], str]] = {
    "Tensor": (PerTensorDescriptor, "one scale for the tensor"),
    "Channel": (PerChannelDescriptor, "one scale per index of an axis"),
    "Token": (PerTokenDescriptor, "one scale per row of the last axis"),
    "Group": (PerGroupDescriptor, "one scale per group of elements along an axis"),
}
_GRADIENT: dict[str, Any] = {"is_backward": True, "in_place": True, "writes": "d_input"}

OPERATIONS = (
    Operation(
        "Quantize", ForwardArgs, "q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z", True, False,
        formula=quantize_formula,
    ),
    Operation(
        "Quantize", BackwardArgs, "dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax", True, False,
        reads=("d_output", "input"), native="quantize_backward", formula=reference.quantize_backward, **_GRADIENT,
    ),
    Operation("Dequantize", ForwardArgs, "y = float(q - z) * s", False, True, formula=_dequantize),
    Operation(
        "Dequantize", DequantizeBackwardArgs, "dq = dy * s", False, True, reads=("d_output",), has_zero_point=False,
        native="dequantize_backward", formula=_dequantize_backward, **_GRADIENT,
    ),
    Operation(
        "FakeQuantize", ForwardArgs, "y = dequantize(quantize(x)); NaN stays NaN", True, None, in_place=True,
        native="run", formula=reference.fake_quantize,
    ),
    Operation(
        "FakeQuantize", BackwardArgs, "dx = m ? dy : 0, and where `learned` the gradients of s and z", True, None,
        reads=("d_output", "input"), learns=True, native="backward", formula=reference.fake_quantize_backward,
        **_GRADIENT,
    ),
    Operation(
        "DynamicRangeQuantizeSymmetric", DynamicArgs, "s = max|x| / qmax, z = 0, then the codes", True, False,
        is_symmetric=True,
    ),
    Operation(
        "DynamicRangeQuantizeAsymmetric", DynamicArgs,
        "s and z from the range, widened to contain 0, then the codes", True, False, is_symmetric=False,
    ),
)  # fmt: skip
