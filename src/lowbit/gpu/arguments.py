"""Arguments of kernels that belong together. Triton passes a tuple as its elements; rules and blocks are constants."""

from __future__ import annotations

from typing import Any, NamedTuple


class Scales(NamedTuple):
    """Pointers: scales and zero points of a and b, and the sums of b's centred codes by column."""

    sa: Any
    za: Any
    sb: Any
    zb: Any
    column_sums: Any


class Epilogue(NamedTuple):
    """The bias (a pointer), scale, zero point and code range of the result, and the bounds of float results."""

    bias: Any
    sy: Any
    zy: Any
    lo: Any
    hi: Any
    floor: Any
    ceiling: Any


class Rules(NamedTuple):
    """Constants. *_STEP: 1 with a value per row or column, 0 with one for all. OUT, BIAS: see epilogue.py."""

    SA_STEP: int
    ZA_STEP: int
    SB_STEP: int
    ZB_STEP: int
    A_UNSIGNED: bool
    B_UNSIGNED: bool
    HAS_ZA: bool
    HAS_ZB: bool
    WIDE: bool
    OUT: str
    BIAS: str


class GemmShape(NamedTuple):
    """Sizes, and row strides in elements."""

    M: Any
    N: Any
    K: Any
    a_row: Any
    b_row: Any
    out_row: Any


class ConvShape(NamedTuple):
    """M rows and N columns of the product (of one group), the image, the result, the filters, and how they move."""

    M: Any
    N: Any
    H: Any
    W: Any
    C: Any
    OH: Any
    OW: Any
    KW: Any
    taps: Any
    per_group: Any
    stride_h: Any
    stride_w: Any
    top: Any
    left: Any
    dilation_h: Any
    dilation_w: Any


class Int4Shape(NamedTuple):
    """Sizes, codes per group, and row strides in elements."""

    M: Any
    N: Any
    K: Any
    group: Any
    x_row: Any
    q_row: Any
    out_row: Any
    s_row: Any


class Int4Rules(NamedTuple):
    """Constants. EVEN_K: the tile's depth divides `group`, and `group` divides K. Otherwise `group` is even, or there
    is one group."""

    SIGNED: bool
    HAS_Z: bool
    HAS_BIAS: bool
    EVEN_K: bool


class Spread(NamedTuple):
    """How many elements there are, and which scale each has: see scale_access.py."""

    n: Any
    columns: Any
    axis: Any
    groups: Any


class SpreadRules(NamedTuple):
    """Constants of element-wise kernels. LONG: a row is not shorter than BLOCK, the elements of a program."""

    KIND: int
    GROUP: int
    LONG: bool
    INDEX64: bool
    BLOCK: int


class CodeRange(NamedTuple):
    """divisor: into how many steps a range is divided."""

    qmin: Any
    qmax: Any
    divisor: Any


class CodeRules(NamedTuple):
    SYMMETRIC: bool
    PACKED: bool


class RunBlock(NamedTuple):
    """What a program has: RUNS runs, WIDTH elements of each at a time. UNIFORM: every run is a whole group."""

    INDEX64: bool
    UNIFORM: bool
    RUNS: int
    WIDTH: int


class ColumnBlock(NamedTuple):
    """What a program has: COLUMNS columns, HEIGHT rows of each at a time."""

    INDEX64: bool
    HEIGHT: int
    COLUMNS: int


class FoldBlock(NamedTuple):
    """What a program has: SCALES scales, WIDTH parts of each at a time."""

    INDEX64: bool
    SCALES: int
    WIDTH: int


class SumBlock(NamedTuple):
    """What a program has: SIZE runs, columns or scales; so many rows and pieces at a time."""

    INDEX64: bool
    SIZE: int
    UNROLL: int
    UNROLL_PIECES: int = 1
