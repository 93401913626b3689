"""The tile of a matrix product, by its shape and the GPU: one table, with the reason for each row.

No row has been measured on a GPU. The rows follow from the code that the compiler emits and the size of shared memory.
"""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """backend: "cuda", "hip", or "reference" for the interpreter. capability: 75, 80 ... for NVIDIA, 0 otherwise."""

    backend: str
    capability: int

    @property
    def has_int8_dot(self) -> bool:
        """Whether Triton reaches a matrix unit with int8; on Turing it does not, though the hardware has one."""
        return self.backend != "cuda" or self.capability >= 80


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def tiles(self, m: int, n: int) -> int:
        """How many cover m rows and n columns."""
        return -(-m // self.rows) * -(-n // self.columns)


DP4A, DP4A_SMALL, DEPTHWISE = Tile(64, 64, 0, 4, 2), Tile(16, 64, 0, 4, 2), Tile(32, 64, 0, 4, 2)

_SMALL = Tile(16, 64, 128, 4, 3)  # few rows: the least a matrix unit takes; deep, since b is read once
_MIDDLE = Tile(64, 64, 128, 4, 3)  # the least of wgmma and tcgen05
_LARGE = Tile(128, 128, 128, 8, 3)  # 96 KiB of 99 on sm_89 and sm_120; depth 128 takes half of the repacking on sm_8x
_AMD_SMALL = Tile(16, 64, 128, 4, 2)
_AMD_MIDDLE = Tile(64, 64, 64, 4, 2)
_AMD_LARGE = Tile(128, 128, 64, 8, 2)  # two stages keep one buffer in the 64 KiB of LDS


def int8_tile(m: int, n: int, k: int, gpu: Gpu) -> Tile:
    """For int8 products on matrix units.

    >>> int8_tile(7, 4096, 4096, Gpu("cuda", 80)).rows, int8_tile(4096, 4096, 4096, Gpu("cuda", 80)).rows
    (16, 128)
    """
    small, middle, large = (_AMD_SMALL, _AMD_MIDDLE, _AMD_LARGE) if gpu.backend == "hip" else (_SMALL, _MIDDLE, _LARGE)
    chosen = small if m <= 16 else middle if m <= 128 or n <= 64 else large
    if gpu.backend == "hip" and k % 16:  # bytes are loaded one by one: a deeper block would spill on gfx1100
        chosen = chosen._replace(depth=32)
    # A short k is not worth a block of mostly zeros; 32 is the least that an int8 instruction takes.
    return chosen._replace(depth=min(chosen.depth, max(32, 1 << (k - 1).bit_length())))


def int4_tile(m: int, n: int, group: int, gpu: Gpu) -> Tile:
    """For floats times int4: the depth stays within a group, at most 64.

    >>> int4_tile(1, 4096, 128, Gpu("cuda", 80))
    Tile(rows=16, columns=64, depth=64, warps=4, stages=3)
    """
    rows, amd = 16 if m <= 16 else 64, gpu.backend == "hip"
    most = 32 if amd and rows == 16 else 64  # on gfx1100 four warps would spill with 64
    depth = most
    while depth > 16 and group % depth:
        depth //= 2
    if group % depth:  # no power of two fits: one block where it can be, and masks
        depth = min(most, max(16, 1 << (group - 1).bit_length()))
    return Tile(rows, 64 if rows == 16 else 128, depth, 8 if amd and rows == 64 else 4, 2 if amd else 3)
