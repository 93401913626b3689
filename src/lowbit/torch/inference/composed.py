"""Modules made of several quantized products, which a state_dict holds as modules of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import quantize_weight
from lowbit.numerics.errors import FormatError, Unsupported
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.torch.inference.layers import QuantizedLinear
from lowbit.torch.inference.state_dict import (
    DESCRIPTION,
    SavedModule,
    description_tensor,
    format_error,
    layer_from_tensors,
    read_description,
)
from torch import Tensor, nn

Quantize = Callable[[Any, str], QuantizedTensor]  # of a float matrix, with its name


class Matrix(NamedTuple):
    """One product of a float module."""

    name: str  # of the weight, in reports
    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None  # that is added to the product
    stored: tuple[Tensor, ...]  # what the module holds for it: the weight, and a bias if any


class ComposedModule(SavedModule):
    """A float module whose matrices became QuantizedLinear modules inside it."""

    tensor_names = (DESCRIPTION,)
    kind: ClassVar[str]  # in a state_dict
    of_float: ClassVar[type[nn.Module]]
    fields: ClassVar[tuple[str, ...]]  # arguments that the float module has as attributes, too

    def __init__(self, products: Mapping[str, QuantizedLinear], **fields: Any) -> None:
        super().__init__()
        for name in self.fields:
            setattr(self, name, fields[name])
        for name, product in products.items():
            self.add_module(name, product)

    @classmethod
    def from_float(cls, module: Any, quantize: Quantize | None = None, **options: Any) -> Any:
        """The same module with quantized weights. quantize: gives the codes of a matrix [outputs, inputs], by default
        int8 with a scale per row. options: activation_dtype, as of lowbit.QuantizedLinear."""
        quantize = quantize or (lambda w, name: quantize_weight(w, WeightRecipe(), name=name))
        products = {}
        for name, matrix in cls.matrices(module).items():
            codes = quantize(matrix.weight.detach().float().contiguous().numpy(), matrix.name)
            added = None if matrix.bias is None else matrix.bias.detach().float().contiguous().numpy()
            products[name] = QuantizedLinear(codes, added, **options)
        return cls._like(module, products)

    @classmethod
    def matrices(cls, module: Any) -> dict[str, Matrix]:
        """The products of a float module, by the names that they get."""
        raise NotImplementedError

    @classmethod
    def _like(cls, module: Any, products: Mapping[str, QuantizedLinear]) -> Any:
        return cls(products, **{name: getattr(module, name) for name in cls.fields}).eval()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], old: Any, name: str) -> Any:
        """The module that a state_dict holds. old: the one in its place in the model."""
        text = read_description(tensors, name)
        said = {key: text.get(key) for key in cls.fields}
        if not isinstance(old, (cls, cls.of_float)) or said != {key: getattr(old, key) for key in cls.fields}:
            raise FormatError(f"{name}: {cls.kind} of {said}; the model has {old} there")
        try:
            held = old.products if isinstance(old, ComposedModule) else cls.matrices(old)
        except Unsupported as error:
            raise format_error(name, error) from None
        shapes = {key: tuple(product.weight.shape) for key, product in held.items()}
        unknown = next((key for key in tensors if "." in key and key.split(".")[0] not in shapes), None)
        if unknown is not None:
            raise FormatError(f"{name}.{unknown}: a product that {old} does not have")
        made = {}
        for key, shape in shapes.items():
            own = {n.removeprefix(f"{key}."): t for n, t in tensors.items() if n.startswith(f"{key}.")}
            layer = layer_from_tensors(own, f"{name}.{key}")
            if tuple(layer.weight.shape) != shape:
                raise FormatError(f"{name}.{key}: shape {layer.weight.shape}; expected {shape}")
            made[key] = QuantizedLinear.holding(layer)
        return cls._like(old, made)

    @property
    def products(self) -> dict[str, QuantizedLinear]:
        """The products, by name."""
        return {name: m for name, m in self.named_children() if isinstance(m, QuantizedLinear)}

    @property
    def nbytes(self) -> int:
        """Bytes of all products."""
        return sum(m.nbytes for m in self.products.values())

    def _saved(self) -> dict[str, Tensor]:
        text = {"kind": self.kind, **{name: getattr(self, name) for name in self.fields}}
        return {DESCRIPTION: description_tensor(text)}

    def _restore(self, tensors: Mapping[str, Any], prefix: str) -> None:
        name = prefix.rstrip(".") or self.kind
        if read_description(tensors, name) != read_description(self._saved(), name):
            raise FormatError(f"{name}.{DESCRIPTION}: expected {self.kind} with {self.extra_repr()}")

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        """Its products load their own tensors."""
        own = {key: value for key, value in state_dict.items() if "." not in key.removeprefix(prefix)}
        super()._load_from_state_dict(own, prefix, metadata, strict, missing, unexpected, errors)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.fields)
