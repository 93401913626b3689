"""Arguments of kernels that belong together. Triton passes a tuple as its elements; rules and blocks are constants."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

# Pointers: scales and zero points of a and b, and the sums of b's centred codes by column.
Scales = namedtuple("Scales", "sa za sb zb column_sums")

# The bias (a pointer), scale, zero point and code range of the result, and the bounds of float results.
Epilogue = namedtuple("Epilogue", "bias sy zy lo hi floor ceiling")

# Sizes, and row strides in elements.
GemmShape = namedtuple("GemmShape", "M N K a_row b_row out_row")

# Sizes, codes per group, and row strides in elements.
Int4Shape = namedtuple("Int4Shape", "M N K group x_row q_row out_row s_row")

# M rows and N columns of the product (of one group), the image, the result, the filters, and how they move.
ConvShape = namedtuple(
    "ConvShape", "M N H W C OH OW KW taps per_group stride_h stride_w top left dilation_h dilation_w"
)

# How many elements there are, and which scale each has: see scale_access.py.
Spread = namedtuple("Spread", "n columns axis groups")


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


class Int4Rules(NamedTuple):
    """Constants. EVEN_K: the tile's depth divides `group`, and `group` divides K. Otherwise `group` is even, or there
    is one group."""

    SIGNED: bool
    HAS_Z: bool
    HAS_BIAS: bool
    EVEN_K: bool


class SpreadRules(NamedTuple):
    """Constants of element-wise kernels. LONG: a row is not shorter than BLOCK, the elements of a program."""

    KIND: int
    GROUP: int
    LONG: bool
    INDEX64: bool
    BLOCK: int


class CodeRules(NamedTuple):
    SYMMETRIC: bool
    PACKED: bool


class Block(NamedTuple):
    """What a program has: COUNT runs, columns or scales, and LENGTH elements, rows or parts of each at a time.
    UNIFORM: every run is a whole group."""

    INDEX64: bool
    COUNT: int
    LENGTH: int
    UNIFORM: bool = False


class SumBlock(NamedTuple):
    """What a program has: COUNT runs, columns or scales; and how many rows and pieces it takes at a time."""

    INDEX64: bool
    COUNT: int
    UNROLL: int
    UNROLL_PIECES: int = 1
