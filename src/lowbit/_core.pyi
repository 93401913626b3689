"""
Native kernels of lowbit. Use the functions of the lowbit package instead.
"""

from collections.abc import Callable, Sequence
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

class ScaledShape:
    """
    The shapes of an array and of its scales, and which elements share one.
    """

    def __init__(self, shape: Sequence[int], scale_shape: Sequence[int], granularity: Granularity) -> None: ...

class Mapping:
    """How numbers become codes."""

class Affine(Mapping):
    """Codes round(x / scale) + zero_point, clamped to [qmin, qmax]."""

    def __init__(self, code: Code, scale: numpy.typing.NDArray[numpy.floating[Any]], zero_point: numpy.typing.NDArray[numpy.int32] | None, qmin: int, qmax: int) -> None: ...

    @property
    def first_invalid(self) -> int:
        """
        -1, or the first that is out of bounds: scale i as i, zero point i as -2 - i.
        """

class Logarithmic(Mapping):
    """Codes of magnitudes, found by their thresholds."""

    def __init__(self, code: Code, scale: numpy.typing.NDArray[numpy.floating[Any]], thresholds: numpy.typing.NDArray[numpy.floating[Any]], magnitudes: numpy.typing.NDArray[numpy.floating[Any]]) -> None: ...

class QuantizePlan:
    """Numbers to codes."""

    def __init__(self, element: Element, code: Code, shape: ScaledShape) -> None: ...

    @property
    def kernel(self) -> str:
        """The kernel that runs: family/ISA/types."""

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any], parameters: Mapping) -> bool:
        """
        False: an array is not just as described (C-contiguous, aligned, of the plan's type and shape); nothing was done.
        """

class DequantizePlan:
    """Codes to numbers."""

    def __init__(self, element: Element, code: Code, shape: ScaledShape) -> None: ...

    @property
    def kernel(self) -> str:
        """The kernel that runs: family/ISA/types."""

    def run(self, q: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any], parameters: Mapping) -> bool:
        """
        False: an array is not just as described (C-contiguous, aligned, of the plan's type and shape); nothing was done.
        """

class Mixed:
    """A code width per channel; channels are the rows of a contiguous array."""

    def __init__(self, codes: Sequence[Code], length: int, scale: numpy.typing.NDArray[numpy.floating[Any]], qmin: numpy.typing.NDArray[numpy.int32], qmax: numpy.typing.NDArray[numpy.int32]) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def offsets(self) -> list[int]: ...

    def quantize(self, x: numpy.typing.NDArray[Any], element: Element, out: numpy.typing.NDArray[Any]) -> None: ...

    def dequantize(self, q: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any], element: Element) -> None: ...

class DynamicQuantizePlan:
    """Range, parameters and codes of an array in one call."""

    def __init__(self, element: Element, code: Code, shape: ScaledShape, qmin: int, qmax: int, divisor: int) -> None:
        """divisor > 0: symmetric, scale = max|x| / divisor; 0: asymmetric."""

    @property
    def code(self) -> Code: ...

    @property
    def fused(self) -> bool:
        """Whether the data is read once, and no workspace needed."""

    @property
    def workspace_bytes(self) -> int: ...

    @property
    def kernel(self) -> str:
        """The kernel that runs: family/ISA/types."""

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any], scale: numpy.typing.NDArray[numpy.floating[Any]], zero_point: numpy.typing.NDArray[numpy.int32] | None, workspace: numpy.typing.NDArray[Any] | None) -> tuple[int, int] | None:
        """
        (NaN seen, scales out of bounds); None where x or out is not just as described, or arrays share memory, and nothing was done.
        """

class RangePlan:
    """The least and the greatest number per scale."""

    def __init__(self, element: Element, granularity: Granularity) -> None: ...

    @property
    def kernel(self) -> str:
        """The kernel that runs: family/ISA/types."""

    def run(self, x: numpy.typing.NDArray[Any], lo: numpy.typing.NDArray[numpy.floating[Any]], hi: numpy.typing.NDArray[numpy.floating[Any]]) -> int:
        """
        Writes them in the compute type, +Inf and -Inf where there is none; returns the number of NaN.
        """

def mean_abs(x: numpy.typing.NDArray[Any], element: Element, length: int, out: numpy.typing.NDArray[numpy.float64]) -> None:
    """Writes the mean of |x| of each run of `length` elements."""

def first_nonfinite(x: numpy.typing.NDArray[Any], element: Element) -> int:
    """The index of the first NaN or Inf, or -1."""

class LearnedGradients:
    """Where the gradients of scales and zero points go."""

    def __init__(self, scale: numpy.typing.NDArray[numpy.floating[Any]], zero_point: numpy.typing.NDArray[numpy.floating[Any]], workspace: numpy.typing.NDArray[Any]) -> None: ...

class FakeQuantizePlan:
    """
    dequantize(quantize(x)) and its gradients. Methods return -1; or the first parameter that is out of bounds, scale i as i, zero point i as -2 - i; or NOT_AS_DESCRIBED where an array is not C-contiguous, aligned, of the plan's type and shape. Unless they return -1, nothing was done.
    """

    def __init__(self, element: Element, shape: ScaledShape, qmin: int, qmax: int) -> None: ...

    @property
    def element(self) -> Element: ...

    @property
    def kernel(self) -> str:
        """The kernel that runs: family/ISA/types."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes learned_backward works in."""

    @property
    def has_mask(self) -> bool:
        """Whether scales hold for whole bytes of a mask."""

    @property
    def mask_bytes(self) -> int: ...

    def run(self, x: numpy.typing.NDArray[Any] | None, out: numpy.typing.NDArray[Any] | None, scale: numpy.typing.ArrayLike | None, zero_point: numpy.typing.ArrayLike | None) -> int: ...

    def backward(self, dy: numpy.typing.NDArray[Any] | None, x: numpy.typing.NDArray[Any] | None, out: numpy.typing.NDArray[Any] | None, scale: numpy.typing.ArrayLike | None, zero_point: numpy.typing.ArrayLike | None) -> int:
        """dy where the code was not clipped, else 0."""

    def quantize_backward(self, dy: numpy.typing.NDArray[Any] | None, x: numpy.typing.NDArray[Any] | None, out: numpy.typing.NDArray[Any] | None, scale: numpy.typing.ArrayLike | None, zero_point: numpy.typing.ArrayLike | None) -> int:
        """dy / scale where the code was not clipped, else 0."""

    def dequantize_backward(self, dy: numpy.typing.NDArray[Any] | None, out: numpy.typing.NDArray[Any] | None, scale: numpy.typing.ArrayLike | None, zero_point: numpy.typing.ArrayLike | None) -> int:
        """dy * scale."""

    def learned_backward(self, dy: numpy.typing.NDArray[Any] | None, x: numpy.typing.NDArray[Any] | None, out: numpy.typing.NDArray[Any] | None, scale: numpy.typing.ArrayLike | None, zero_point: numpy.typing.ArrayLike | None, gradients: LearnedGradients) -> int:
        """The gradients by x, scale and zero point."""

    def run_masked(self, x: int, out: int, bits: int, scale: int, zero_point: int) -> int:
        """
        As run, and a bit per element that was not clipped, by addresses of contiguous memory.
        """

    def masked_backward(self, dy: int, bits: int, out: int) -> None:
        """dy where run_masked set a bit, else 0, by addresses."""

NOT_AS_DESCRIBED: int = -9223372036854775808

class Result(enum.Enum):
    """The element type of a result."""

    s32 = 0

    f32 = 1

    f16 = 2

    bf16 = 3

    s8 = 4

    u8 = 5

class CodeParams:
    """One scale, zero point and range for codes of a byte."""

    def __init__(self, code: Code, scale: float, zero_point: int, qmin: int, qmax: int) -> None: ...

    @property
    def code(self) -> Code: ...

    @property
    def scale(self) -> float: ...

    @property
    def zero_point(self) -> int: ...

    @property
    def qmin(self) -> int: ...

    @property
    def qmax(self) -> int: ...

class Epilogue:
    """What follows accumulation. The constructor's leaves sums as integers."""

    def __init__(self, add: numpy.typing.NDArray[numpy.int32] | None = None, wide: bool = False) -> None: ...

    @staticmethod
    def floats(result: Result, clamp: tuple[float, float], scale: numpy.typing.NDArray[numpy.float32] | None = None, row_scale: numpy.typing.NDArray[numpy.float32] | None = None, bias: numpy.typing.NDArray[numpy.float32] | None = None, add: numpy.typing.NDArray[numpy.int32] | None = None) -> Epilogue:
        """
        (sum + add) * (row_scale * scale) + bias, clamped. scale, bias, add: one per column.
        """

    @staticmethod
    def codes(params: CodeParams, scale: numpy.typing.NDArray[numpy.float32], row_scale: numpy.typing.NDArray[numpy.float32] | None = None, add: numpy.typing.NDArray[numpy.int32] | None = None) -> Epilogue:
        """(sum + add) * (row_scale * scale), requantized."""

class PackedMatrix:
    """The right side of a GEMM, [k, n], in the order of the kernels."""

    def __init__(self, codes: numpy.typing.NDArray[numpy.int8] | numpy.typing.NDArray[numpy.uint8], transposed: bool = False, zero_point: numpy.typing.NDArray[numpy.int32] | None = None) -> None:
        """
        codes: [k, n], or [n, k] if transposed. zero_point: one, or one per column.
        """

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

    def unpack(self, out: numpy.typing.NDArray[Any]) -> None:
        """Writes the codes, [n, k], as they were given."""

    @staticmethod
    def bytes_for(k: int, n: int) -> int:
        """nbytes of a matrix of this size."""

class PackedGroups:
    """Weights of 4 or 2 bits in groups, in the order of the kernels."""

    def __init__(self, codes: numpy.typing.NDArray[numpy.uint8], bits: int, block: int, scale: numpy.typing.NDArray[numpy.float32], zero_point: numpy.typing.NDArray[numpy.uint8] | None, zero_all: int) -> None:
        """
        codes: [n, k], one per byte, from 0 on; scale: [n, groups]; zero_point: likewise, or zero_all for all.
        """

    @property
    def k(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def unpack(self, out: numpy.typing.NDArray[Any]) -> None:
        """Writes the codes, [n, k], one per byte, as they were given."""

def dot_limit() -> float:
    """
    Measured operations per second of 8-bit dot products on one thread, arithmetic alone; 0 where unknown.
    """

def fma_limit() -> float:
    """
    Measured operations per second of float32 multiply-adds on one thread, arithmetic alone.
    """

def read_limit(bytes: int, seconds: float) -> float:
    """
    Bytes per second of repeated reads of `bytes` on one thread, the best of several runs.
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

class GemmPlan:
    """Codes a [..., k] times packed weights, with an epilogue."""

    def __init__(self, b: PackedMatrix, code: Code, zero_point: numpy.typing.NDArray[numpy.int32], epilogue: Epilogue) -> None:
        """code, zero_point: of a; one zero point, or one per row."""

    def run(self, a: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None:
        """out: [..., n]; sums past exact_depth are int64."""

    def workspace_bytes(self, m: int) -> int: ...

    @staticmethod
    def workspace_for(m: int, n: int, k: int, wide: bool = False) -> int:
        """workspace_bytes of a plan of this size."""

class GroupGemmPlan:
    """int8 codes a [..., k] times weights in groups, with an epilogue."""

    def __init__(self, b: PackedGroups, epilogue: Epilogue) -> None:
        """Of the epilogue, bias and clamp apply."""

    def run(self, a: numpy.typing.NDArray[numpy.int8], a_scale: numpy.typing.NDArray[numpy.float32], out: numpy.typing.NDArray[Any]) -> None:
        """a_scale: [m], or [m, groups]."""

    def workspace_bytes(self, m: int) -> int: ...

    @staticmethod
    def workspace_for(m: int, n: int, k: int, bits: int, block: int) -> tuple[int, int]:
        """Bytes that `run` works in, and most that packed weights take."""

    @staticmethod
    def float_workspace_for(m: int, n: int, k: int, bits: int, block: int) -> int:
        """The same for floats on the left."""

def transpose(source: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None:
    """out[b][j][i] = source[b][i][j], items of 1, 2, 4 or 8 bytes."""

exact_depth: int = 33025

class WeightLayout:
    """Sizes of weights [n, k], and which of them share a scale."""

    def __init__(self, n: int, k: int, kind: GranularityKind, block: int) -> None:
        """kind: one scale (tensor), one per row (channel), or per block of k."""

class WeightOnly:
    """Weights [n, k] as stored: packed, each row from a whole byte on."""

    def __init__(self, codes: numpy.typing.NDArray[Any], code: Code, layout: WeightLayout, scale: numpy.typing.NDArray[numpy.float32], zero_point: numpy.typing.NDArray[numpy.int32] | None, tables: tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]] | None) -> None:
        """tables: thresholds and magnitudes of logarithmic codes."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @staticmethod
    def workspace_for(m: int, k: int) -> int:
        """Bytes a FloatLinearPlan on m rows works in."""

class LinearPlan:
    """Floats x [..., k], quantized, times packed weights, with an epilogue."""

    def __init__(self, weights: PackedMatrix | PackedGroups, element: Element, code: Code, params: CodeParams | None, epilogue: Epilogue) -> None:
        """
        code: what each row of x becomes, under a scale found in it; params: one set for all rows instead.
        """

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> bool:
        """
        False where x has NaN, Inf or a range too wide for a scale; then `out` is undefined.
        """

    @staticmethod
    def workspace_for(m: int, k: int) -> int:
        """Bytes of codes and their scales, beside what the GEMM works in."""

class FloatLinearPlan:
    """Floats x [..., k] times quantized weights, with an epilogue."""

    def __init__(self, weights: WeightOnly | PackedGroups, element: Element, epilogue: Epilogue) -> None:
        """Of the epilogue, bias and clamp apply."""

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None: ...

class Window:
    """A kernel that passes over images [batch, height, width, channels]."""

    def __init__(self, image: Sequence[int], kernel: Sequence[int], stride: Sequence[int] = [1, 1], padding: Sequence[int] = [0, 0, 0, 0], dilation: Sequence[int] = [1, 1], groups: int = 1) -> None:
        """
        kernel, stride, dilation: (height, width); padding: (top, left, bottom, right).
        """

    @property
    def out_height(self) -> int: ...

    @property
    def out_width(self) -> int: ...

class ConvPlan:
    """A convolution of codes, with an epilogue for each group."""

    def __init__(self, weights: Sequence[PackedMatrix], window: Window, code: Code, zero_point: int, epilogues: Sequence[Epilogue]) -> None:
        """
        weights: one matrix [kernel * channels, outputs] per group; code, zero_point: of x.
        """

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None:
        """out: [batch, height, width, outputs]."""

    @property
    def workspace_bytes(self) -> int: ...

class DepthwiseWeights:
    """Weights [channels, kh, kw] prepared for one window, type of x and ISA."""

    def __init__(self, window: Window, x_code: Code, w: numpy.typing.NDArray[Any], w_code: Code, w_zero_point: numpy.typing.NDArray[numpy.int32] | None) -> None: ...

    @property
    def nbytes(self) -> int: ...

class DepthwiseConvPlan:
    """A convolution with one filter per channel, and an epilogue."""

    def __init__(self, weights: DepthwiseWeights, window: Window, zero_point: int, epilogue: Epilogue) -> None: ...

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None: ...

    @property
    def workspace_bytes(self) -> int: ...

class CombineOp(enum.Enum):
    """What two arrays are combined by."""

    add = 0

    mul = 1

class CombinePlan:
    """Codes of the sum or product of two arrays of codes."""

    def __init__(self, op: CombineOp, a: CodeParams, b: CodeParams, out: CodeParams) -> None: ...

    def run(self, a: numpy.typing.NDArray[Any], b: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None:
        """a and b are broadcast to the shape of out."""

def clamp_codes(code: Code, x: numpy.typing.NDArray[Any], lo: int, hi: int, out: numpy.typing.NDArray[Any]) -> None: ...

def lookup_codes(table: numpy.typing.NDArray[numpy.uint8] | None, x: numpy.typing.NDArray[Any], length: int, out: numpy.typing.NDArray[Any], offset: int, stride: int) -> None:
    """
    Rows of x, each byte looked up in a table of 256, into rows of out; without a table a copy.
    """

class MaxPoolPlan:
    """The greatest code of each window."""

    def __init__(self, window: Window, code: Code) -> None: ...

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None: ...

class AveragePoolPlan:
    """The mean of each window."""

    def __init__(self, window: Window, x: CodeParams, out: CodeParams, count_padding: bool) -> None: ...

    def run(self, x: numpy.typing.NDArray[Any], out: numpy.typing.NDArray[Any]) -> None: ...

def pack(bits: int, codes: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """Packs codes, one a byte, the first in the low bits."""

def unpack(bits: int, is_signed: bool, data: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """The inverse of pack."""

def bfloat16_bits(array: Any) -> numpy.typing.NDArray[numpy.uint16]:
    """The bits of a DLPack bfloat16 array, without a copy."""

class BinaryMatrix:
    """Rows of bits, packed once as the right side of products."""

    def __init__(self, bits: numpy.typing.NDArray[numpy.uint8], k: int) -> None:
        """bits: [n, bytes], the first bit in bit 0, k bits per row."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class BinaryGemmPlan:
    """Rows of bits times packed rows: k - 2 * popcount(a xor b)."""

    def __init__(self, b: BinaryMatrix, scale: numpy.typing.NDArray[numpy.float32] | None = None, bias: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """Without a scale results are int32 sums; with one float32."""

    def run(self, a: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[Any], a_scale: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """a: [m, bytes]; a_scale: one, or one per row."""

    @staticmethod
    def workspace_for(m: int, n: int, k: int) -> int:
        """
        The most bytes that a product of this size works in, packed weights included.
        """

class BinaryConv:
    """Kernels of bits, packed once for many convolutions."""

    def __init__(self, w: numpy.typing.NDArray[numpy.uint8], channels: int) -> None:
        """
        w: [groups, outputs, height, width, bytes]; channels, outputs: per group.
        """

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

class BinaryConvPlan:
    """A convolution of bits; padding adds nothing to a sum."""

    def __init__(self, w: BinaryConv, window: Window, channels_first: bool, scale: numpy.typing.NDArray[numpy.float32] | None = None, bias: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """
        channels_first: of the result. Without a scale results are int32 sums; with one float32.
        """

    def run(self, x: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[Any], x_scale: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """
        x: [image, height, width, group, bytes]; x_scale: one, or one per image.
        """

def binary_align_rows(stream: numpy.typing.NDArray[numpy.uint8], rows: int, k: int, out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """Rows of k bits without gaps as rows of whole bytes."""

def binary_channels_last(stream: numpy.typing.NDArray[numpy.uint8], channels: int, out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """
    A stream of bits, channels first, as whole bytes of each pixel's channels, group after group.
    """

class SketchTotals:
    """The sums and counts of a state."""

    def __init__(self, counters: numpy.typing.NDArray[numpy.uint64], extremes: numpy.typing.NDArray[numpy.float64], limbs: numpy.typing.NDArray[numpy.int64]) -> None: ...

class SketchSamples:
    """The histogram, the reservoir and the tails of a state."""

    def __init__(self, counts: numpy.typing.NDArray[numpy.uint64], priorities: numpy.typing.NDArray[numpy.uint32], values: numpy.typing.NDArray[numpy.float32], tails: numpy.typing.NDArray[numpy.float32]) -> None: ...

class Sketches:
    """
    Statistics of streams of numbers in fixed memory, one sketch per scale.
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

    def state(self, totals: SketchTotals, samples: SketchSamples) -> None:
        """Writes the whole state."""

    def restore(self, totals: SketchTotals, samples: SketchSamples) -> None:
        """Takes over what `state` wrote."""

    def bin_layout(self, scale: int) -> tuple[int, int, int]:
        """
        (shift, first, negative): |x| is counted in bin (bits of |x| >> shift) - first, bin 0 and below being tiny; negative numbers `negative` further.
        """

sketch_counters: int = 15

sketch_limbs: int = 68

sketch_tail: int = 64

sketch_moments: int = 5

class Histogram:
    """Counts of numbers spread evenly over bins [lower, upper)."""

    def __init__(self, lower: numpy.typing.NDArray[numpy.float64], upper: numpy.typing.NDArray[numpy.float64], count: numpy.typing.NDArray[numpy.float64]) -> None: ...

def squared_error(histogram: Histogram, scale: numpy.typing.NDArray[numpy.float64], least: numpy.typing.NDArray[numpy.int64], most: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float64]) -> None:
    """Per mapping: the sum of squared errors."""

def divergence(histogram: Histogram, scale: numpy.typing.NDArray[numpy.float64], least: numpy.typing.NDArray[numpy.int64], most: numpy.typing.NDArray[numpy.int64], floor: float, out: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Per mapping: the Kullback-Leibler divergence of the quantized distribution from the clipped one.
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

def on_settings_change(function: Callable[[], None]) -> None:
    """Has it called whenever the ISA cap or the number of threads was set."""

def kernel_rows() -> list[tuple[str, str, str, str]]:
    """(family, isa, key, method) of every row of kernels this CPU can run."""

class RecurrentGates:
    """The gates of an LSTM or a GRU over the products of its state."""

    def __init__(self, products: numpy.typing.NDArray[numpy.float32], h: numpy.typing.NDArray[numpy.float32], c: numpy.typing.NDArray[numpy.float32] | None, hidden: int) -> None:
        """
        products: [rows, 4 or 3 gates, hidden], read at each step; h and c, [rows, hidden], change. c: of an LSTM.
        """

    def step(self, x: numpy.typing.NDArray[numpy.float32], out: numpy.typing.NDArray[numpy.float32]) -> None:
        """One step: x is added to the products, and out gets the new h."""

class Emphasis(enum.Enum):
    """How much the error of a weight x counts: 1, sqrt(a + x^2) or a + x^2."""

    none = 0

    root = 1

    square = 2

class SearchCodes:
    """Codes and scales to choose among."""

    def __init__(self, qmin: int, qmax: int, symmetric: bool, offsets: int, rounding: Element) -> None: ...

class SearchWeights:
    """Weights, and how much their errors count."""

    def __init__(self, x: numpy.typing.NDArray[numpy.float32], importance: numpy.typing.NDArray[numpy.float32] | None, floor: numpy.typing.NDArray[numpy.float32] | None, sizes: tuple[int, int, int], emphasis: Emphasis) -> None:
        """
        sizes: rows, inputs, and inputs of a group. importance: of each input; floor: of each row.
        """

def search_scales(weights: SearchWeights, factors: numpy.typing.NDArray[numpy.float32], codes: SearchCodes, scale: numpy.typing.NDArray[numpy.float32], zero_point: numpy.typing.NDArray[numpy.int32], error: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Writes the scale and zero point of least weighted squared error of each group, and that error.
    """

class FeedbackSteps:
    """
    Scales, least and greatest steps of each group, and the group of each input.
    """

    def __init__(self, scale: numpy.typing.NDArray[numpy.float32], low: numpy.typing.NDArray[numpy.float32], high: numpy.typing.NDArray[numpy.float32], group: numpy.typing.NDArray[numpy.int32]) -> None: ...

def feed_back_errors(w: numpy.typing.NDArray[numpy.float32], t: numpy.typing.NDArray[numpy.float32], inputs: int, steps: FeedbackSteps | None, v: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Writes the steps of w, rounded one input after the other; without steps the solution of v T = w.
    """

def product_in_order(a: numpy.typing.NDArray[numpy.float32], b: numpy.typing.NDArray[numpy.float32], inputs: int, out: numpy.typing.NDArray[numpy.float32]) -> None:
    """
    Writes the product of a, [rows, inputs], and b, [inputs, columns], summed in order.
    """

def factor_cholesky(a: numpy.typing.NDArray[numpy.float64], n: int) -> int:
    """
    Replaces a by its lower Cholesky factor. Returns the first row whose pivot is not positive, or -1.
    """
