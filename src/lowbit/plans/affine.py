"""Plans for given scales: quantize, dequantize, fake-quantize, and their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.plans.arguments import (
    BackwardArgs,
    DequantizeBackwardArgs,
    ForwardArgs,
    array,
    output_parameters,
    seen,
    store,
    workspace,
)
from lowbit.plans.kinds import CODES, FLOATS, ElementKind, kind_of
from lowbit.plans.quantization import QuantizationPlan
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import core

__all__ = [
    "DequantizePerChannelBackwardPlan", "DequantizePerChannelPlan", "DequantizePerGroupBackwardPlan",
    "DequantizePerGroupPlan", "DequantizePerTensorBackwardPlan", "DequantizePerTensorPlan",
    "DequantizePerTokenBackwardPlan", "DequantizePerTokenPlan", "FakeQuantizePerChannelBackwardPlan",
    "FakeQuantizePerChannelPlan", "FakeQuantizePerGroupBackwardPlan", "FakeQuantizePerGroupPlan",
    "FakeQuantizePerTensorBackwardPlan", "FakeQuantizePerTensorPlan", "FakeQuantizePerTokenBackwardPlan",
    "FakeQuantizePerTokenPlan", "QuantizePerChannelBackwardPlan", "QuantizePerChannelPlan",
    "QuantizePerGroupBackwardPlan", "QuantizePerGroupPlan", "QuantizePerTensorBackwardPlan", "QuantizePerTensorPlan",
    "QuantizePerTokenBackwardPlan", "QuantizePerTokenPlan", "reference_quantize",
]  # fmt: skip

Array = npt.NDArray[Any]


class _Forward(QuantizationPlan[ForwardArgs]):
    Args = ForwardArgs
    _in_place: ClassVar[bool] = False

    def _buffers(self, args: ForwardArgs) -> tuple[Array, Array, Array, Array]:
        d = self.descriptor
        x = array("input", args.input, d.input_element, d.shape)
        out = array("output", args.output, d.output_element or d.input_element, d.shape, writable=True)
        cpu.require_apart("output", out, self._in_place, input=x)
        return x, out, *self._parameters(args.scale, args.zero_point)

    def can_implement(self, args: ForwardArgs) -> None:
        _, out, scale, zero = self._buffers(args)
        cpu.require_apart("output", out, False, scale=scale, zero_point=zero)
        super().can_implement(args)


class _Quantize(_Forward):
    _takes = (True, False)

    def run(self, args: ForwardArgs) -> None:
        x, out, scale, zero = self._buffers(args)
        d = self.descriptor
        code = CODES[kind_of("", d.output_element)][0]
        if self.preference == "reference":
            return reference_quantize(self, x, out, scale, zero)
        kind = FLOATS[d.input_element]
        self._finish(core.convert(True, code, x, out, kind, scale, zero, d.qmin, d.qmax, self._layout), scale, zero)


class _Dequantize(_Forward):
    _takes = (False, True)

    def run(self, args: ForwardArgs) -> None:
        q, out, scale, zero = self._buffers(args)
        d = self.descriptor
        if self.preference == "reference":
            return _reference_dequantize(self, q, out, scale, zero)
        code, kind = CODES[d.input_element][0], FLOATS[kind_of("", d.output_element)]
        self._finish(core.convert(False, code, q, out, kind, scale, zero, d.qmin, d.qmax, self._layout), scale, zero)


class _FakeQuantize(_Forward):
    _takes = (True, None)
    _in_place = True

    def run(self, args: ForwardArgs) -> None:
        if (
            self.preference == "fastest"
            and args.output is not None
            and args.scale is not None
            and self._problem.fake_quant(0, args.input, None, args.output, args.scale, args.zero_point) == -1
        ):
            return
        x, out, scale, zero = self._buffers(args)
        d = self.descriptor
        if self.preference == "reference":
            y = reference.fake_quantize(seen(x, d.input_element), scale, zero, d.qmin, d.qmax, self._g)
            seen(out, d.input_element)[...] = y
            return
        kind = FLOATS[d.input_element]
        status = core.fake_quant(0, x, None, out, kind, scale, zero, d.qmin, d.qmax, self._layout)
        self._finish(status, scale, zero)


class _Backward(QuantizationPlan[BackwardArgs]):
    """Gradients that look at the forward input again: its mask is not kept."""

    Args = BackwardArgs
    _native: ClassVar[int]

    def _buffers(self, args: BackwardArgs) -> tuple[Array, Array, Array, Array, Array]:
        d = self.descriptor
        x = array("input", args.input, d.input_element, d.shape)
        dy = array("d_output", args.d_output, d.input_element, d.shape)
        dx = array("d_input", args.d_input, d.input_element, d.shape, writable=True)
        cpu.require_apart("d_input", dx, True, input=x, d_output=dy)
        return x, dy, dx, *self._parameters(args.scale, args.zero_point)

    def can_implement(self, args: BackwardArgs) -> None:
        _, _, dx, scale, zero = self._buffers(args)
        cpu.require_apart("d_input", dx, False, scale=scale, zero_point=zero)
        super().can_implement(args)

    def run(self, args: BackwardArgs) -> None:
        given = (args.input, args.d_output, args.d_input, args.scale, args.zero_point)
        ready = self.preference == "fastest" and args.d_input is not None and args.scale is not None
        if ready and self._problem.fake_quant(self._native, *given) == -1:
            return
        x, dy, dx, scale, zero = self._buffers(args)
        d = self.descriptor
        kind = FLOATS[d.input_element]
        if self.preference == "reference":
            formula = reference.quantize_backward if self._native == 2 else reference.fake_quantize_backward
            dy, x = (seen(a, d.input_element) for a in (dy, x))
            seen(dx, d.input_element)[...] = formula(dy, x, scale, zero, d.qmin, d.qmax, self._g)
            return
        status = core.fake_quant(self._native, x, dy, dx, kind, scale, zero, d.qmin, d.qmax, self._layout)
        self._finish(status, scale, zero)


class _QuantizeBackward(_Backward):
    _takes = (True, False)
    _native = 2


class _FakeQuantizeBackward(_Backward):
    _takes = (True, None)
    _native = 1

    @property
    def workspace_size(self) -> int:
        return int(core.learned_workspace(self._layout)) if self.descriptor.learned else 0

    def _learned_buffers(self, args: BackwardArgs) -> tuple[Array, Array, Array]:
        return (
            output_parameters("d_scale", args.d_scale, self._compute, self._scales),
            output_parameters("d_zero_point", args.d_zero_point, self._compute, self._scales),
            workspace(args.workspace, self.workspace_size),
        )

    def can_implement(self, args: BackwardArgs) -> None:
        super().can_implement(args)
        if self.descriptor.learned:
            x, dy, dx, scale, zero = self._buffers(args)
            ds, dz, room = self._learned_buffers(args)
            others = {"input": x, "d_output": dy, "d_input": dx, "scale": scale, "zero_point": zero}
            for name, result in (("d_scale", ds), ("d_zero_point", dz), ("workspace", room)):
                cpu.require_apart(name, result, False, **others)
                others[name] = result

    def run(self, args: BackwardArgs) -> None:
        if not self.descriptor.learned:
            return super().run(args)
        x, dy, dx, scale, zero = self._buffers(args)
        ds, dz, room = self._learned_buffers(args)
        d = self.descriptor
        if self.preference == "reference":
            dy, x = (seen(a, d.input_element) for a in (dy, x))
            found = reference.fake_quantize_learned_backward(dy, x, scale, zero, d.qmin, d.qmax, self._g)
            for target, value in zip((seen(dx, d.input_element), ds, dz), found, strict=True):
                target[...] = value
            return
        kind = FLOATS[d.input_element]
        status = core.fake_quant_learned(
            x, dy, dx, kind, scale, zero, d.qmin, d.qmax, self._layout, room, ds, dz
        )  # fmt: skip
        self._finish(status, scale, zero)


class _DequantizeBackward(QuantizationPlan[DequantizeBackwardArgs]):
    """The gradient by codes taken as numbers; input_element is the codes', output_element the gradient's."""

    Args = DequantizeBackwardArgs
    _takes = (False, True)

    def _buffers(self, args: DequantizeBackwardArgs) -> tuple[Array, Array, Array]:
        d = self.descriptor
        kind = kind_of("", d.output_element)
        dy = array("d_output", args.d_output, kind, d.shape)
        dq = array("d_input", args.d_input, kind, d.shape, writable=True)
        cpu.require_apart("d_input", dq, True, d_output=dy)
        return dy, dq, self._parameters(args.scale, None)[0]

    def can_implement(self, args: DequantizeBackwardArgs) -> None:
        _, dq, scale = self._buffers(args)
        cpu.require_apart("d_input", dq, False, scale=scale)
        super().can_implement(args)

    def run(self, args: DequantizeBackwardArgs) -> None:
        if (
            self.preference == "fastest"
            and args.d_input is not None
            and args.scale is not None
            and self._problem.fake_quant(3, None, args.d_output, args.d_input, args.scale, self._no_zero) == -1
        ):
            return
        dy, dq, scale = self._buffers(args)
        d = self.descriptor
        element = kind_of("", d.output_element)
        if self.preference == "reference":
            seen(dq, element)[...] = reference.dequantize_backward(seen(dy, element), scale, self._g)
            return
        zero = self._no_zero
        status = core.fake_quant(3, None, dy, dq, FLOATS[element], scale, zero, 0, 0, self._layout)
        self._finish(status, scale, zero)


def reference_quantize(plan: QuantizationPlan[Any], x: Array, out: Array, scale: Array, zero: Array) -> None:
    d, g = plan.descriptor, plan._g
    wide = reference.widen(seen(x, d.input_element))
    s, z = (reference.spread(v, g, d.shape) for v in (scale, zero))
    store(reference.quantize_affine(wide, s, z, d.qmin, d.qmax), out, kind_of("", d.output_element))


def _reference_dequantize(plan: QuantizationPlan[Any], q: Array, out: Array, scale: Array, zero: Array) -> None:
    d, g = plan.descriptor, plan._g
    bits = CODES[d.input_element][1]
    codes = q if bits >= 8 else cpu.unpack(q, bits, d.input_element is ElementKind.S4, d.shape)
    s, z = (reference.spread(v, g, d.shape) for v in (scale, zero))
    target = seen(out, kind_of("", d.output_element))
    with np.errstate(over="ignore"):
        target[...] = reference.dequantize_affine(codes, s, z).astype(target.dtype)


class QuantizePerTensorPlan(_Quantize):
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z; one scale for all."""


class QuantizePerTensorBackwardPlan(_QuantizeBackward):
    """dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax; one scale for all."""


class QuantizePerChannelPlan(_Quantize):
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z; one scale for each index of an axis."""


class QuantizePerChannelBackwardPlan(_QuantizeBackward):
    """dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax; one scale for each index of an axis."""


class QuantizePerTokenPlan(_Quantize):
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z; one scale for each row of the last axis."""


class QuantizePerTokenBackwardPlan(_QuantizeBackward):
    """dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax; one scale for each row of the last axis."""


class QuantizePerGroupPlan(_Quantize):
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z; one scale for so many elements along an axis."""


class QuantizePerGroupBackwardPlan(_QuantizeBackward):
    """dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax; one scale for so many elements along an axis."""


class DequantizePerTensorPlan(_Dequantize):
    """y = float(q - z) * s; one scale for all."""


class DequantizePerTensorBackwardPlan(_DequantizeBackward):
    """dq = dy * s; one scale for all."""


class DequantizePerChannelPlan(_Dequantize):
    """y = float(q - z) * s; one scale for each index of an axis."""


class DequantizePerChannelBackwardPlan(_DequantizeBackward):
    """dq = dy * s; one scale for each index of an axis."""


class DequantizePerTokenPlan(_Dequantize):
    """y = float(q - z) * s; one scale for each row of the last axis."""


class DequantizePerTokenBackwardPlan(_DequantizeBackward):
    """dq = dy * s; one scale for each row of the last axis."""


class DequantizePerGroupPlan(_Dequantize):
    """y = float(q - z) * s; one scale for so many elements along an axis."""


class DequantizePerGroupBackwardPlan(_DequantizeBackward):
    """dq = dy * s; one scale for so many elements along an axis."""


class FakeQuantizePerTensorPlan(_FakeQuantize):
    """y = dequantize(quantize(x)); NaN stays NaN; one scale for all."""


class FakeQuantizePerTensorBackwardPlan(_FakeQuantizeBackward):
    """dx = m ? dy : 0, and where `learned` the gradients of s and z; one scale for all."""


class FakeQuantizePerChannelPlan(_FakeQuantize):
    """y = dequantize(quantize(x)); NaN stays NaN; one scale for each index of an axis."""


class FakeQuantizePerChannelBackwardPlan(_FakeQuantizeBackward):
    """dx = m ? dy : 0, and where `learned` the gradients of s and z; one scale for each index of an axis."""


class FakeQuantizePerTokenPlan(_FakeQuantize):
    """y = dequantize(quantize(x)); NaN stays NaN; one scale for each row of the last axis."""


class FakeQuantizePerTokenBackwardPlan(_FakeQuantizeBackward):
    """dx = m ? dy : 0, and where `learned` the gradients of s and z; one scale for each row of the last axis."""


class FakeQuantizePerGroupPlan(_FakeQuantize):
    """y = dequantize(quantize(x)); NaN stays NaN; one scale for so many elements along an axis."""


class FakeQuantizePerGroupBackwardPlan(_FakeQuantizeBackward):
    """dx = m ? dy : 0, and where `learned` the gradients of s and z; one scale for so many elements along an axis."""
