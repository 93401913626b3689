"""Element-wise operations on codes: sums and products of two tensors with different scales, and ReLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.onnx_call import MICROSOFT, onnx_call
from benchmarks.peers import ORT, Peers
from benchmarks.shapes import SPLIT, aligned, normal
from benchmarks.timing import Call, Case, Contender, Target, of_lowbit

_SIZES = {"2^20": SPLIT, "2^24": 1 << 24}  # within the caches, and beyond them
# Scale and zero point of a, b and the result: sums of normal numbers use most codes. No scale is a multiple of another.
_INT8 = (("int8", 0.0231, 0), ("int8", 0.0307, 0), ("int8", 0.0413, 0))
_UINT8 = (("uint8", 0.0231, 117), ("uint8", 0.0307, 130), ("uint8", 0.0413, 121))
_COPY = Target("lowbit", "copy", 0.8, "copy")


def cases(peers: Peers) -> Iterator[Case]:
    for size, n in _SIZES.items():
        for kind in (_INT8, _UINT8):
            yield _pair(peers, "add", f"{kind[0][0]} sums, {size}", n, kind)
        yield _pair(peers, "mul", f"int8 products, {size}", n, _INT8)
        yield _relu(peers, f"int8 relu, {size}", n)


def _params(kind: tuple[str, float, int]) -> lb.QuantizationParams:
    dtype, scale, zero = kind
    return lb.QuantizationParams(dtype, scale=np.float32(scale), zero_point=zero)


def _codes(n: int, kind: tuple[str, float, int], turned: int = 0) -> lb.QuantizedTensor:
    x = np.roll(normal(n), turned)
    return lb.quantize(x, params=_params(kind), out=aligned(n, kind[0]))


def _pair(peers: Peers, op: str, name: str, n: int, kinds: tuple[tuple[str, float, int], ...]) -> Case:
    a, b, out_params = _codes(n, kinds[0]), _codes(n, kinds[1], turned=12345), _params(kinds[2])
    ours = lb.qadd if op == "add" else lb.qmul
    out = lb.QuantizedTensor(aligned(n, kinds[2][0]), out_params)
    theirs = aligned(n, kinds[2][0])

    def torch_call(torch: Any) -> Call:
        x, y = (_torch_codes(torch, q, kind) for q, kind in ((a, kinds[0]), (b, kinds[1])))
        run = torch.ops.quantized.add if op == "add" else torch.ops.quantized.mul
        return lambda: run(x, y, kinds[2][1], kinds[2][2])

    def ort_call() -> Call:
        inputs = {"a": a.data, **_ort_params("a", kinds[0]), "b": b.data, **_ort_params("b", kinds[1])}
        inputs |= _ort_params("y", kinds[2])
        node = "QLinearAdd" if op == "add" else "QLinearMul"
        return onnx_call(peers.threads, node, inputs, theirs, domain=MICROSOFT)

    contenders = [
        of_lowbit(lambda: ours(a, b, out_params=out_params, out=out), answer=lambda q: q.data),
        peers.torch(torch_call, answer=lambda q: q.int_repr().numpy()),
        Contender(ORT, ort_call, answer=lambda _: theirs),
    ]
    # Peers multiply by 1 / scale, and round some codes the other way.
    return Case(name, 3 * n, contenders, [_COPY], ours(a, b, out_params=out_params).data, tolerance=1)


def _relu(peers: Peers, name: str, n: int) -> Case:
    kind = ("int8", 0.0231, 5)
    a = _codes(n, kind)
    out = lb.QuantizedTensor(aligned(n, np.int8), a.params)

    def torch_call(torch: Any) -> Call:
        x = _torch_codes(torch, a, kind)
        return lambda: torch.relu(x)

    contenders = [
        of_lowbit(lambda: lb.qrelu(a, out=out), answer=lambda q: q.data),
        peers.torch(torch_call, answer=lambda q: q.int_repr().numpy()),
    ]
    return Case(name, 2 * n, contenders, [_COPY], np.maximum(a.data, np.int8(kind[2])))


def _torch_codes(torch: Any, q: lb.QuantizedTensor, kind: tuple[str, float, int]) -> Any:
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(q.data), kind[1], kind[2])


def _ort_params(name: str, kind: tuple[str, float, int]) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}_scale": np.array(kind[1], np.float32), f"{name}_zero": np.array(kind[2], kind[0])}
