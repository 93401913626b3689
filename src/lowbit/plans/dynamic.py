"""Plans that find scales in the data: range, parameters and codes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.ranges import affine_from_range
from lowbit.plans.affine import reference_quantize
from lowbit.plans.arguments import INT32, DynamicArgs, array, output_parameters, seen, workspace
from lowbit.plans.kinds import CODES, FLOATS, ElementKind, kind_of
from lowbit.plans.quantization import QuantizationPlan
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import core

__all__ = [
    "DynamicRangeQuantizeAsymmetricPerChannelPlan", "DynamicRangeQuantizeAsymmetricPerGroupPlan",
    "DynamicRangeQuantizeAsymmetricPerTensorPlan", "DynamicRangeQuantizeAsymmetricPerTokenPlan",
    "DynamicRangeQuantizeSymmetricPerChannelPlan", "DynamicRangeQuantizeSymmetricPerGroupPlan",
    "DynamicRangeQuantizeSymmetricPerTensorPlan", "DynamicRangeQuantizeSymmetricPerTokenPlan",
]  # fmt: skip

Array = npt.NDArray[Any]
_TOO_LARGE = "input: values too large: a scale would exceed the greatest there is"


class _Dynamic(QuantizationPlan[DynamicArgs]):
    """Scales (and zero points) from the data's own range, then its codes. NaN and Inf in the data are an error that
    names the first; the output is then undefined."""

    Args = DynamicArgs
    _takes = (True, False)
    _symmetric: ClassVar[bool]

    @property
    def workspace_size(self) -> int:
        return int(core.dynamic_workspace(self._layout, FLOATS[self.descriptor.input_element]))

    def _buffers(self, args: DynamicArgs) -> tuple[Array, Array, Array, Array | None, Array]:
        d = self.descriptor
        zero = None
        if not self._symmetric or args.zero_point is not None:
            zero = output_parameters("zero_point", args.zero_point, INT32, self._scales)
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        return (
            array("input", args.input, d.input_element, d.shape),
            array("output", args.output, kind_of("", d.output_element), d.shape, writable=True),
            output_parameters("scale", args.scale, self._compute, self._scales),
            zero,
            workspace(args.workspace, self.workspace_size),
        )

    def can_implement(self, args: DynamicArgs) -> None:
        """Raises if `run` would; it looks at the data."""
        x, out, scale, zero, room = self._buffers(args)
        others: dict[str, Array | None] = {"input": x}
        for name, result in (("output", out), ("scale", scale), ("zero_point", zero), ("workspace", room)):
            if result is not None:
                cpu.require_apart(name, result, False, **others)
                others[name] = result
        lo, hi, nans = cpu.value_range(cpu.FloatArray(x, FLOATS[self.descriptor.input_element]), self._g)
        if np.any(nans) or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise _not_finite(x, self.descriptor.input_element)
        self._affine(lo, hi)

    def _affine(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Scales and zero points that cover finite ranges."""
        d = self.descriptor
        try:
            return affine_from_range(lo, hi, d.qmin, d.qmax, symmetric=self._symmetric)
        except InvalidProblem:
            raise InvalidProblem(_TOO_LARGE) from None

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d = self.descriptor
        code, kind = CODES[kind_of("", d.output_element)][0], FLOATS[d.input_element]
        if self.preference == "reference":
            return _reference_dynamic(self, x, out, scale, zero)
        divisor = max(1, d.qmax) if self._symmetric else 0
        nan, bad = core.quantize_from_data(
            x, kind, out, code, self._layout, d.qmin, d.qmax, divisor, scale, zero, room
        )  # fmt: skip
        if nan or bad:
            raise _not_finite(x, d.input_element)


def _reference_dynamic(plan: _Dynamic, x: Array, out: Array, scale: Array, zero: Array | None) -> None:
    d, g = plan.descriptor, plan._g
    wide = reference.widen(seen(x, d.input_element))
    if not np.isfinite(wide).all():
        raise _not_finite(x, d.input_element)
    table = wide.reshape(g.outer, g.axis, g.inner)
    if g.kind == 0:
        lo, hi = wide.min(), wide.max()
    elif g.kind == 1:
        lo, hi = table.min(axis=(0, 2)), table.max(axis=(0, 2))
    else:
        parts = [table[:, first : first + g.block] for first in range(0, g.axis, g.block)]
        lo, hi = (np.stack([f(p, axis=1) for p in parts], axis=1) for f in (np.min, np.max))
    lo, hi = (np.asarray(v).reshape(g.scale_shape) + 0 for v in (lo, hi))
    s, z = plan._affine(lo, hi)
    scale[...] = s
    if zero is not None:
        zero[...] = z
    reference_quantize(plan, x, out, s, z)


def _not_finite(x: Array, kind: ElementKind) -> InvalidProblem:
    wide = cpu.FloatArray(x, FLOATS[kind]).widened()
    bad = ~np.isfinite(wide)
    if not bad.any():
        return InvalidProblem(_TOO_LARGE)
    index = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), x.shape)) if x.shape else ()
    return InvalidProblem(f"input: {wide[index]} at index {index}; a range needs finite numbers")


class _DynamicSymmetric(_Dynamic):
    _symmetric = True


class DynamicRangeQuantizeSymmetricPerTensorPlan(_DynamicSymmetric):
    """s = max|x| / qmax, z = 0, then the codes; one scale for all."""


class DynamicRangeQuantizeSymmetricPerChannelPlan(_DynamicSymmetric):
    """s = max|x| / qmax, z = 0, then the codes; one scale for each index of an axis."""


class DynamicRangeQuantizeSymmetricPerTokenPlan(_DynamicSymmetric):
    """s = max|x| / qmax, z = 0, then the codes; one scale for each row of the last axis."""


class DynamicRangeQuantizeSymmetricPerGroupPlan(_DynamicSymmetric):
    """s = max|x| / qmax, z = 0, then the codes; one scale for so many elements along an axis."""


class _DynamicAsymmetric(_Dynamic):
    _symmetric = False


class DynamicRangeQuantizeAsymmetricPerTensorPlan(_DynamicAsymmetric):
    """s and z from the range, widened to contain 0, then the codes; one scale for all."""


class DynamicRangeQuantizeAsymmetricPerChannelPlan(_DynamicAsymmetric):
    """s and z from the range, widened to contain 0, then the codes; one scale for each index of an axis."""


class DynamicRangeQuantizeAsymmetricPerTokenPlan(_DynamicAsymmetric):
    """s and z from the range, widened to contain 0, then the codes; one scale for each row of the last axis."""


class DynamicRangeQuantizeAsymmetricPerGroupPlan(_DynamicAsymmetric):
    """s and z from the range, widened to contain 0, then the codes; one scale for so many elements along an axis."""
