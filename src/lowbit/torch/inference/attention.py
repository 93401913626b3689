"""QuantizedMultiheadAttention: the projections of nn.MultiheadAttention over quantized weights."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

import torch
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.torch.inference.composed import ComposedModule, Matrix
from lowbit.torch.inference.recurrent import QuantizedGRU, QuantizedLSTM
from torch import Tensor, nn

_PARTS = ("q_proj", "k_proj", "v_proj")


class QuantizedMultiheadAttention(ComposedModule):
    """nn.MultiheadAttention whose projections are QuantizedLinear; scores and sums of values stay float. It computes
    what torch's module does outside of its fused kernel, which reads float weights. A gradient is an error.

    >>> attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(3, 5, 16)
    >>> y, weights = QuantizedMultiheadAttention.from_float(attention)(x, x, x)
    >>> bool((y - attention(x, x, x)[0]).abs().max() < 0.05), weights.shape
    (True, torch.Size([3, 5, 5]))
    """

    kind, of_float = "attention", nn.MultiheadAttention
    fields = ("embed_dim", "num_heads", "kdim", "vdim", "batch_first", "add_zero_attn", "_qkv_same_embed_dim")
    embed_dim: int
    num_heads: int
    batch_first: bool
    add_zero_attn: bool
    in_proj_bias = None  # tells nn.TransformerEncoderLayer that it cannot use its fused kernel

    @classmethod
    def matrices(cls, module: Any) -> dict[str, Matrix]:
        """The projections of queries, keys and values, and that of the result."""
        if module.bias_k is not None:
            raise Unsupported("add_bias_kv: True; expected False")
        weights = [getattr(module, f"{part}_weight") for part in _PARTS]
        if module.in_proj_weight is not None:
            weights = list(module.in_proj_weight.chunk(3))
        biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
        found = [*zip(_PARTS, weights, biases, strict=True), ("out_proj", module.out_proj.weight, module.out_proj.bias)]
        return {
            name: Matrix(f"{name}.weight", weight, bias, (weight,) if bias is None else (weight, bias))
            for name, weight, bias in found
        }

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As nn.MultiheadAttention: (result, weights of each key or None)."""
        if is_causal and attn_mask is None:
            raise InvalidProblem("attn_mask: missing; is_causal says that a mask is causal, and takes none's place")
        batched = query.ndim == 3
        q, k, v = (self._heads(name, x, batched) for name, x in zip(_PARTS, (query, key, value), strict=True))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        hinted = is_causal and key_padding_mask is None and not need_weights
        added = None if hinted else self._mask(key_padding_mask, attn_mask, q)
        if need_weights:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            weights = torch.softmax(scores if added is None else scores + added, dim=-1)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=hinted)
        y = self.products["out_proj"](y.transpose(1, 2).flatten(2))  # [batch, queries, embed_dim]
        if not batched:
            y = y.squeeze(0)
        elif not self.batch_first:
            y = y.transpose(0, 1)
        if not need_weights:
            return y, None
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return y, weights if batched else weights.squeeze(0)

    def _heads(self, name: str, x: Tensor, batched: bool) -> Tensor:
        """A projection as [batch, heads, positions, embed_dim / heads]."""
        if not batched:
            x = x.unsqueeze(0)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        y: Tensor = getattr(self, name)(x)
        return y.reshape(*y.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
        """What is added to the scores: the sum of both masks, or None."""
        if mask is not None:
            mask = _added(mask, q)
            mask = mask.reshape(-1, self.num_heads, *mask.shape[1:]) if mask.ndim == 3 else mask
        if padding is not None:
            padding = _added(padding, q).reshape(len(q), 1, 1, -1)
            mask = padding if mask is None else mask + padding
        return F.pad(mask, (0, 1)) if mask is not None and self.add_zero_attn else mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to scores: -inf where a mask of truth values is True."""
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)


# The modules that become several quantized products.
COMPOSED: dict[type[nn.Module], type[ComposedModule]] = {
    made.of_float: made for made in (QuantizedLSTM, QuantizedGRU, QuantizedMultiheadAttention)
}
