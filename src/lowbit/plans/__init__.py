"""Plans: describe a problem once, select a kernel, check arguments, run many times.

    {Quantize, Dequantize, FakeQuantize} x Per{Tensor, Channel, Token, Group} x {forward, Backward}
    DynamicRangeQuantize{Symmetric, Asymmetric} x Per{Tensor, Channel, Token, Group}
    MatMul, Conv2d, Linear

Each plan class has its `Descriptor` and its `Args`. A plan is immutable, can be pickled, and may be run from many
threads at once. `run` writes into the arrays it is given. The first two rows allocate none; the third says in
`workspace_size` how many bytes it works in.

`select(descriptor, device="cuda")` gives a plan for a GPU, whose arguments are torch tensors in its memory.

>>> import numpy as np
>>> plan = FakeQuantizePerTensorPlan.select(PerTensorDescriptor((4,), qmin=-8, qmax=7, input_element="f32"))
>>> x, y = np.float32([0.1, 0.26, 9.0, -9.0]), np.empty(4, np.float32)
>>> plan.run(ForwardArgs(x, 0.5, 0, y))
>>> y
array([ 0. ,  0.5,  3.5, -4. ], dtype=float32)
>>> print(plan.sku)  # doctest: +ELLIPSIS
quantization/fake_quantize_per_tensor/f32/.../cpu
"""

from lowbit.plans.arguments import BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs
from lowbit.plans.base import PLANS, Plan
from lowbit.plans.compute import ComputePlan, Conv2dPlan, LinearPlan, MatMulPlan
from lowbit.plans.descriptors import (
    Conv2dArgs,
    Conv2dDescriptor,
    LinearArgs,
    LinearDescriptor,
    MatMulArgs,
    MatMulDescriptor,
    PerChannelDescriptor,
    PerGroupDescriptor,
    PerTensorDescriptor,
    PerTokenDescriptor,
)
from lowbit.plans.family import *  # noqa: F403
from lowbit.plans.kinds import ElementKind, KernelSku, PrecisionGuarantee

__all__ = [
    "PLANS",
    "BackwardArgs",
    "ComputePlan",
    "Conv2dArgs",
    "Conv2dDescriptor",
    "Conv2dPlan",
    "DequantizeBackwardArgs",
    "DynamicArgs",
    "ElementKind",
    "ForwardArgs",
    "KernelSku",
    "LinearArgs",
    "LinearDescriptor",
    "LinearPlan",
    "MatMulArgs",
    "MatMulDescriptor",
    "MatMulPlan",
    "PerChannelDescriptor",
    "PerGroupDescriptor",
    "PerTensorDescriptor",
    "PerTokenDescriptor",
    "Plan",
    "PrecisionGuarantee",
]
__all__ += [plan.__name__ for plan in PLANS.values() if plan.__name__ not in __all__]
