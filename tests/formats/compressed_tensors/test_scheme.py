"""Layouts of compressed-tensors: against the documented bits in NumPy, and against the package where it is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit.formats.compressed_tensors.scheme import SCALES, Scheme, decompressed, packed_rows, unpacked_rows, widened
from lowbit.models import ActivationRecipe, Recipe, WeightRecipe
from lowbit.models.weights import quantize_weight
from lowbit.numerics.errors import Unsupported

KINDS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
TOKENS = ActivationRecipe("int8", "symmetric", dynamic=True, granularity="token")
SCHEMES = {
    "int4-groups": Scheme(WeightRecipe("int4", group_size=32)),
    "int4-groups-activations": Scheme(WeightRecipe("int4", group_size=32), TOKENS),
    "int4-channels": Scheme(WeightRecipe("int4")),
    "uint4-groups": Scheme(WeightRecipe("uint4", "asymmetric", group_size=32)),
    "int4-asymmetric": Scheme(WeightRecipe("int4", "asymmetric", group_size=32)),
    "uint4-channels": Scheme(WeightRecipe("uint4", "asymmetric")),
    "int2-groups": Scheme(WeightRecipe("int2", group_size=16)),
    "int8-channels": Scheme(WeightRecipe("int8")),
    "int8-groups": Scheme(WeightRecipe("int8", group_size=32)),
    "uint8-channels": Scheme(WeightRecipe("uint8", "asymmetric")),
    "int8-channels-activations": Scheme(WeightRecipe("int8"), TOKENS),
    "uint8-channels-activations": Scheme(WeightRecipe("uint8", "asymmetric"), TOKENS),
    "int8-tensor": Scheme(WeightRecipe("int8", granularity="tensor")),
    "uint4-tensor": Scheme(WeightRecipe("uint4", "asymmetric", granularity="tensor")),
    "int4-mse": Scheme(WeightRecipe("int4", group_size=32, method="mse")),
}


def weight(shape: tuple[int, int] = (24, 96), kind: str = "F32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.01, 0.05, shape).astype(KINDS[kind])


def compressed(w: np.ndarray, scheme: Scheme, kind: str) -> tuple[dict[str, np.ndarray], lb.QuantizedTensor]:
    """The stored tensors by their local names, checked against the sizes that were planned."""
    q = quantize_weight(w, scheme.weights, scale_dtype=scheme.scale_dtype(kind))
    rows = scheme.rows(q, kind)
    codes = "weight" if scheme.format == "int-quantized" else "weight_packed"
    made = {codes: rows.codes, "weight_scale": rows.scale}
    if rows.zero_point is not None:
        made["weight_zero_point"] = scheme.zero_points(rows.zero_point)
    planned = {s.name.removeprefix("m."): s for s in scheme.stored("m", w.shape, kind)}
    for name, array in made.items():
        assert (array.shape, array.nbytes) == (planned[name].shape, planned[name].nbytes), name
    assert set(planned) - set(made) <= {"weight_shape"}
    return made, q


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", [1, 7, 8, 16, 31, 32, 33, 96])
def test_words_hold_dense_codes_low_bits_first(bits, columns):
    w = weight((5, columns))
    q = lb.quantize(w, f"int{bits}", axis=0)
    words = packed_rows(q)
    assert words.dtype == np.int32
    assert words.shape == (5, -(-columns * bits // 32))
    for row, codes in zip(words.view(np.uint32), q.unpack().astype(int), strict=True):
        number = sum(int(word) << (32 * i) for i, word in enumerate(row))
        expected = sum((int(c) + (1 << (bits - 1))) << (bits * i) for i, c in enumerate(codes))
        assert number == expected
    np.testing.assert_array_equal(unpacked_rows(words, bits, columns).astype(int) - (1 << (bits - 1)), q.unpack())


def test_zero_points_are_packed_along_the_rows():
    scheme = SCHEMES["uint4-groups"]
    zero = np.arange(30, dtype=np.uint8).reshape(10, 3) % 16
    words = scheme.zero_points(zero).view(np.uint32)
    assert words.shape == (2, 3)
    for column in range(3):
        number = int(words[0, column]) | int(words[1, column]) << 32
        assert number == sum(int(z) << (4 * i) for i, z in enumerate(zero[:, column]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEMES)
def test_stored_numbers_are_those_of_the_codes_to_the_bit(name, kind):
    scheme = SCHEMES[name]
    w = weight(kind=kind)
    tensors, q = compressed(w, scheme, kind)
    ours = q.dequantize().astype(KINDS[kind]).astype(np.float32)
    np.testing.assert_array_equal(decompressed(tensors, scheme, w.shape, kind), ours)
    # The stored scale is the scale: nothing was rounded after the codes were made.
    stored = widened(tensors["weight_scale"], SCALES[kind])
    np.testing.assert_array_equal(np.abs(stored).reshape(-1), q.params.scale.reshape(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_zero_points_of_symmetric_groups_are_signs_of_scales(kind):
    tensors, q = compressed(weight(kind=kind), SCHEMES["int4-groups"], kind)
    negative = widened(tensors["weight_scale"], SCALES[kind]) < 0
    assert negative.any()
    assert not negative.all()
    np.testing.assert_array_equal(q.params.zero_point, -negative.astype(int))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["int4-groups", "uint4-groups", "int8-channels"])
def test_codes_are_the_nearest_to_the_stored_scale(name, kind):
    w = weight(kind=kind)
    _, q = compressed(w, SCHEMES[name], kind)
    p = q.params
    scale, zero = np.asarray(p.scale, np.float32).reshape(24, -1), p.zero_point.reshape(24, -1)
    wide = 96 // scale.shape[1]
    expected = np.rint(w.astype(np.float32) / scale.repeat(wide, 1)) + zero.repeat(wide, 1)
    np.testing.assert_array_equal(q.unpack(), np.clip(expected, p.qmin, p.qmax))


def test_rounding_the_scale_costs_little():
    w = weight((64, 512), "BF16")
    exact = lb.quantize(w, "int4", axis=1, group_size=128).error(w.astype(np.float32)).sqnr_db
    _, q = compressed(w, Scheme(WeightRecipe("int4", group_size=128)), "BF16")
    assert q.error(w.astype(np.float32)).sqnr_db > exact - 0.1


@pytest.mark.parametrize("tiny", [6e-8, 3e-7, 1e-6, 2e-5])
@pytest.mark.parametrize("name", ["int8-channels", "int4-groups", "uint4-groups"])
def test_tiny_float16_weights_are_not_clipped(name, tiny):
    """Among float16's smallest numbers the nearest scale may be far too small, or 0."""
    w = (np.random.default_rng(0).uniform(-1, 1, (8, 96)) * tiny).astype(np.float16)
    scheme = Scheme(replace(SCHEMES[name].weights, method="rtn"))
    tensors, _ = compressed(w, scheme, "F16")
    scale = np.abs(widened(tensors["weight_scale"], "F16"))
    assert (scale > 0).all()
    lost = np.abs(decompressed(tensors, scheme, w.shape, "F16") - w.astype(np.float32))
    most = 1.6 if name == "int4-groups" else 0.76  # int4 clips the greatest of 8 steps to 7
    assert (lost <= scale.repeat(96 // scale.shape[1], 1) * most).all()


def test_all_zero_rows():
    w = np.zeros((8, 96), np.float32)
    for scheme in SCHEMES.values():
        tensors, _ = compressed(w, scheme, "F32")
        assert not decompressed(tensors, scheme, w.shape, "F32").any()


def test_presets_choose_their_format():
    found = {}
    for name in ("W8A8", "W8A16", "W4A16", "W4A16_ASYM", "W4A8"):
        recipe = Recipe.of(name)
        scheme = Scheme(recipe.weights, recipe.activations)
        config = scheme.config(["Linear"])
        found[name] = (scheme.format, config["weights"]["num_bits"], config["input_activations"] is not None)
    assert found == {
        "W8A8": ("int-quantized", 8, True),
        "W8A16": ("pack-quantized", 8, False),
        "W4A16": ("pack-quantized", 4, False),
        "W4A16_ASYM": ("pack-quantized", 4, False),
        "W4A8": ("pack-quantized", 4, True),
    }


def test_what_cannot_be_stored_is_said():
    with pytest.raises(Unsupported, match="static"):
        Scheme(WeightRecipe(), ActivationRecipe())
    with pytest.raises(Unsupported, match="int16"):
        Scheme(WeightRecipe(), ActivationRecipe("int16", "symmetric", dynamic=True))


# ---- the package ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEMES)
def test_the_package_decompresses_to_our_numbers(name, kind):
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    scheme = SCHEMES[name]
    w = weight(kind=kind, shape=(24, 96))
    tensors, q = compressed(w, scheme, kind)
    state: dict[str, Any] = {
        n: as_torch(torch, a, SCALES[kind] if n == "weight_scale" else "") for n, a in tensors.items()
    }
    # Loaders hold scales in the dtype of the model.
    state["weight_scale"] = state["weight_scale"].to(as_torch(torch, w, kind).dtype)
    if scheme.format == "pack-quantized":
        state["weight_shape"] = torch.tensor(w.shape)
    theirs = QuantizationScheme.model_validate(scheme.config(["Linear"]))
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    assert set(compressor.compression_param_names(theirs)) == set(state)
    found = compressor.decompress(state, theirs)["weight"]
    ours = q.dequantize().astype(KINDS[kind]).astype(np.float32)
    np.testing.assert_array_equal(found.float().numpy(), ours)


def as_torch(torch: Any, array: np.ndarray, kind: str) -> Any:
    if kind == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
