"""ReCU's standardized weights inside of the fused kernels on a real GPU, against the plain path, also as a
recorded CUDA graph. One command on such a machine:

pytest -m gpu tests/gpu/test_fused_weights.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from recording import recorded
from torch import Tensor, nn

from xnorpp.models import create_model
from xnorpp.nn import BinaryConv2d, set_progress
from xnorpp.nn.fused import dispatch as fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT RUN: the fused kernels on real hardware need a GPU."
    ),
]


def layer(outputs: int, inputs: int, kernel: int) -> BinaryConv2d:
    conv = BinaryConv2d(inputs, outputs, kernel, bias=False, weights="recu", standardize_weights=True)
    with torch.no_grad():
        conv.weight.copy_(torch.distributions.Laplace(0.01, 0.1).sample(conv.weight.shape))
    return conv.cuda()


def plain_gradient(conv: BinaryConv2d, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standardized weight, signs, and the gradient of the weight by autograd."""
    latent = conv.latent_weight()
    signs = conv.binarization.weights(latent, conv.progress)
    (found,) = torch.autograd.grad(signs, conv.weight, grad)
    return latent.detach(), signs.detach(), found


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs", "kernel"),
    [(16, 16, 3), (64, 64, 3), (512, 512, 3), (512, 256, 1), (7, 5, 3), (4, 1, 1), (1100, 3, 3)],
)
def test_signs_and_gradient_equal_plain_also_in_a_graph(
    outputs: int, inputs: int, kernel: int, channels_last: bool
) -> None:
    from xnorpp.nn.fused.unit import DTYPES
    from xnorpp.nn.fused.weights import Latent, WeightSigns, clamp_of, weight_gradient, weight_signs

    torch.manual_seed(0)
    conv = layer(outputs, inputs, kernel)
    if channels_last:
        conv = conv.to(memory_format=torch.channels_last)
    grad = torch.randn_like(conv.weight).bfloat16()
    latent = Latent(conv.weight.detach(), clamp_of(conv), conv.progress)
    made: list[tuple[WeightSigns, Tensor]] = []

    def call() -> None:
        signs = weight_signs(latent, DTYPES)
        made.append((signs, weight_gradient(grad, latent, signs.table)))

    replay = recorded(call)
    signs, result = made[-1]
    for progress in (0.0, 0.7, 1.0):
        conv.progress.fill_(progress)
        replay()
        x, expected_signs, expected = plain_gradient(conv, grad.float())
        clear = x.abs() > 1e-5
        assert torch.equal(signs.half.float()[clear], expected_signs[clear])
        assert torch.equal(signs.wide, signs.half.bfloat16())
        # A weight whose |x| is within rounding of the bound may fall on either side of it.
        wrong = (result - expected).abs() > 1e-5 * expected.abs().max().clamp_min(1e-3)
        assert int(wrong.flatten(1).any(1).sum()) <= 1 + outputs // 50
        again = result.clone()
        replay()
        assert torch.equal(result, again)


def step_of(model: nn.Module, x: Tensor, weights: Tensor, plain: bool) -> Callable[[], None]:
    """Forward and backward, on the fused path; `plain` leaves the weights to autograd."""
    from xnorpp.nn.fused import unit

    kept = unit.clamp_of

    def call() -> None:
        model.zero_grad(set_to_none=True)
        unit.clamp_of = (lambda conv: None) if plain else kept
        try:
            with fused.backend("auto"), fused.for_graph():
                with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                    y = model(x)
                (y.float() * weights).sum().backward()
        finally:
            unit.clamp_of = kept

    return call


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_recorded_step_of_a_network_equals_plain_weights_at_two_moments(channels_last: bool) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", input_size=32, weights="recu", standardize_weights=True).cuda().train()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    weights = torch.randn(32, 10, device="cuda")
    found: dict[tuple[bool, float], dict[str, Tensor]] = {}
    for plain in (True, False):
        network = copy.deepcopy(model)
        replay = recorded(step_of(network, x, weights, plain))
        for progress in (0.0, 1.0):
            set_progress(network, progress)
            replay()
            gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
            found[plain, progress] = gradients
    binary = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, BinaryConv2d)}
    assert binary
    for progress in (0.0, 1.0):
        for name in binary:
            expected, result = found[True, progress][name], found[False, progress][name]
            error = float((result - expected).norm() / expected.norm())
            assert error < 4e-2, (progress, name, error)
    changed = [
        float((found[False, 0.0][name] - found[False, 1.0][name]).norm() / found[False, 1.0][name].norm())
        for name in binary
    ]
    assert min(changed) > 5e-2  # the bound of the clamp follows `progress` inside of the graph
