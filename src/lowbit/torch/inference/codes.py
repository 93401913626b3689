"""The codes of a weight by a recipe, and what a report says of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import LayerInputs, method_for, needs_of, predicted_db, quantize_weight
from lowbit.numerics.metrics import error_report
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fitting import Products, fit_products

_FITTED = {2: "pairs", 4: "fours"}
_ROUNDING = ("rtn", "mse", "hqq")  # what steps that fit 16 bits may replace: the others round by the inputs


class Codes(NamedTuple):
    """A quantized weight and the cells of its row in a report."""

    q: QuantizedTensor
    how: str
    method: str
    sqnr_db: float
    predicted_db: float | None
    seconds: float
    note: str

    @property
    def cells(self) -> dict[str, Any]:
        """Fields of a WeightRow."""
        return {name: getattr(self, name) for name in ("how", "method", "sqnr_db", "predicted_db", "seconds")}


def codes_of(
    floats: Any,
    recipe: WeightRecipe,
    name: str,
    inputs: LayerInputs | None,
    *,
    products: Products = 1,
    missing: str = "",
) -> Codes:
    """Quantize a weight [outputs, ...]. Without statistics of its inputs, a method that uses them becomes "mse".

    inputs: statistics of the rows it multiplies. products: scale int8 weights so that sums of this many products fit
    16 bits. missing: why there are no inputs, for the note.

    >>> w = np.eye(4, 32, dtype=np.float32)
    >>> made = codes_of(w, WeightRecipe("int4", method="gptq"), "w", None, missing="no data")
    >>> made.method, made.note
    ('mse', 'no data: mse')
    """
    note = ""
    if inputs is None and needs_of(recipe):
        recipe = recipe if recipe.method == "auto" else replace(recipe, method="mse")
        note = missing and f"{missing}: mse"
    started = time.perf_counter()
    method = method_for(recipe, inputs, name=name)
    # Zero points of 0 and -1 would cost more time and memory than they gain.
    q = quantize_weight(floats, recipe, axis=0, name=name, inputs=inputs, either_sign=False)
    how = str(recipe)
    if products > 1 and method in _ROUNDING and is_int8_rows(q):
        q = fit_products(floats, q, products)
        how += f", {_FITTED[products]} fit 16 bits"
    seconds = time.perf_counter() - started
    predicted = None if inputs is None else predicted_db(floats, q, inputs)
    return Codes(q, how, method, error_report(floats, np.asarray(q.dequantize())).sqnr_db, predicted, seconds, note)


def is_int8_rows(q: QuantizedTensor) -> bool:
    """Whether these are symmetric int8 codes with a scale per row."""
    return q.params.axis == 0 and q.params.is_symmetric and q.dtype.name == "int8"
