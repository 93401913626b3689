"""torch's fused encoder layers, whose kernels read the weights of inner modules without calling them."""

from __future__ import annotations

from lowbit.torch.inference.layers import QuantizedModule
from torch import nn


def fused_reader(module: nn.Module) -> str:
    """Why the inner modules of `module` must stay float; empty where they are called, or `unfuse` makes them so."""
    called = type(module).__name__
    if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
        # With a padding mask it gives zeros for padded positions, which layers that are called do not.
        return f"{called} reads its weight without calling it, unless its use_nested_tensor is set to False"
    if isinstance(module, nn.MultiheadAttention) or (
        isinstance(module, nn.TransformerEncoderLayer) and type(module) is not nn.TransformerEncoderLayer
    ):
        return f"{called} reads its weight without calling it"
    return ""


def unfuse(model: nn.Module) -> None:
    """Make encoder layers call their quantized layers: the fused kernel runs only for ReLU and GELU."""
    for module in model.modules():
        if type(module) is nn.TransformerEncoderLayer and any(
            isinstance(child, QuantizedModule) for child in module.children()
        ):
            module.activation_relu_or_gelu = 0
