"""
Native kernels of lowbit. Use the functions of the lowbit package instead.
"""

from collections.abc import Sequence
import enum
from typing import Any

import numpy
import numpy.typing


class Element(enum.Enum):
    """The type of float data."""

    f32 = 0

    f64 = 1

    f16 = 2

    bf16 = 3

class Code(enum.Enum):
    """
    The type of codes. Those below 8 bits are packed, the first in the low bits.
    """

    s8 = 0

    u8 = 1

    s16 = 2

    u16 = 3

    s4 = 4

    u4 = 5

    s2 = 6

    u2 = 7

    b1 = 8

class GranularityKind(enum.Enum):
    """Which elements share a scale."""

    tensor = 0

    channel = 1

    group = 2

class Granularity:
    """
    Which elements of a contiguous [outer, axis, inner] array share a scale.
    """

    def __init__(self, kind: GranularityKind, outer: int, axis: int, inner: int, block: int) -> None: ...

    @property
    def elements(self) -> int: ...

    @property
    def scales(self) -> int: ...

class Affine:
    """Linear codes: scales and zero points, lent by their arrays."""

    def __init__(self, code: Code, scale: object, is_f64: bool, zero_point: object | None, qmin: int, qmax: int) -> None: ...

    def quantize(self, x: object, element: Element, out: object, layout: Granularity | None = None) -> None: ...

    def dequantize(self, q: object, out: object, element: Element, layout: Granularity | None = None) -> None: ...

class Logarithmic:
    """Logarithmic codes: scales, thresholds and magnitudes."""

    def __init__(self, code: Code, scale: object, is_f64: bool, thresholds: object, magnitudes: object) -> None: ...

    def quantize(self, x: object, element: Element, out: object, layout: Granularity) -> None: ...

    def dequantize(self, q: object, out: object, element: Element, layout: Granularity) -> None: ...

class Mixed:
    """A code width a channel; channels are the rows of a contiguous array."""

    def __init__(self, codes: Sequence[Code], length: int, scale: object, is_f64: bool, zero_point: object, qmin: object, qmax: object) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def offsets(self) -> list[int]: ...

    def quantize(self, x: object, element: Element, out: object) -> None: ...

    def dequantize(self, q: object, out: object, element: Element) -> None: ...

def quantize_dynamic(x: object, element: Element, out: object, code: Code, layout: Granularity, qmin: int, qmax: int, divisor: int, scale: object, zero_point: object | None) -> tuple[int, int]:
    """
    Range, parameters, codes and packing in one read; returns (NaN seen, scales out of bounds).
    """

def fused_groups_fit(layout: Granularity, code: Code) -> bool:
    """Whether quantize_dynamic serves this layout."""

def convert(to_codes: bool, code: Code, input: object, output: object, element: Element, scale: object, zero_point: object, qmin: int, qmax: int, layout: Granularity) -> int:
    """
    quantize or dequantize under parameters of this one call. Returns as fake_quant.
    """

def quantize_from_data(input: object, element: Element, output: object, code: Code, layout: Granularity, qmin: int, qmax: int, divisor: int, scale: object, zero_point: object | None, workspace: object) -> tuple[int, int]:
    """
    Parameters from the data, and its codes; returns (NaN seen, scales out of bounds).
    """

def dynamic_workspace(layout: Granularity, element: Element) -> int:
    """Bytes quantize_from_data works in."""

class Problem:
    """A plan's facts: runs with plain arrays in one call."""

    def __init__(self, layout: Granularity, element: Element, shape: Sequence[int], scale_shape: Sequence[int], qmin: int, qmax: int) -> None: ...

    @property
    def element(self) -> Element: ...

    def fake_quant(self, op: int, x: object | None, dy: object | None, out: object, scale: object, zero_point: object | None, of_known_type: bool = False) -> int:
        """
        As the function fake_quant, with arrays of just the right kind; any other result than -1 means that nothing was done.
        """

def fake_quant(op: int, x: object | None, dy: object | None, out: object, element: Element, scale: object, zero_point: object, qmin: int, qmax: int, layout: Granularity) -> int:
    """
    op 0 fake_quantize, 1 its gradient, 2 quantize's, 3 dequantize's. Returns -1, or which scale (i) or zero point (-2 - i) is out of bounds; then nothing was done.
    """

def mask_fits(layout: Granularity) -> bool:
    """Whether fake_quant_masked serves this layout."""

def fake_quant_masked_at(x: int, out: int, bits: int, element: Element, scale: int, zero_point: int, qmin: int, qmax: int, layout: Granularity) -> int:
    """
    fake_quantize, and a bit for each element that was not clipped, by addresses. Returns as fake_quant.
    """

def keep_where_at(dy: int, bits: int, out: int, n: int, element: Element) -> None:
    """dy where a bit is set, else 0, by addresses."""

def fake_quant_learned(x: object, dy: object, out: object, element: Element, scale: object, zero_point: object, qmin: int, qmax: int, layout: Granularity, workspace: object, d_scale: object, d_zero_point: object) -> int:
    """Gradients by x, scale and zero point. Returns as fake_quant."""

def learned_workspace(layout: Granularity) -> int:
    """Bytes fake_quant_learned works in."""

def range(x: numpy.typing.NDArray[Any], element: Element, layout: Granularity, lo: numpy.typing.NDArray[Any], hi: numpy.typing.NDArray[Any]) -> int:
    """Writes min and max per scale; returns the number of NaN."""

def mean_abs(x: numpy.typing.NDArray[Any], element: Element, length: int, out: numpy.typing.NDArray[numpy.float64]) -> None:
    """Writes the mean of |x| of each run of `length` elements."""

def pack(bits: int, codes: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """Packs codes, one a byte, the first in the low bits."""

def unpack(bits: int, is_signed: bool, data: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """The inverse of pack."""

def bfloat16_bits(array: Any) -> numpy.typing.NDArray[numpy.uint16]:
    """The bits of a DLPack bfloat16 array, without a copy."""

def combine(op: int, a: object, a_code: Code, a_scale: float, a_zero: int, a_shape: Sequence[int], b: object, b_code: Code, b_scale: float, b_zero: int, b_shape: Sequence[int], out: object, code: Code, scale: float, zero: int, qmin: int, qmax: int, shape: Sequence[int]) -> None:
    """
    op 0: codes of the sums of what two arrays of codes stand for; 1: of the products.
    """

def clamp_codes(code: Code, x: object, lo: int, hi: int, out: object) -> None: ...

def lookup_codes(table: object | None, x: object, length: int, out: object, offset: int, stride: int) -> None:
    """
    Rows of x, each byte by its place in a table of 256, into rows of out; without a table as they are.
    """

def max_pool(code: Code, x: object, out: object, shape: Sequence[int]) -> None:
    """
    shape: count, height, width, depth, kernel, stride, and padding (top, left, bottom, right).
    """

def average_pool(code: Code, x: object, scale: float, zero: int, out_code: Code, out: object, out_scale: float, out_zero: int, qmin: int, qmax: int, count_padding: bool, shape: Sequence[int]) -> None: ...

class PackedMatrix:
    """The right side of a product, arranged as kernels read it."""

    @property
    def k(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def fits(self) -> int:
        """
        How many products at a time fit 16 bits, whatever the codes on the left: 1, 2 or 4.
        """

    @property
    def nbytes(self) -> int: ...

    def unpack(self, out: object) -> None:
        """Writes the codes, [n, k], as they were given."""

def pack_matrix(codes: object, is_signed: bool, k: int, n: int, transposed: bool, zero_point: object | None) -> PackedMatrix:
    """codes: [k, n], or [n, k] if transposed."""

class Epilogue:
    """
    What becomes of sums of products. result: 0 s32, 1 f32, 2 f16, 3 bf16, 4 s8, 5 u8.
    """

    def __init__(self, result: int, scale: object | None, row_scale: object | None, bias: object | None, add: object | None, floor: float, ceiling: float, out_scale: float, zero: int, lo: int, hi: int) -> None: ...

def multiply(a: object, is_signed: bool, m: int, a_zero_point: object, b: PackedMatrix, epilogue: Epilogue, out: object, wide: bool) -> None:
    """
    Codes a [m, k] times b. out: [m, n]; s32 is int64 where wide, or where k is past exact_depth.
    """

def convolve(x: object, is_signed: bool, zero: int, geometry: Sequence[int], w: PackedMatrix, epilogue: Epilogue, out: object, first_out: int, stride: int) -> None:
    """
    x [batch, height, width, channels] by w. geometry: batch, height, width, channels, kernel (h, w), stride, padding (top, left), dilation, output (h, w), first channel and channels of the group. out: [pixels, stride].
    """

def transpose(from_array: object, to: object, batch: int, rows: int, columns: int, item: int) -> None:
    """to[b][j][i] = from[b][i][j], items of 1, 2, 4 or 8 bytes."""

class PackedGroups:
    """Weights of 4 or 2 bits in groups, arranged as kernels read them."""

    @property
    def k(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def unpack(self, out: object) -> None:
        """Writes the codes, [n, k], one a byte, as they were given."""

    def run(self, x: object, element: Element, m: int, bias: object | None, floor: float, ceiling: float, result: int, out: object) -> None:
        """
        x [m, k], floats as they are, by the weights to out [m, n]. result: 1 f32, 2 f16, 3 bf16.
        """

def pack_groups(codes: object, k: int, n: int, bits: int, block: int, scale: object, zero_point: object | None, zero_all: int) -> PackedGroups:
    """
    codes: [n, k], one a byte, from 0 on; scale: [n, groups], zero_point likewise, in bytes.
    """

def multiply_groups(a: object, m: int, a_scale: object, b: PackedGroups, epilogue: Epilogue, out: object) -> None:
    """Codes a [m, k], s8, times b. a_scale: [m], or [m, groups]."""

def linear(x: object, element: Element, m: int, how: int, code: Code, scale: float, zero: int, qmin: int, qmax: int, b: PackedMatrix, epilogue: Epilogue, out: object) -> tuple[int, int]:
    """
    Floats x [m, k] to codes (how: 0 s8 per row, 1 u8 per row, 2 as given), times b. Returns (NaN seen, rows whose range is too wide).
    """

def linear_groups(x: object, element: Element, m: int, how: int, code: Code, scale: float, zero: int, qmin: int, qmax: int, b: PackedGroups, epilogue: Epilogue, out: object) -> tuple[int, int]:
    """The same for weights in groups."""

def linear_workspace(m: int, k: int) -> int:
    """Bytes of codes that linear keeps."""

def groups_workspace(m: int, n: int, k: int, bits: int, block: int) -> tuple[int, int]:
    """Bytes multiply_groups works in, and of b, packed, at most."""

def float_groups_workspace(m: int, n: int, k: int, bits: int, block: int) -> int:
    """Bytes PackedGroups.run works in."""

def dot_limit() -> float:
    """
    Operations a second that dot products of 8 bits reach on one thread of this CPU, measured: arithmetic alone. 0 where that cannot be measured.
    """

def fma_limit() -> float:
    """
    Operations a second that multiplying and adding f32 reaches on one thread, measured: arithmetic alone.
    """

def read_limit(bytes: int, seconds: float) -> float:
    """
    Bytes a second that reading so many again and again reaches on one thread, the best of runs that last so long.
    """

exact_depth: int = 33025

def multiply_workspace(m: int, n: int, k: int, wide: bool = False) -> int:
    """Bytes multiply works in beside its arguments."""

def packed_matrix_bytes(k: int, n: int) -> int:
    """Bytes of what pack_matrix makes of [k, n]."""

class WeightOnly:
    """
    Weights [n, k] of a linear layer on floats, packed, each row from a whole byte on.
    """

    def __init__(self, code: Code, codes: object, n: int, k: int, kind: GranularityKind, block: int, scale: object, zero_point: object | None, thresholds: object | None, magnitudes: object | None) -> None:
        """kind: one scale, one per row, or one per block of k."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def run(self, x: object, element: Element, m: int, bias: object | None, floor: float, ceiling: float, result: int, out: object) -> None:
        """x [m, k] by the weights to out [m, n]. result: 1 f32, 2 f16, 3 bf16."""

    def workspace(self, m: int) -> int:
        """Bytes run works in beside its arguments."""

def weight_only_workspace(m: int, k: int) -> int:
    """The same from sizes alone."""

class DwconvShape:
    """Sizes of a depthwise convolution, NHWC."""

    def __init__(self, batch: int, height: int, width: int, channels: int, kh: int, kw: int, stride_h: int, stride_w: int, top: int, left: int, bottom: int, right: int, dilation_h: int, dilation_w: int) -> None: ...

    @property
    def out_height(self) -> int: ...

    @property
    def out_width(self) -> int: ...

class DwconvWeights:
    """Weights [channels, kh, kw] prepared for one kernel, stride and ISA."""

    def __init__(self, shape: DwconvShape, x_signed: bool, w: object, w_signed: bool, w_zero_point: object | None) -> None: ...

    @property
    def nbytes(self) -> int: ...

    def run(self, shape: DwconvShape, x: object, x_zero_point: int, epilogue: Epilogue, out: object) -> None:
        """
        x [batch, height, width, channels] by these weights. out: [batch, out_height, out_width, channels].
        """

def dwconv_thread_bytes(shape: DwconvShape, weights: DwconvWeights) -> int:
    """Bytes a thread of run works in."""

def dwconv_call_bytes(shape: DwconvShape, weights: DwconvWeights) -> int:
    """Bytes run allocates beside them."""

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

def binary_matmul_workspace(m: int, n: int, k: int) -> int:
    """Bytes binary_matmul works in at most, b's own as packed included."""

def binary_conv2d(x: object, w: BinaryConv, out: object, image: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], channels_first: bool, x_scale: object | None = None, w_scale: object | None = None, bias: object | None = None) -> None:
    """As binary_matmul, of bits [image, height, width, group, bytes]."""

def binary_align_rows(stream: object, rows: int, k: int, out: object) -> None:
    """Rows of k bits without gaps as rows of whole bytes."""

def binary_channels_last(stream: object, images: int, channels: int, pixels: int, groups: int, out: object) -> None:
    """
    A stream of bits, channels first, as whole bytes of each pixel's channels, group after group.
    """

class CpuModel:
    """What schedules assume of this CPU. Sizes are bytes; 0: not known."""

    @property
    def l1(self) -> int: ...

    @property
    def l2(self) -> int: ...

    @property
    def l3(self) -> int: ...

    @property
    def line(self) -> int: ...

    @property
    def dot_ports(self) -> int:
        """Full-width dot products that start per cycle."""

    @property
    def l1_sets(self) -> int: ...

    @property
    def l1_written_ways(self) -> int: ...

    @property
    def task_rows(self) -> int: ...

    @property
    def task_panels(self) -> int: ...

    @property
    def k_block(self) -> int:
        """Quads of k."""

    @property
    def few_rows(self) -> int: ...

    @property
    def short_k(self) -> int:
        """Quads of k."""

    @property
    def thread_work(self) -> int:
        """Multiply-adds that are worth a thread."""

    @property
    def shared_b(self) -> int: ...

    @property
    def staging(self) -> int: ...

def cpu_model() -> CpuModel:
    """The model of this CPU."""

class TileOrder(enum.Enum):
    """What consecutive tasks share."""

    by_columns = 0

    by_rows = 1

class RowAccess(enum.Enum):
    """Where the micro-kernel reads the rows of a."""

    in_place = 0

    packed_per_task = 1

    packed_once = 2

    image_lines = 3

class GemmSchedule:
    """How a matrix product is cut into tasks."""

    @property
    def kernel(self) -> str: ...

    @property
    def tile_rows(self) -> int: ...

    @property
    def threads(self) -> int:
        """Threads that the work is worth."""

    @property
    def order(self) -> TileOrder: ...

    @property
    def row_tasks(self) -> int: ...

    @property
    def panel_tasks(self) -> int: ...

    @property
    def task_rows(self) -> int: ...

    @property
    def task_panels(self) -> int: ...

    @property
    def panel_columns(self) -> int: ...

    @property
    def k_block(self) -> int:
        """Elements of k."""

    @property
    def k_blocks(self) -> int: ...

    @property
    def rows(self) -> RowAccess: ...

    @property
    def packed_stride(self) -> int: ...

    @property
    def panels_at_once(self) -> int: ...

    @property
    def rows_per_call(self) -> int: ...

    @property
    def paired(self) -> bool:
        """Whether the micro-kernel takes two panels at a time."""

    @property
    def in_place(self) -> bool:
        """Whether accumulators are the result."""

    @property
    def scratch_bytes(self) -> int: ...

def int8_schedule(m: int, n: int, k: int, threads: int) -> GemmSchedule:
    """
    The schedule of a linear layer with int8 weights: s8 rows [m, k] by weights [n, k] to f32.
    """

class Sketches:
    """
    What streams of numbers look like, in fixed memory; one for each scale.
    """

    def __init__(self, scales: int, bins: int, reservoir: int) -> None: ...

    @property
    def scales(self) -> int: ...

    @property
    def bins(self) -> int: ...

    @property
    def reservoir(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def add(self, x: numpy.typing.NDArray[Any], element: Element, layout: Granularity, skip: bool) -> int:
        """
        Returns how many NaN and Inf there are; unless they are to be skipped, then nothing was added.
        """

    def merge(self, other: Sketches) -> None: ...

    def state(self, counters: object, extremes: object, limbs: object, counts: object, priorities: object, values: object, tails: object) -> None:
        """Writes all there is."""

    def restore(self, counters: object, extremes: object, limbs: object, counts: object, priorities: object, values: object, tails: object) -> None:
        """Takes over what `state` wrote."""

    def bin_layout(self, scale: int) -> tuple[int, int, int]:
        """
        (shift, first, negative): |x| is counted in bin (bits of |x| >> shift) - first, bin 0 and below being tiny; negative numbers `negative` further.
        """

sketch_counters: int = 15

sketch_limbs: int = 68

sketch_tail: int = 64

sketch_moments: int = 5

def squared_error(lower: object, upper: object, count: object, scale: object, least: object, most: object, out: object) -> None:
    """
    Of each mapping: the sum of squared errors of numbers spread evenly over bins [lower, upper).
    """

def divergence(lower: object, upper: object, count: object, scale: object, least: object, most: object, floor: float, out: object) -> None:
    """
    Of each mapping: the Kullback-Leibler divergence from the clipped numbers to what codes tell of them.
    """

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

def kernel_rows() -> list[tuple[str, str, str, str]]:
    """(family, isa, from, to) of every kernel this CPU can run."""
