"""QuantizedEmbedding: gathers rows of codes and dequantizes only those, with operators of torch."""

from __future__ import annotations

from typing import Any

import numpy as np

import torch
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.numerics.packing import pack_rows
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import quantize
from lowbit.torch.inference.state_dict import (
    DESCRIPTION,
    SavedModule,
    format_error,
    read_description,
    weight_from_tensors,
    weight_tensors,
)
from torch import Tensor, nn


class QuantizedEmbedding(SavedModule):
    """nn.Embedding with a quantized table: one scale per tensor, per row, or per group of a row.

    A row is (code - zero point) * scale in float32, rounded to `dtype`. Codes of 4 and 2 bits stay packed, and each
    row starts on a byte.

    >>> table = nn.Embedding(10, 6)
    >>> quantized = QuantizedEmbedding.from_float(table)
    >>> quantized(torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 6])
    >>> bool((quantized(torch.tensor(3)) - table(torch.tensor(3))).abs().max() < 0.02)
    True
    """

    codes: Tensor  # [rows, bytes of a row]
    scale: Tensor  # [rows or 1, blocks or 1]
    zero_point: Tensor | None  # the same shape; None where all are 0

    def __init__(self, weight: QuantizedTensor, padding_idx: int | None = None, dtype: Any = torch.float32) -> None:
        super().__init__()
        if not dtype.is_floating_point or dtype.itemsize > 4:
            raise InvalidProblem(f"dtype: {dtype}; expected float32, float16 or bfloat16")
        self.padding_idx, self.dtype = padding_idx, dtype
        self._hold(weight)

    @classmethod
    def from_float(
        cls, module: nn.Embedding, dtype: str = "int8", scheme: str = "symmetric", group_size: int | None = None
    ) -> QuantizedEmbedding:
        """Quantize the table of an nn.Embedding."""
        axis = 0 if group_size is None else 1
        weight = quantize(module.weight.detach(), dtype, scheme=scheme, axis=axis, group_size=group_size, name="weight")
        return cls(weight, module.padding_idx, module.weight.dtype)

    def _hold(self, weight: QuantizedTensor) -> None:
        p = weight.params
        if weight.ndim != 2:
            raise InvalidProblem(f"weight: shape {weight.shape}; expected (rows, width)")
        by_rows, by_blocks = p.axis in (None, 0, -2) and p.group_size is None, p.axis in (1, -1) and p.group_size
        if p.dtype.is_mixed or p.dtype.is_binary or p.is_logarithmic or p.dtype.bits > 8 or not (by_rows or by_blocks):
            raise Unsupported(f"weight: {p}; expected linear codes of 2, 4 or 8 bits, scales by rows or blocks of them")
        self.num_embeddings, self.embedding_dim = weight.shape
        self.params = p
        codes = weight.unpack()
        if p.dtype.is_packed:
            codes = pack_rows(codes.view(np.uint8), p.dtype.bits, 8 // p.dtype.bits)
        scale, zero = (np.array(v, t) for v, t in ((p.scale, np.float32), (p.zero_point, np.int32)))
        rows = scale.reshape(scale.shape if by_blocks else (-1, 1)).shape
        self.register_buffer("codes", torch.from_numpy(np.ascontiguousarray(codes)), persistent=False)
        self.register_buffer("scale", torch.from_numpy(scale.reshape(rows)), persistent=False)
        zeros = torch.from_numpy(np.broadcast_to(zero, scale.shape).reshape(rows).copy()) if zero.any() else None
        self.register_buffer("zero_point", zeros, persistent=False)

    @property
    def quantized_weight(self) -> QuantizedTensor:
        """The table as a QuantizedTensor."""
        codes = _unpacked(self.codes, self.params, self.embedding_dim)
        return QuantizedTensor.from_codes(codes.numpy(), self.params)

    @property
    def weight(self) -> Tensor:
        """The dequantized table, computed at each access."""
        return self.forward(torch.arange(self.num_embeddings))

    @property
    def nbytes(self) -> int:
        return sum(b.numel() * b.itemsize for b in self.buffers(recurse=False))

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(-1)
        numbers = _unpacked(self.codes.index_select(0, flat), self.params, self.embedding_dim).to(torch.float32)
        scale, zero, block = self.scale, self.zero_point, self.params.group_size
        if scale.shape[0] > 1:
            scale = scale.index_select(0, flat)
            zero = None if zero is None else zero.index_select(0, flat)
        if block is not None:  # one scale per element
            scale = scale.repeat_interleave(block, 1)[:, : self.embedding_dim]
            zero = None if zero is None else zero.repeat_interleave(block, 1)[:, : self.embedding_dim]
        if zero is not None:
            numbers -= zero
        numbers *= scale
        return numbers.to(self.dtype).reshape(*input.shape, self.embedding_dim)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if fn(torch.empty(0)).device.type != "cpu":
            raise Unsupported("QuantizedEmbedding: moved off the CPU; lowbit's modules run in CPU memory")
        dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        if dtype.is_floating_point and dtype.itemsize <= 4:
            self.dtype = dtype  # of the result; scales stay float32
        return self

    def _saved(self) -> dict[str, Tensor]:
        text = {"kind": "embedding", "padding_idx": self.padding_idx, "dtype": str(self.dtype).removeprefix("torch.")}
        return weight_tensors(self.quantized_weight, text)

    @classmethod
    def from_tensors(cls, tensors: Any, name: str) -> QuantizedEmbedding:
        """The module that a state_dict holds."""
        text = read_description(tensors, name)
        dtype = getattr(torch, str(text.get("dtype")), None)
        if text.get("kind") != "embedding" or dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise FormatError(
                f"{name}.{DESCRIPTION}: {text.get('kind')!r} of {text.get('dtype')}; expected an embedding"
            )
        try:
            return cls(weight_from_tensors(tensors, text, name), text.get("padding_idx"), dtype)
        except (ValueError, NotImplementedError) as error:
            raise format_error(name, error) from None

    def _restore(self, tensors: Any, prefix: str) -> None:
        found = self.from_tensors(tensors, prefix.rstrip(".") or "embedding").quantized_weight
        expected = (self.num_embeddings, self.embedding_dim)
        if found.shape != expected:
            raise FormatError(f"{prefix}weight: {found.shape}; expected {expected}")
        self._hold(found)

    def extra_repr(self) -> str:
        blocks = "" if self.params.group_size is None else f", group_size={self.params.group_size}"
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.params.dtype}{blocks}"


def _unpacked(rows: Tensor, p: QuantizationParams, width: int) -> Tensor:
    """Codes, one per element; the first of a byte is in the low bits."""
    bits = p.dtype.bits
    if bits == 8:
        return rows
    parts = [(rows >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    codes = torch.stack(parts, -1).flatten(1)[:, :width]
    if not p.dtype.is_signed:
        return codes
    half = 1 << (bits - 1)
    return (codes ^ half).to(torch.int8) - half  # two's complement
