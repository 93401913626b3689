"""Operations tied to one kind of instruction: every operand runs just that, or is refused with what is missing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import lowbit as lb
from every_kind import kinds, tensor
from lowbit.ops import conv, matmul
from lowbit.ops.matmul import path_of
from lowbit.system.specialized import Dp4aQuantizationOps, TensorCoreQuantizationOps, VnniQuantizationOps

pytestmark = pytest.mark.filterwarnings("ignore:x. has negative values")  # which symmetric unsigned codes clip

MATRICES, IMAGES = kinds(2), kinds(4)
PLAIN = "int8 symmetric axis=None block=None"


class Vnni(VnniQuantizationOps):
    """As if the instruction were here, on any machine."""

    def why_not(self) -> str:
        return ""


@pytest.mark.parametrize("name", MATRICES)
def test_vnni_multiplies_by_integer_kernels_alone(name: str) -> None:
    for left, right in ((name, name), (name, PLAIN), (PLAIN, name)):
        a, b = tensor(1, MATRICES[left], 2), tensor(2, MATRICES[right], 2)
        taken = path_of(a.params, b.params)
        served = all(q.dtype.name in Vnni.formats for q in (a, b)) and taken in ("integer", "groups", "blocks")
        if served:
            np.testing.assert_array_equal(Vnni().qmatmul(a, b), lb.qmatmul(a, b))
        else:
            with pytest.raises(lb.Unsupported, match="VNNI"):
                Vnni().qmatmul(a, b)


def test_vnni_sees_what_is_transposed() -> None:
    rng = np.random.default_rng(0)
    a = lb.quantize(rng.standard_normal((4, 4)).astype(np.float32), axis=0)
    np.testing.assert_array_equal(Vnni().qmatmul(a, a, transpose_b=True), lb.qmatmul(a, a, transpose_b=True))
    for options in ({}, {"transpose_a": True}, {"transpose_a": True, "transpose_b": True}):
        with pytest.raises(lb.Unsupported, match="path 'general'"):
            Vnni().qmatmul(a, a, **options)
    packed = lb.prepack(a, transpose=True)
    np.testing.assert_array_equal(Vnni().qmatmul(a, packed), lb.qmatmul(a, packed))


@pytest.mark.parametrize("name", IMAGES)
def test_vnni_convolves_by_integer_kernels_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for left, right in ((name, name), (name, PLAIN), (PLAIN, name)):
        x, w = tensor(3, IMAGES[left], 4), tensor(4, IMAGES[right], 4)
        by_output = w.params.axis is None or (w.params.axis == 0 and w.params.group_size is None)
        linear = not (x.params.is_logarithmic or w.params.is_logarithmic)
        formats = all(q.dtype.name in Vnni.formats for q in (x, w))
        if formats and linear and x.params.axis is None and by_output:
            np.testing.assert_array_equal(Vnni().qconv2d(x, w, padding=1), lb.qconv2d(x, w, padding=1))
        else:
            with pytest.raises(lb.Unsupported, match="VNNI"):
                Vnni().qconv2d(x, w, padding=1)


def test_vnni_leaves_depthwise_convolutions_to_their_own_kernels() -> None:
    x, w = tensor(5, IMAGES[PLAIN], 4), lb.quantize(np.ones((3, 1, 2, 2), np.float32))
    for kernel in (w, lb.prepack_conv2d(w, 3)):
        with pytest.raises(lb.Unsupported, match="depthwise"):
            Vnni().qconv2d(x, kernel, groups=3)


@pytest.mark.parametrize("ops", [Dp4aQuantizationOps, TensorCoreQuantizationOps])
def test_gpu_instructions_never_run_on_the_cpu(ops: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU every operand is refused, whatever its kind."""
    for module, function in ((matmul, "qmatmul"), (conv, "qconv2d")):
        monkeypatch.setattr(module, function, lambda *_, **__: pytest.fail("it ran on the CPU"))
    one = ops()
    assert not one.is_available
    for name in itertools.chain(MATRICES):
        q = tensor(6, MATRICES[name], 2)
        with pytest.raises(lb.Unsupported, match=one.instruction):
            one.qmatmul(q, q)
