"""torch's fused encoder layers, which multiply with weights of the modules inside them without calling those."""

from __future__ import annotations

from lowbit.torch.inference.layers import QuantizedModule
from torch import nn

__all__ = ["leave_fast_paths", "readers"]


def readers(module: nn.Module) -> str:
    """How a module multiplies with weights of modules inside it without calling them; empty where it does not, or
    where `leave_fast_paths` makes it call them."""
    called = type(module).__name__
    if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
        # With a padding mask it gives zeros for padded positions, which layers that are called do not.
        return f"{called} reads its weight without calling it, unless its use_nested_tensor is set to False"
    if isinstance(module, nn.MultiheadAttention) or (
        isinstance(module, nn.TransformerEncoderLayer) and type(module) is not nn.TransformerEncoderLayer
    ):
        return f"{called} reads its weight without calling it"
    return ""


def leave_fast_paths(model: nn.Module) -> None:
    """Makes encoder layers call their quantized layers: the fused kernel is for ReLU and GELU, and told of neither."""
    for module in model.modules():
        if type(module) is nn.TransformerEncoderLayer and any(
            isinstance(child, QuantizedModule) for child in module.children()
        ):
            module.activation_relu_or_gelu = 0
