"""QuantizedDType: facts by hand, and every way to name one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedDType, UnsupportedDType

FACTS = {
    # name: bits, signed, qmin, qmax, values, sub-byte, per byte, storage
    "int8": (8, True, -128, 127, 256, False, 1, np.int8),
    "uint8": (8, False, 0, 255, 256, False, 1, np.uint8),
    "int16": (16, True, -32768, 32767, 65536, False, 1, np.int16),
    "uint16": (16, False, 0, 65535, 65536, False, 1, np.uint16),
    "int4": (4, True, -8, 7, 16, True, 2, np.uint8),
    "uint4": (4, False, 0, 15, 16, True, 2, np.uint8),
    "int2": (2, True, -2, 1, 4, True, 4, np.uint8),
    "uint2": (2, False, 0, 3, 4, True, 4, np.uint8),
    "binary": (1, False, 0, 1, 2, True, 8, np.uint8),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name: str) -> None:
    d = QuantizedDType.of(name)
    found = (
        d.bits, d.is_signed, d.qmin, d.qmax, d.num_values, d.is_sub_byte, d.values_per_byte, d.storage_dtype.type
    )  # fmt: skip
    assert found == FACTS[name]
    assert d.value_range == (d.qmin, d.qmax)
    assert QuantizedDType.from_json(d.to_json()) == d


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("INT8", "int8"), (" s4 ", "int4"), ("u2", "uint2"), (np.int8, "int8"), (np.dtype("uint16"), "uint16"),
        (ml_dtypes.int4, "int4"), (ml_dtypes.uint4, "uint4"), (ml_dtypes.int2, "int2"), (bool, "binary"),
        (np.bool_, "binary"),
    ],
)  # fmt: skip
def test_names(given: object, name: str) -> None:
    assert QuantizedDType.of(given) is QuantizedDType.of(name)


@pytest.mark.parametrize("given", ["int3", "float32", np.float32, np.int32, object, 7, None])
def test_what_is_no_quantized_type_is_refused_by_name(given: object) -> None:
    with pytest.raises((UnsupportedDType, InvalidProblem), match="dtype"):
        QuantizedDType.of(given)


def test_mixed() -> None:
    d = QuantizedDType.mixed([8, 4, 2, 1, 16])
    assert d.is_mixed
    assert d.bits == 16
    assert d.storage_bytes(10) == 10 + 5 + 3 + 2 + 20
    assert [str(d.channel(i)) for i in range(5)] == ["int8", "int4", "int2", "binary", "int16"]
    assert QuantizedDType.from_json(d.to_json()) == d
    for bad in ([], [3], [8, 0]):
        with pytest.raises(InvalidProblem, match="widths"):
            QuantizedDType.mixed(bad)
    with pytest.raises(InvalidProblem, match="mixed"):
        QuantizedDType.of("mixed")


def test_compatibility() -> None:
    assert QuantizedDType.of("int8").is_compatible("uint4")
    assert not QuantizedDType.of("binary").is_compatible("int8")
    assert QuantizedDType.of("binary").is_compatible("binary")
    assert QuantizedDType.mixed([8, 4]).is_compatible(QuantizedDType.mixed([8, 4]))
    assert not QuantizedDType.mixed([8, 4]).is_compatible(QuantizedDType.mixed([4, 8]))
    assert QuantizedDType.of("int8").can_hold("int4")
    assert not QuantizedDType.of("uint8").can_hold("int4")


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_types_of_numpy_and_torch_are_taken(name: str) -> None:
    torch = pytest.importorskip("torch")
    want = QuantizedDType.of(name)
    x = np.linspace(0, 1, 9, dtype=np.float32)
    for given in (getattr(torch, name), getattr(np, name), np.dtype(name)):
        assert QuantizedDType.of(given) is want
        assert QuantizationParams(given).dtype is want
        for _ in range(2):
            assert lb.quantize(x, given, scheme="linear") == lb.quantize(x, name, scheme="linear")
        p = QuantizationParams(name)
        assert lb.quantize(x, given, params=p).dtype is want
    assert QuantizedDType.of(torch.bool).is_binary
    for other in (torch.float32, torch.int32, torch.complex64):
        with pytest.raises(UnsupportedDType, match=f"dtype: {other} is not a quantized type"):
            QuantizedDType.of(other)


@pytest.mark.parametrize("widths", [[4.7, 8], [True, 8.0], ["8"], [8, 3], [8, None], [np.float64(8)]])
def test_widths_are_whole_numbers_of_bits(widths: list[object]) -> None:
    with pytest.raises(InvalidProblem, match=r"widths\[\d\]: .* bits; expected one of"):
        QuantizedDType.mixed(widths)  # type: ignore[arg-type]
