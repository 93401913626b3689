"""Images in torch.channels_last stay so, and every number is that of the contiguous image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import lowbit as lb  # noqa: E402
import lowbit.torch as lt  # noqa: E402
from lowbit.torch.functional import kernels, library  # noqa: E402
from lowbit.torch.functional.channels_last import empty_like, is_channels_last  # noqa: E402

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = {"2d": (3, 8, 5, 7), "3d": (2, 3, 4, 5, 3)}
GRANULARITIES = {
    "tensor": {}, "outer": {"axis": 0}, "channels": {"axis": 1}, "inner": {"axis": -1}, "middle": {"axis": 2},
    "blocks": {"axis": 1, "group_size": 3},
}  # fmt: skip


@pytest.fixture(params=SHAPES)
def image(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    shape = SHAPES[request.param]
    return torch.randn(shape).contiguous(memory_format=FORMATS[len(shape)])


@pytest.fixture(params=GRANULARITIES)
def granularity(request: pytest.FixtureRequest) -> dict[str, int]:
    return GRANULARITIES[request.param]


def scales(x: Any, granularity: dict[str, int]) -> Any:
    shape = kernels.granularity(x.shape, granularity.get("axis"), granularity.get("group_size")).scale_shape
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.1 + 0.02


def same(found: Any, expected: Any, like: Any) -> None:
    assert torch.equal(found, expected)
    assert found.stride() == like.stride()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fake_quantize": lambda x, s, **g: lt.fake_quantize(x, s, 1, qmin=-8, qmax=7, **g),
    "fake_quantize_learned": lambda x, s, **g: lt.fake_quantize_learned(x, s, 1, qmin=-8, qmax=7, **g),
    "quantize_ste": lambda x, s, **g: lt.quantize_ste(x, s, 1, qmin=-8, qmax=7, **g),
    "dequantize_ste": lambda x, s, **g: lt.dequantize_ste(x.round(), s, 1, **g),
    "quantize": lambda x, s, **g: lt.quantize(x, s, 1, qmin=-8, qmax=7, **g),
    "dequantize": lambda x, s, **g: lt.dequantize(x.round().to(torch.int8), s, 1, **g),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_the_contiguous_image(name: str, image: Any, granularity: dict[str, int]) -> None:
    s = scales(image, granularity)
    expected = FUNCTIONS[name](image.contiguous(), s, **granularity)
    same(FUNCTIONS[name](image, s, **granularity), expected, image)


@pytest.mark.parametrize("name", ["fake_quantize", "fake_quantize_learned", "quantize_ste", "dequantize_ste"])
@pytest.mark.parametrize("of_dy", ["channels_last", "contiguous", "expanded"])
def test_gradients_are_those_of_the_contiguous_image(
    name: str, of_dy: str, image: Any, granularity: dict[str, int]
) -> None:
    function = FUNCTIONS[name]
    dy = torch.randn(image.shape, generator=torch.Generator().manual_seed(2))
    if of_dy == "expanded":
        dy = dy[:1, :1, :1].expand(image.shape)
    found = []
    for x in (image, image.contiguous()):
        s = scales(x, granularity).requires_grad_(name == "fake_quantize_learned")
        leaf = x.clone().requires_grad_()
        given = dy.contiguous(memory_format=FORMATS[x.ndim]) if of_dy == "channels_last" else dy
        function(leaf, s, **granularity).backward(given)
        found.append((leaf.grad, s.grad))
    (dx, ds), (expected, expected_ds) = found
    assert torch.equal(dx, expected)
    if ds is not None:
        assert torch.equal(ds, expected_ds)


def test_results_may_be_written_to(image: Any) -> None:
    leaf = image.clone().requires_grad_()
    for scale in (torch.tensor(0.1), torch.rand(image.shape[1]) + 0.1):
        axis = None if scale.ndim == 0 else 1
        lt.fake_quantize(leaf, scale, axis=axis).relu_().sum().backward()


def test_operators_say_how_their_results_lie(image: Any, granularity: dict[str, int]) -> None:
    axis, block = granularity.get("axis"), granularity.get("group_size")
    s = scales(image, granularity)
    z = torch.ones(s.shape, dtype=torch.int32)
    leaf = image.clone().requires_grad_()
    torch.library.opcheck(torch.ops.lowbit.fake_quantize, (leaf, s, z, -8, 7, axis, block))
    torch.library.opcheck(torch.ops.lowbit.quantize, (image, s, z, -8, 7, axis, block, torch.int8))


def test_compiled_as_eager() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    net, _ = lt.prepare_qat(net, lt.QATRecipe(weight="int8"))
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    lt.calibrate(net, [x])
    net.eval()
    expected = net(x)
    found = torch.compile(net, backend="aot_eager", fullgraph=True)(x)
    same(found, expected, expected)
    assert is_channels_last(found)


def test_the_first_bad_number_is_named_by_the_shape() -> None:
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    x[1, 2, 3, 4] = torch.inf
    x[1, 0, 3, 4] = torch.nan
    with pytest.raises(lb.InvalidProblem, match=r"x: nan at index \(1, 0, 3, 4\)"):
        library.range_params(x, -8, 7, True, 1, None, "x", False)


@pytest.mark.parametrize("axis", [None, 0, 1, 3])
def test_ranges_are_those_of_the_contiguous_image(axis: int | None) -> None:
    x = torch.randn(4, 3, 5, 6).contiguous(memory_format=torch.channels_last)
    found, expected = (library.range_params(v, 0, 15, False, axis, None, "x", False) for v in (x, x.contiguous()))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_room_for_results() -> None:
    one_channel = torch.zeros(2, 1, 4, 4).to(memory_format=torch.channels_last)
    assert not is_channels_last(one_channel)  # contiguous too
    assert empty_like(one_channel).stride() == one_channel.stride()
    assert empty_like(torch.zeros(4, 6).T).is_contiguous()


def test_converted_layers_compute_what_was_trained() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)
    ).to(memory_format=torch.channels_last)
    net, _ = lt.prepare_qat(net, lt.QATRecipe(weight="int4"))
    x = torch.randn(4, 3, 12, 12)
    net.train()(x)
    net.eval()
    final = lt.convert(net)
    assert is_channels_last(final[0].weight)
    same(final(x), net(x), net(x))
    plain = final.to(memory_format=torch.contiguous_format)
    assert not is_channels_last(plain[0].weight)
    torch.testing.assert_close(plain(x), net(x))
    again = plain.to(memory_format=torch.channels_last)
    same(again(x), net(x), net(x))
