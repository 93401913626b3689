"""The peers of integer compute: products, linear layers, four-bit weights and convolutions.

Weights are packed before the clock starts, in whatever way a peer has for it, and each builds its own copy. torch has
three engines for the same operators; x86 picks one of the other two by the problem. Which of them is the fastest
depends on the CPU and the shape, so all take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.onnx_call import MICROSOFT, onnx_call
from benchmarks.peers import Peers, torch_with
from benchmarks.problems import A_SCALE, A_ZERO, OUT_ZERO, Convolution, Groups, Layer, Product
from benchmarks.shapes import aligned
from benchmarks.timing import Call, Contender
from lowbit import _core

Array = npt.NDArray[Any]

_ENGINE_NAMES = ("fbgemm", "onednn", "x86")
ENGINES = tuple(f"torch {engine}" for engine in _ENGINE_NAMES)
TORCH_F32, TORCH_BF16, NUMPY_F32 = "torch f32", "torch bf16", "NumPy f32"
TORCH_SUMS, ORT_SUMS = "torch._int_mm, to s32", "ORT MatMulInteger, to s32"
ORT_CODES, ORT_DYNAMIC = "ORT QLinearMatMul", "ORT DynamicQuantizeMatMul"
ORT_CONV = ("ORT QLinearConv, NHWC", "ORT QLinearConv, NCHW")
NBITS = ("ORT MatMulNBits, accuracy 4", "ORT MatMulNBits, accuracy 0")
INT4PACK = "torch int4pack, bf16"  # with float32 it is a plain loop


class ComputePeers(Peers):
    """Those of integer compute."""

    # ---- GEMM of codes -----------------------------------------------------------------------------

    def products(self, p: Product) -> list[Contender]:
        """Those that multiply codes: to uint8 and, where the name says so, to int32."""
        out, sums = aligned((p.m, p.n), np.uint8), aligned((p.m, p.n), np.int32)
        zeros = np.zeros(p.n, np.int8)

        def torch_sums(torch: Any) -> Call:
            if not dict(_core.cpu_features()).get("avx512_vnni", True):
                raise NotImplementedError("without VNNI it is a plain loop, a hundred times slower")
            a, w = torch.from_numpy((p.a.astype(np.int16) - A_ZERO).astype(np.int8)), torch.from_numpy(p.w)
            return lambda: torch._int_mm(a, w)  # int8 by int8: there is none for uint8

        def ort_codes() -> Call:
            constants = {
                **{"a_scale": np.float32(A_SCALE), "a_zero": np.uint8(A_ZERO)},
                **{"w": p.w, "w_scale": p.w_scale, "w_zero": zeros},
                **{"y_scale": np.float32(p.out_scale), "y_zero": np.uint8(OUT_ZERO)},
            }
            return onnx_call(self.threads, "QLinearMatMul", {"a": p.a}, out, constants=constants)

        def ort_sums() -> Call:
            constants = {"w": p.w, "a_zero": np.uint8(A_ZERO)}
            return onnx_call(self.threads, "MatMulInteger", {"a": p.a}, sums, constants=constants)

        return [
            *(self._torch_product(p, engine) for engine in _ENGINE_NAMES),
            Contender(ORT_CODES, ort_codes, answer=lambda _: out),
            Contender(ORT_SUMS, ort_sums, answer=lambda _: p.sums_to_codes(sums)),
            self.torch(torch_sums, TORCH_SUMS, answer=lambda y: p.sums_to_codes(y.numpy())),
        ]

    def _torch_product(self, p: Product, engine: str) -> Contender:
        def build(torch: Any) -> Call:
            a = torch._make_per_tensor_quantized_tensor(torch.from_numpy(p.a), A_SCALE, A_ZERO)
            packed = self._prepacked(p.w.T, p.w_scale, engine)
            return lambda: torch.ops.quantized.linear(a, packed, p.out_scale, OUT_ZERO)

        return self.torch(build, f"torch {engine}", answer=lambda y: y.int_repr().numpy())

    def _prepacked(self, w: Array, scale: Array, engine: str) -> Any:
        """Codes w [n, k], one scale per row."""
        torch = torch_with(self.threads)
        with _engine(torch, engine):
            return torch.ops.quantized.linear_prepack(_per_channel(torch, w, scale), None)

    # ---- layers: float32 in and out -----------------------------------------------------------------

    def dynamic_layers(self, p: Layer) -> list[Contender]:
        """Those that find codes of x as they go, and have those of w."""
        out = aligned((p.m, p.n), np.float32)

        def ort() -> Call:
            # 7 bits for w, as ONNX Runtime advises where there is no VNNI: it saturates there, and is far off with 8.
            scale = 2 * p.w_scale
            codes = np.rint(p.w.T / scale).astype(np.int8)
            return onnx_call(
                self.threads,
                "DynamicQuantizeMatMul",
                {"x": p.x},
                out,
                constants={"w": codes, "w_scale": scale, "w_zero": np.zeros(p.n, np.int8)},
                domain=MICROSOFT,
            )

        engines = [self._torch_dynamic(p, engine) for engine in _ENGINE_NAMES]
        return [*engines, Contender(ORT_DYNAMIC, ort, answer=lambda _: out)]

    def _torch_dynamic(self, p: Layer, engine: str) -> Contender:
        def build(torch: Any) -> Call:
            x, packed = torch.from_numpy(p.x), self._prepacked(p.w_codes, p.w_scale, engine)
            # 7 bits for x, as torch's own module has it.
            return lambda: torch.ops.quantized.linear_dynamic(x, packed, reduce_range=True)

        return self.torch(build, f"torch {engine}", answer=lambda y: y.numpy())

    def float_layers(self, x: Array, w: Array, to_answer: Callable[[Array], Array]) -> list[Contender]:
        """x w^T in float32 by torch and by NumPy."""

        def torch_f32(torch: Any) -> Call:
            own, linear = (torch.from_numpy(x), torch.from_numpy(w).clone()), torch.nn.functional.linear
            return lambda: linear(*own)

        return [
            self.torch(torch_f32, TORCH_F32, answer=lambda y: to_answer(y.numpy())),
            self.numpy_layer(x, w, to_answer),
        ]

    def numpy_layer(self, x: Array, w: Array, to_answer: Callable[[Array], Array]) -> Contender:
        def build() -> Call:
            _limit_blas(self.threads)
            own = aligned(w.shape, np.float32)
            own[...] = w
            return lambda: x @ own.T

        return Contender(NUMPY_F32, build, answer=to_answer)

    # ---- layers with four-bit weights ---------------------------------------------------------------

    def four_bit_layers(self, p: Groups) -> list[Contender]:
        """Those with the same bits: ONNX Runtime's with x in 8 bits and in float32, torch's with x in bfloat16."""
        out = aligned((p.m, p.n), np.float32)

        def nbits(accuracy: int) -> Call:
            from onnxruntime.capi._pybind_state import quantize_matmul_4bits

            packed, scale = np.zeros((p.n, p.groups, p.block // 2), np.uint8), np.zeros(p.n * p.groups, np.float32)
            unused = np.zeros(p.n * -(-p.groups // 2), np.uint8)
            quantize_matmul_4bits(packed, np.ascontiguousarray(p.w.T), scale, unused, p.block, p.n, p.k, True)
            options = {"K": p.k, "N": p.n, "bits": 4, "block_size": p.block, "accuracy_level": accuracy}
            constants = {"w": packed, "w_scale": scale.reshape(p.n, p.groups)}
            inputs = {"x": p.x}
            return onnx_call(
                self.threads, "MatMulNBits", inputs, out, constants=constants, domain=MICROSOFT, **options
            )  # fmt: skip

        def int4pack(torch: Any) -> Call:
            ops = torch.ops.aten
            x, codes = torch.from_numpy(p.x).bfloat16(), torch.from_numpy(p.w_codes.astype(np.int32) + 8)
            packed = ops._convert_weight_to_int4pack_for_cpu(codes, 1)
            scale = torch.from_numpy(p.w_scale.T.copy())
            scale_and_zero = torch.stack([scale, torch.zeros_like(scale)], -1).bfloat16()
            return lambda: ops._weight_int4pack_mm_for_cpu(x, packed, p.block, scale_and_zero)

        return [
            Contender(NBITS[0], lambda: nbits(4), answer=lambda _: out),
            Contender(NBITS[1], lambda: nbits(0), answer=lambda _: out),
            self.torch(int4pack, INT4PACK, answer=lambda y: y.float().numpy()),
        ]

    def bfloat_layer(self, p: Layer) -> Contender:
        def build(torch: Any) -> Call:
            x, w = (torch.from_numpy(a).bfloat16() for a in (p.x, p.w))
            return lambda: torch.nn.functional.linear(x, w)

        return self.torch(build, TORCH_BF16, answer=lambda y: y.float().numpy())

    # ---- convolutions -------------------------------------------------------------------------------

    def convolutions(self, p: Convolution) -> list[Contender]:
        """In codes and in float32, torch in its channels_last memory format."""
        return [
            *(self._torch_convolution(p, engine) for engine in _ENGINE_NAMES),
            *(self._ort_convolution(p, name) for name in ORT_CONV),
            self._float_convolution(p),
        ]

    def _torch_convolution(self, p: Convolution, engine: str) -> Contender:
        def build(torch: Any) -> Call:
            codes = torch.from_numpy(p.x).contiguous(memory_format=torch.channels_last)
            x = torch._make_per_tensor_quantized_tensor(codes, A_SCALE, A_ZERO)
            x = x.contiguous(memory_format=torch.channels_last)
            w = _per_channel(torch, p.w, p.w_scale)
            geometry = ([p.stride] * 2, [p.padding] * 2, [1, 1], p.groups)
            with _engine(torch, engine):
                packed = torch.ops.quantized.conv2d_prepack(w, None, *geometry)
            return lambda: torch.ops.quantized.conv2d(x, packed, p.out_scale, OUT_ZERO)

        return self.torch(build, f"torch {engine}", answer=lambda y: y.int_repr().numpy())

    def _ort_convolution(self, p: Convolution, name: str) -> Contender:
        """ONNX has NCHW only; ONNX Runtime's own operator of that name takes both."""
        last = name.endswith("NHWC")
        out = aligned((1, p.out_size, p.out_size, p.out) if last else (1, p.out, p.out_size, p.out_size), np.uint8)

        def build() -> Call:
            x = aligned((1, p.size, p.size, p.channels) if last else p.x.shape, np.uint8)
            x[...] = np.moveaxis(p.x, 1, -1) if last else p.x
            constants = {
                **{"x_scale": np.float32(A_SCALE), "x_zero": np.uint8(A_ZERO)},
                **{"w": p.w, "w_scale": p.w_scale, "w_zero": np.zeros(p.out, np.int8)},
                **{"y_scale": np.float32(p.out_scale), "y_zero": np.uint8(OUT_ZERO)},
            }
            options = {"strides": [p.stride] * 2, "pads": [p.padding] * 4, "group": p.groups}
            own = {"domain": MICROSOFT, "channels_last": 1} if last else {}
            return onnx_call(self.threads, "QLinearConv", {"x": x}, out, constants=constants, **options, **own)

        return Contender(name, build, answer=lambda _: np.moveaxis(out, -1, 1) if last else out)

    def _float_convolution(self, p: Convolution) -> Contender:
        def build(torch: Any) -> Call:
            x = (p.x.astype(np.float32) - A_ZERO) * np.float32(A_SCALE)
            w = p.w * p.w_scale.reshape(-1, 1, 1, 1)
            own = [torch.from_numpy(a).contiguous(memory_format=torch.channels_last) for a in (x, w)]
            geometry = (None, p.stride, p.padding, 1, p.groups)
            return lambda: torch.nn.functional.conv2d(*own, *geometry)

        return self.torch(build, TORCH_F32, answer=lambda y: p.to_codes(y.numpy()))


def rotating(build: Callable[[], Call], copies: int) -> Callable[[], Call]:
    """Builds it `copies` times, and calls one after the other: weights are always those not used for longest."""

    def build_all() -> Call:
        calls = cycle([build() for _ in range(copies)])
        return lambda: next(calls)()

    return build_all


def _per_channel(torch: Any, codes: Array, scale: Array) -> Any:
    """Codes with a scale for each of axis 0."""
    own, scales = torch.from_numpy(np.ascontiguousarray(codes)), torch.from_numpy(scale.astype(np.float64))
    return torch._make_per_channel_quantized_tensor(own, scales, torch.zeros(scale.size, dtype=torch.long), 0)


@contextmanager
def _engine(torch: Any, name: str) -> Iterator[None]:
    """What packs weights; the packed ones know their engine."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@cache
def _limit_blas(threads: int) -> None:
    """NumPy's BLAS takes all cores until told otherwise."""
    from threadpoolctl import ThreadpoolController

    controlled = ThreadpoolController().select(internal_api="openblas")
    if not len(controlled):
        raise OSError("NumPy's BLAS is none whose threads can be limited here")
    controlled.limit(limits=threads)
