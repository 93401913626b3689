"""Triton under two names, `jit` and `tl`, so that the one place that mypy cannot see through is here.

Files of kernel bodies start with `# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False`: arguments of a
kernel are Triton's to type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

__all__ = ["jit", "tl"]

jit: Callable[[Callable[..., Any]], Any] = triton.jit
