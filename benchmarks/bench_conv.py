"""Convolutions of uint8 activations with packed int8 weights, to uint8, batch size 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import lowbit as lb
from benchmarks.peers import Peers
from benchmarks.peers_compute import ENGINES, ORT_CONV, TORCH_F32, ComputePeers
from benchmarks.problems import A_SCALE, A_ZERO, OUT_ZERO, Convolution
from benchmarks.shapes import aligned
from benchmarks.timing import Call, Case, Contender, GroupTarget, Target

_CONVOLUTIONS = (
    Convolution(64, 64, 56, 3, padding=1),
    Convolution(128, 128, 28, 3, padding=1),
    Convolution(256, 256, 14, 1),
    Convolution(3, 64, 224, 7, stride=2, padding=3),
    Convolution(128, 128, 56, 3, padding=1, groups=128),
)
# float32 too: a depthwise convolution accumulates few products, and float32 is as fast as codes.
_PEERS = (*ENGINES, *ORT_CONV, TORCH_F32)
NHWC, NCHW = "lowbit, NHWC", "lowbit, NCHW"  # NHWC is how torch and ONNX Runtime have it inside
_MEAN = GroupTarget("all convolutions", NHWC, _PEERS, 1.0, "best peer")


def cases(peers: Peers) -> Iterator[Case]:
    for p in _CONVOLUTIONS:
        depthwise = p.groups > 1
        yield Case(
            p.name,
            p.x.size + p.w.size + p.codes.size,
            [_lowbit(p, NHWC), _lowbit(p, NCHW), *ComputePeers(peers.threads).convolutions(p)],
            [Target(NHWC, _PEERS, 1.2, "best peer")] if depthwise else [],
            expected=p.codes,
            tolerance=1,  # torch rounds after it has added the zero point
            operations=p.operations,
            group_targets=[_MEAN],
        )


def _lowbit(p: Convolution, name: str) -> Contender:
    last = name == NHWC

    def build() -> Call:
        codes = aligned((1, p.size, p.size, p.channels) if last else p.x.shape, np.uint8)
        codes[...] = np.moveaxis(p.x, 1, -1) if last else p.x
        x = lb.QuantizedTensor(codes, lb.QuantizationParams("uint8", scale=A_SCALE, zero_point=A_ZERO))
        w = lb.QuantizedTensor(p.w, lb.QuantizationParams("int8", scale=p.w_scale, axis=0))
        packed = lb.prepack_conv2d(w, groups=p.groups)
        options = {
            **{"stride": p.stride, "padding": p.padding, "groups": p.groups, "layout": "NHWC" if last else "NCHW"},
            "out_params": lb.QuantizationParams("uint8", scale=p.out_scale, zero_point=OUT_ZERO),
        }
        return lambda: lb.qconv2d(x, packed, **options)

    return Contender(
        name, build, kind="lowbit", answer=lambda q: np.moveaxis(q.data, -1, 1) if last else q.data
    )  # fmt: skip
