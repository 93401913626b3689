"""Plans that find scales in the data: range, parameters and codes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.ranges import affine_from_range
from lowbit.plans.arguments import INT32, DynamicArgs, array, load, output_parameters, store, workspace
from lowbit.plans.kinds import CODES, FLOATS, ElementKind
from lowbit.plans.operations import quantize_formula
from lowbit.plans.quantization import QuantizationPlan
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.native import core

Array = npt.NDArray[Any]
_TOO_LARGE = "input: values too large: a scale would exceed the greatest there is"


class DynamicPlan(QuantizationPlan[DynamicArgs]):
    """Scales (and zero points) from the data's own range, then its codes. NaN and Inf in the data are an error that
    names the first; the output is then undefined."""

    __slots__ = ()

    def _native_plan(self) -> core.DynamicQuantizePlan:
        d = self.descriptor
        shapes = core.ScaledShape(d.shape, self._g.scale_shape, elementwise.granularity(self._g))
        divisor = max(1, d.qmax) if self.operation.is_symmetric else 0
        element, code = FLOATS[d.input_element], CODES[self._code][0]
        return core.DynamicQuantizePlan(element, code, shapes, d.qmin, d.qmax, divisor)

    @property
    def workspace_size(self) -> int:
        return self._native.workspace_bytes  # type: ignore[no-any-return]

    def _buffers(self, args: DynamicArgs) -> tuple[Array, Array, Array, Array | None, Array]:
        d = self.descriptor
        zero = None
        if not self.operation.is_symmetric or args.zero_point is not None:
            zero = output_parameters("zero_point", args.zero_point, INT32, self._scales)
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        return (
            array("input", args.input, d.input_element, d.shape),
            array("output", args.output, self._code, d.shape, writable=True),
            output_parameters("scale", args.scale, self._compute, self._scales),
            zero,
            workspace(args.workspace, self.workspace_size),
        )

    def can_implement(self, args: DynamicArgs) -> None:
        """Raises if `run` would; it looks at the data."""
        x, out, scale, zero, room = self._buffers(args)
        _require_all_apart(input=x, output=out, scale=scale, zero_point=zero, workspace=room)
        lo, hi, nans = elementwise.value_range(cpu.FloatArray(x, FLOATS[self.descriptor.input_element]), self._g)
        if np.any(nans) or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            _refuse(x, self.descriptor.input_element)
        self._affine(lo, hi)

    def _affine(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Scales and zero points that cover finite ranges."""
        d = self.descriptor
        try:
            return affine_from_range(lo, hi, d.qmin, d.qmax, symmetric=bool(self.operation.is_symmetric))
        except InvalidProblem:
            raise InvalidProblem(_TOO_LARGE) from None

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d = self.descriptor
        if self.preference == "reference":
            return self._run_reference(x, out, scale, zero)
        found = self._native.run(x, out, scale, zero, room)
        if found is None:
            _require_all_apart(input=x, output=out, scale=scale, zero_point=zero, workspace=room)
        if found != (0, 0):
            _refuse(x, d.input_element)

    def _run_reference(self, x: Array, out: Array, scale: Array, zero: Array | None) -> None:
        d, g = self.descriptor, self._g
        wide = reference.widen(load(x, d.input_element, d.shape))
        if not np.isfinite(wide).all():
            _refuse(x, d.input_element)
        scale[...], z = self._affine(*reference.range_by_scale(wide, g))
        if zero is not None:
            zero[...] = z
        store(quantize_formula(wide, scale, z, d.qmin, d.qmax, g), out, self._code)


def _require_all_apart(**arrays: Array | None) -> None:
    """Refuses arrays after the first that share memory with one before them."""
    before: dict[str, Array | None] = {}
    for name, a in arrays.items():
        if a is not None:
            cpu.require_apart(name, a, False, **before)
        before[name] = a


def _refuse(x: Array, kind: ElementKind) -> NoReturn:
    """Raises for the first NaN or Inf; without one, the values are too large."""
    cpu.refuse_nonfinite(cpu.FloatArray(x, FLOATS[kind]), "input")
    raise InvalidProblem(_TOO_LARGE)
