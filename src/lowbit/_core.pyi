"""
Native kernels of lowbit. Use the functions of the lowbit package instead.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray


class Layout:
    """
    Which elements of a contiguous [outer, axis, inner] array share a scale.
    """

    def __init__(self, kind: int, outer: int, axis: int, inner: int, block: int) -> None: ...

    @property
    def elements(self) -> int: ...

    @property
    def scales(self) -> int: ...

class Affine:
    """Linear codes: scales and zero points, lent by their arrays."""

    def __init__(self, code: int, scale: object, is_f64: bool, zero_point: object | None, qmin: int, qmax: int) -> None: ...

    def quantize(self, x: object, element: int, out: object, layout: Layout | None = None) -> None: ...

    def dequantize(self, q: object, out: object, element: int, layout: Layout | None = None) -> None: ...

class Logarithmic:
    """Logarithmic codes: scales, thresholds and magnitudes."""

    def __init__(self, code: int, scale: object, is_f64: bool, thresholds: object, magnitudes: object) -> None: ...

    def quantize(self, x: object, element: int, out: object, layout: Layout) -> None: ...

    def dequantize(self, q: object, out: object, element: int, layout: Layout) -> None: ...

class Mixed:
    """A code width a channel; channels are the rows of a contiguous array."""

    def __init__(self, codes: Sequence[int], length: int, scale: object, is_f64: bool, zero_point: object, qmin: object, qmax: object) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def offsets(self) -> list[int]: ...

    def quantize(self, x: object, element: int, out: object) -> None: ...

    def dequantize(self, q: object, out: object, element: int) -> None: ...

def range(x: object, element: int, layout: Layout, lo: object, hi: object) -> int:
    """Writes min and max per scale; returns the number of NaN."""

def mean_abs(x: object, element: int, length: int, out: object) -> None:
    """Writes the mean of |x| of each run of `length` elements, in f64."""

def quantize_dynamic(x: object, element: int, out: object, code: int, layout: Layout, qmin: int, qmax: int, divisor: int, scale: object, zero_point: object | None) -> tuple[int, int]:
    """
    Range, parameters, codes and packing in one read; returns (NaN seen, scales out of bounds).
    """

def fused_groups_fit(layout: Layout, code: int) -> bool:
    """Whether quantize_dynamic serves this layout."""

class Problem:
    """A plan's facts: runs with plain arrays in one call."""

    def __init__(self, layout: Layout, element: int, shape: Sequence[int], scale_shape: Sequence[int], qmin: int, qmax: int) -> None: ...

    @property
    def element(self) -> int: ...

    def fake_quant(self, op: int, x: object | None, dy: object | None, out: object, scale: object, zero_point: object | None) -> int:
        """
        As the function fake_quant, with arrays of just the right kind; any other result than -1 means that nothing was done.
        """

def convert(to_codes: bool, code: int, input: object, output: object, element: int, scale: object, zero_point: object, qmin: int, qmax: int, layout: Layout) -> int:
    """
    quantize or dequantize under parameters of this one call. Returns as fake_quant.
    """

def quantize_from_data(input: object, element: int, output: object, code: int, layout: Layout, qmin: int, qmax: int, divisor: int, scale: object, zero_point: object | None, workspace: object) -> tuple[int, int]:
    """
    Parameters from the data, and its codes; returns (NaN seen, scales out of bounds).
    """

def dynamic_workspace(layout: Layout, element: int) -> int:
    """Bytes quantize_from_data works in."""

def fake_quant(op: int, x: object | None, dy: object | None, out: object, element: int, scale: object, zero_point: object, qmin: int, qmax: int, layout: Layout) -> int:
    """
    op 0 fake_quantize, 1 its gradient, 2 quantize's, 3 dequantize's. Returns -1, or which scale (i) or zero point (-2 - i) is out of bounds; then nothing was done.
    """

def fake_quant_learned(x: object, dy: object, out: object, element: int, scale: object, zero_point: object, qmin: int, qmax: int, layout: Layout, workspace: object, d_scale: object, d_zero_point: object) -> int:
    """Gradients by x, scale and zero point. Returns as fake_quant."""

def learned_workspace(layout: Layout) -> int:
    """Bytes fake_quant_learned works in."""

def combine(op: int, a: object, a_code: int, a_scale: float, a_zero: int, a_shape: Sequence[int], b: object, b_code: int, b_scale: float, b_zero: int, b_shape: Sequence[int], out: object, code: int, scale: float, zero: int, qmin: int, qmax: int, shape: Sequence[int]) -> None:
    """
    op 0: codes of the sums of what two arrays of codes stand for; 1: of the products.
    """

def clamp_codes(code: int, x: object, lo: int, hi: int, out: object) -> None: ...

def lookup_codes(table: object | None, x: object, length: int, out: object, offset: int, stride: int) -> None:
    """
    Rows of x, each byte by its place in a table of 256, into rows of out; without a table as they are.
    """

def max_pool(code: int, x: object, out: object, shape: Sequence[int]) -> None:
    """
    shape: count, height, width, depth, kernel, stride, and padding (top, left, bottom, right).
    """

def average_pool(code: int, x: object, scale: float, zero: int, out_code: int, out: object, out_scale: float, out_zero: int, qmin: int, qmax: int, count_padding: bool, shape: Sequence[int]) -> None: ...

def pack(bits: int, codes: object, out: object) -> None: ...

def unpack(bits: int, is_signed: bool, data: object, out: object) -> None: ...

def bfloat16_bits(array: object) -> NDArray[numpy.uint16]:
    """The bits of a DLPack bfloat16 array, without a copy."""

def num_threads() -> int: ...

def set_num_threads(n: int) -> None: ...

def usable_cpus() -> int:
    """CPUs this process may use: affinity and cgroup quota."""

def cpu_features() -> list[tuple[str, bool]]:
    """Instruction sets by name, and whether this machine offers them."""

def cpu_brand() -> str: ...

def active_isa() -> str:
    """The ISA kernels are dispatched to."""

def available_isas() -> list[str]: ...

def max_isa() -> str: ...

def set_max_isa(name: str) -> None:
    """Caps dispatch, as LOWBIT_MAX_ISA does; an empty name lifts the cap."""

class BinaryMatrix:
    """Columns of bits, packed once for many products."""

    def __init__(self, bits: object, n: int, k: int) -> None: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class BinaryConv:
    """Kernels of bits, packed once for many convolutions."""

    def __init__(self, w: object, groups: int, channels: int, outputs: int, kernel: Sequence[int]) -> None: ...

    @property
    def groups(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    @property
    def kernel(self) -> list[int]: ...

    @property
    def nbytes(self) -> int: ...

def binary_matmul(a: object, m: int, b: BinaryMatrix, out: object, a_scale: object | None = None, b_scale: object | None = None, bias: object | None = None) -> None:
    """Writes k - 2 * popcount(a xor b) as int32, or scaled as float32."""

def binary_conv2d(x: object, w: BinaryConv, out: object, image: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], channels_first: bool, x_scale: object | None = None, w_scale: object | None = None, bias: object | None = None) -> None:
    """As binary_matmul, of bits [image, height, width, group, bytes]."""

def binary_align_rows(stream: object, rows: int, k: int, out: object) -> None:
    """Rows of k bits without gaps as rows of whole bytes."""

def binary_channels_last(stream: object, images: int, channels: int, pixels: int, groups: int, out: object) -> None:
    """
    A stream of bits, channels first, as whole bytes of each pixel's channels, group after group.
    """

def kernel_rows() -> list[tuple[str, str, str, str]]:
    """(family, isa, from, to) of every kernel this CPU can run."""
