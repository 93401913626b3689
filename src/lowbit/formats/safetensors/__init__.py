"""Checkpoints in safetensors files: read with every claim checked, written as they are computed."""

from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.formats.safetensors.writer import ShardWriter, Stored

__all__ = ["Checkpoint", "ShardWriter", "Stored"]
