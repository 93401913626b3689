"""Convolutions over quantized weights, called on float images."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from lowbit.layers.weights import DTYPES, SCHEMES, check_input, quantized_weight
from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv import conv_path_of
from lowbit.ops.conv_geometry import ConvGeometry, check_kernel_shape, check_shapes, from_nhwc, require_layout, to_nhwc
from lowbit.ops.conv_paths import ConvCall, PackedConv, general_convolution
from lowbit.ops.epilogue import Epilogue, bounds_of
from lowbit.ops.fitting import Products
from lowbit.ops.operands import Frozen
from lowbit.ops.quantize import quantize
from lowbit.ops.workspace import codes_workspace, conv_workspace
from lowbit.runtime import arrays as cpu
from lowbit.runtime.cache import Cache


class QuantizedConv2d(Frozen):
    """A convolution over quantized weights [out, in / groups, kh, kw], called on float images.

    The result has x's type, or codes of `out_params`. x becomes codes with one scale, found in it: int8 (±127), or with
    activation_dtype="uint8" codes of 0 to 255 with a zero point; or codes of `input_params`. Options as in `qconv2d`,
    clamp for one; fit_products as in `QuantizedLinear`. Weights have any dtype, scheme and granularity; `path` says how
    they are convolved: "integer", "depthwise", "integer16" or "general", as `qconv2d` has them.

    >>> import lowbit as lb
    >>> layer = lb.QuantizedConv2d(np.ones((1, 1, 2, 2), np.float32), padding=(0, 0, 1, 1))
    >>> layer(np.ones((1, 1, 2, 2), np.float32)).round(2)[0, 0]
    array([[4., 2.],
           [2., 1.]], dtype=float32)
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCHW",
        dtype: DTypeLike = "int8",
        scheme: str | QuantizationScheme = "symmetric",
        activation_dtype: str = "int8",
        input_params: QuantizationParams | None = None,
        out_params: QuantizationParams | None = None,
        clamp: tuple[float, float] | None = None,
        fit_products: Products = 1,
    ) -> None:
        if activation_dtype not in SCHEMES:
            raise InvalidProblem(f"activation_dtype: {activation_dtype!r}; expected one of {', '.join(SCHEMES)}")
        self.activation_dtype = activation_dtype
        self._geometry = ConvGeometry.of(stride, padding, dilation, groups, layout)
        weight = quantized_weight(weight, 4, dtype, scheme, None, fit_products)
        check_kernel_shape(weight.shape, groups)
        if input_params is not None:
            check_input(input_params)
        given = QuantizationParams(activation_dtype) if input_params is None else input_params
        self.path = conv_path_of(given, weight.params, weight.shape, self._geometry.groups)
        native = self.path in ("integer", "depthwise")
        self._packed = PackedConv(weight, self._geometry.groups) if native else weight
        self._epilogue = Epilogue.of(weight.shape[0], bias, out_params, clamp=clamp, any_codes=True)
        self._epilogues: Cache[Epilogue] = Cache(4)  # by the element of x
        if self.path == "general":
            self._epilogue.refuse_integer_bias(self.path)
        self.bias = None if bias is None else np.asarray(bias)
        self.input_params, self.out_params = input_params, out_params
        self.clamp = None if clamp is None else bounds_of("clamp", clamp)

    @property
    def weight(self) -> QuantizedTensor:
        """The quantized weights, [out, in / groups, kh, kw]."""
        return self._packed.to_tensor() if isinstance(self._packed, PackedConv) else self._packed

    @property
    def nbytes(self) -> int:
        """Of the weights as they are kept, their scales, and the bias."""
        return self._packed.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def geometry(self) -> ConvGeometry:
        """How the kernel passes over images."""
        return self._geometry

    def __call__(self, x: Any, layout: str | None = None, out_layout: str | None = None) -> Any:
        """The convolution of x, in x's type, or a QuantizedTensor of out_params. layout: of x where it is not the
        layer's; out_layout: of the result where it is not x's. A result in NHWC spares a transposition."""
        floats = cpu.as_float_array(x, "x")
        if floats.element not in DTYPES:
            raise UnsupportedDType(f"x: {floats.compute}; expected float32, float16 or bfloat16")
        g = self._geometry if layout is None else _in_layout("layout", self._geometry, layout)
        wanted = g if out_layout is None else _in_layout("out_layout", g, out_layout)
        check_shapes(floats.shape, self._packed.shape, g)
        epilogue = self._epilogues.find(id(floats.element), lambda: self._epilogue.giving(DTYPES[floats.element]))
        epilogue.require_shape(g.output_shape(floats.shape, self._packed.shape, wanted.layout))
        if self.input_params is None and 0 not in floats.shape:
            q = quantize(x, self.activation_dtype, scheme=SCHEMES[self.activation_dtype], name="x")
        else:
            q = quantize(x, params=self.input_params or QuantizationParams("int8"))
        if wanted.layout == "NHWC" and g.layout == "NCHW":
            codes, g = to_nhwc(q.unpack(), g), wanted
            q = QuantizedTensor._trusted(codes, q.params, codes.shape)
        if isinstance(self._packed, PackedConv):
            y = ConvCall.of(q, self._packed, g, epilogue).run(q, self._packed)
        else:
            y = general_convolution(self.path, q, self._packed, g, epilogue)
        return epilogue.wrap(y if g.layout == wanted.layout else from_nhwc(y, wanted))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result for x of this shape.

        >>> QuantizedConv2d(np.ones((4, 3, 3, 3), np.float32), padding=1).output_shape((2, 3, 8, 8))
        (2, 4, 8, 8)
        """
        return self._geometry.output_shape(shape, self._packed.shape)

    def workspace_size(self, shape: tuple[int, ...]) -> int:
        """The most bytes that a call on x of this shape works in, beside its argument and its result.

        >>> layer = QuantizedConv2d(np.ones((4, 3, 3, 3), np.float32), padding=1, layout="NHWC")
        >>> layer.workspace_size((2, 8, 8, 3)) < 4 << 20
        True
        """
        p = QuantizationParams("int8") if self.input_params is None else self.input_params
        item = self._epilogue.dtype.itemsize
        found = conv_workspace(shape, self._packed.shape, p, self._packed.params, self._geometry, item, prepacked=True)
        # And the codes of x.
        return found + codes_workspace(math.prod(self.output_shape(shape)), self.out_params) + math.prod(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("activation_dtype", "input_params", "out_params", "clamp")
        options = {name: getattr(self, name) for name in names}
        return functools.partial(QuantizedConv2d, **self._geometry._asdict(), **options), (self.weight, self.bias)

    def __repr__(self) -> str:
        out, per_group, kh, kw = self._packed.shape
        g = self._geometry
        clamped = "" if self.clamp is None else f", clamp={self.clamp}"
        return (
            f"QuantizedConv2d({per_group * g.groups}, {out}, kernel=({kh}, {kw}), {self._packed.dtype}, "
            f"stride={g.stride}, padding={g.padding}, groups={g.groups}, {g.layout}{clamped})"
        )


def _in_layout(name: str, g: ConvGeometry, layout: str) -> ConvGeometry:
    require_layout(name, layout)
    return g._replace(layout=layout)
