"""The only importer of the native module. Everything else reaches it as `core`."""

from __future__ import annotations

from lowbit import _core as core

__all__ = ["core"]
