"""fake_quantize and the gradients of quantize, dequantize and fake_quantize (straight-through estimator)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import as_scale, as_zero_point, whole
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import Cache
from lowbit.runtime.native import ELEMENTS, core


def fake_quantize(
    x: Any,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    out: Any = None,
) -> Array:
    """The values of x after quantization and back, in the type of x: dequantize(quantize(x)). NaN stays NaN.

    scale, zero_point: one for all; with `axis` one for each of its indices; with `group_size` one for each block along
    `axis` (default the last). out: an array of x's shape and type to write into; it may be x.

    >>> fake_quantize(np.float32([0.3, 1.0, 9.0]), 0.5, qmin=-2, qmax=2)
    array([0.5, 1. , 1. ], dtype=float32)
    """
    plan = _settled(x, qmin, qmax, axis, group_size, out)
    if plan is not None:
        y = np.empty(x.shape, x.dtype) if out is None else out
        if plan.run(x, y, scale, zero_point) == -1:
            return y
    array, affine, g = _described(x, scale, zero_point, qmin, qmax, axis, group_size)
    result, target = _output(array, out)
    elementwise.run("run", affine, g, target, x=array)
    return result


def fake_quantize_backward(
    dy: Any,
    x: Any,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    out: Any = None,
) -> Array:
    """The gradient by x: dy where the code of x was not clipped, else 0. NaN and ±Inf in x count as clipped.

    out: an array of x's shape and type to write into; it may be dy.

    >>> fake_quantize_backward(np.float32([1.0, 2.0]), np.float32([0.9, 9.0]), 0.5, qmin=-2, qmax=2)
    array([1., 0.], dtype=float32)
    """
    return _gradient("backward", dy, x, scale, zero_point, (qmin, qmax, axis, group_size), out)


def quantize_backward(
    dy: Any,
    x: Any,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    out: Any = None,
) -> Array:
    """The gradient of quantize by x, its codes taken as numbers: dy / s where not clipped, else 0.

    >>> quantize_backward(np.float32([1.0, 2.0]), np.float32([0.9, 9.0]), 0.5, qmin=-2, qmax=2)
    array([2., 0.], dtype=float32)
    """
    return _gradient("quantize_backward", dy, x, scale, zero_point, (qmin, qmax, axis, group_size), out)


def dequantize_backward(
    dy: Any,
    scale: npt.ArrayLike,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Any = None,
) -> Array:
    """The gradient of dequantize by its codes, taken as numbers: dy * s.

    >>> dequantize_backward(np.float32([1.0, 2.0]), 0.5)
    array([0.5, 1. ], dtype=float32)
    """
    array, affine, g = _described(dy, scale, 0, 0, 0, axis, group_size, name="dy")
    result, target = _output(array, out)
    elementwise.run("dequantize_backward", affine, g, target, dy=array)
    return result


def fake_quantize_learned_backward(
    dy: Any,
    x: Any,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """(dx, ds, dz): the gradients by x, by each scale and by each zero point, as in learned step size quantization.

    ds = sum(dy * t) with t = rne(x/s) - x/s inside, qmin - z below and qmax - z above the range; dz = sum(dy * -s) over
    what is below or above. NaN in x contributes nothing. Sums run in float64 in an order of their own, the same for
    any number of threads, and are given in the scale's compute type. out: where dx goes; it may be dy.

    >>> dx, ds, dz = fake_quantize_learned_backward(np.float32([1, 2]), np.float32([0.4, 9]), 0.5, qmin=-2, qmax=2)
    >>> dx, round(float(ds), 3), float(dz)
    (array([1., 0.], dtype=float32), 4.2, -1.0)
    """
    array, affine, g = _described(x, scale, zero_point, qmin, qmax, axis, group_size)
    result, target = _output(array, out)
    ds, dz = elementwise.fake_quantize_learned_backward(_gradient_like(array, dy), array, affine, g, target)
    return result, ds, dz


def _gradient(
    method: str,
    dy: Any,
    x: Any,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    options: tuple[int, int, int | None, int | None],
    out: Any,
) -> Array:
    plan = _settled(x, *options, dy, out)
    if plan is not None:
        dx: Array = np.empty(x.shape, x.dtype) if out is None else out
        if getattr(plan, method)(dy, x, dx, scale, zero_point) == -1:
            return dx
    array, affine, g = _described(x, scale, zero_point, *options)
    result, target = _output(array, out)
    elementwise.run(method, affine, g, target, dy=_gradient_like(array, dy), x=array)
    return result


_SETTLED: Cache[core.FakeQuantizePlan] = Cache()


def _settled(
    x: Any, qmin: int, qmax: int, axis: int | None, group_size: int | None, *others: Any
) -> core.FakeQuantizePlan | None:
    """The plan for arrays like x; None where x or an option needs a closer look. others: arrays of x's own type."""
    # Keys compare by value, and 1.0 == 1 == True.
    if type(x) is not np.ndarray or type(qmin) is not int or type(qmax) is not int:
        return None
    if (type(axis) is not int and axis is not None) or (type(group_size) is not int and group_size is not None):
        return None
    key = (x.shape, x.dtype, axis, group_size, qmin, qmax)
    plan = _SETTLED.get(key)
    if plan is None:
        element = cpu.BFLOAT16 if x.dtype.name == "bfloat16" else ELEMENTS.get(x.dtype)
        if element is None or not cpu.LOWEST_CODE <= qmin <= qmax <= cpu.HIGHEST_CODE or (group_size or 1) < 1:
            return None
        g = granularity_of(x.shape, axis, group_size)
        plan = _SETTLED.put(key, elementwise.fake_quantize_plan(element, x.shape, g, qmin, qmax))
    # Plans cannot tell bfloat16 from other types of 16 bits.
    if plan.element is cpu.BFLOAT16 and not all(a is None or getattr(a, "dtype", None) is x.dtype for a in others):
        return None
    return plan


def _described(
    x: Any, scale: Any, zero_point: Any, qmin: int, qmax: int, axis: int | None, group_size: int | None, name: str = "x"
) -> tuple[cpu.FloatArray, elementwise.Affine, Granularity]:
    """What the functions above have in common, checked."""
    array = cpu.as_float_array(x, name)
    if group_size is not None:
        group_size = whole("group_size", group_size)
        if group_size < 1:
            raise InvalidProblem(f"group_size: {group_size}; expected at least 1")
    g = granularity_of(array.shape, None if axis is None else whole("axis", axis), group_size)
    return array, affine_of(array.compute, scale, zero_point, qmin, qmax, g), g


def _gradient_like(x: cpu.FloatArray, dy: Any) -> cpu.FloatArray:
    found = cpu.as_float_array(dy, "dy")
    if found.shape != x.shape:
        raise InvalidProblem(f"dy: shape {found.shape}; expected x's, {x.shape}")
    if found.element is not x.element:
        raise InvalidProblem(f"dy: {found.dtype}; expected x's type, {x.dtype}")
    return found


def _output(x: cpu.FloatArray, out: Any) -> tuple[Array, cpu.FloatArray]:
    if out is None:
        return cpu.empty_like(x)
    target = cpu.writable_float(out)
    if target.shape != x.shape:
        raise InvalidProblem(f"out: shape {target.shape}; expected {x.shape}")
    if target.element is not x.element:
        raise InvalidProblem(f"out: {target.dtype}; expected {x.dtype}")
    return out, target


def affine_of(
    compute: np.dtype[Any], scale: npt.ArrayLike, zero_point: npt.ArrayLike, qmin: int, qmax: int, g: Granularity
) -> elementwise.Affine:
    """Scales and zero points of the compute type, one each a parameter set; shapes checked, values not."""
    low, high = whole("qmin", qmin), whole("qmax", qmax)
    if low > high:
        raise InvalidProblem(f"qmin: {low} is above qmax, {high}")
    if low < cpu.LOWEST_CODE or high > cpu.HIGHEST_CODE:
        raise InvalidProblem(f"qmin, qmax: [{low}, {high}]; expected within [{cpu.LOWEST_CODE}, {cpu.HIGHEST_CODE}]")
    s, _ = as_scale(scale)
    if s.shape == (1,) and not g.scale_shape:
        s = s.reshape(())
    if s.ndim and s.shape != g.scale_shape:
        raise InvalidProblem(f"scale: shape {s.shape}; expected {g.scale_shape}")
    z = as_zero_point(zero_point, g.scale_shape)
    s = np.array(np.broadcast_to(s.astype(compute, copy=False), g.scale_shape), order="C")
    return elementwise.Affine(s, z, low, high)
