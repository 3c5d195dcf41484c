"""Whether torch.sign is one bit is measured: numbers that are 0 by chance alone, and those that often are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

from xnorpp.packing import check_packable, pack_program, pack_submodules
from xnorpp.packing.bits.zeros import Signs

Function = Callable[[Tensor, Tensor], Tensor]


class After(nn.Module):
    """A sign of what a function makes of an image, and a product with it."""

    def __init__(self, function: Function, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.fixed = torch.randn(8, 3, 3, 3)
        numbers = function(torch.zeros(1, *shape), self.fixed).flatten(1).shape[1]
        self.weight = nn.Parameter(torch.randn(4, numbers))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sign(self.function(x, self.fixed)).flatten(1)
        return F.linear(x, self.weight.sign())


OFTEN_ZERO: dict[str, Function] = {
    "an image": lambda x, w: x,
    "black pixels": lambda x, w: F.conv2d(x, w),
    "a border": lambda x, w: F.pad(F.conv2d(x, w, torch.ones(8)), (1, 1, 1, 1)),
    "the smaller one": lambda x, w: torch.minimum(F.conv2d(x, w), torch.zeros(())),
    "differences": lambda x, w: x[..., 1:] - x[..., :-1],
    "as many -0.1 as +0.1": lambda x, w: F.conv2d(torch.sign(x[:, 1:] - 0.3), 0.1 * w[:, 1:].sign()),
    "rounded": lambda x, w: F.hardshrink(F.conv2d(x, w, torch.ones(8)), 2.0),
    "a channel that is off": lambda x, w: F.conv2d(x, w, torch.ones(8)) * (torch.arange(8) > 0).view(8, 1, 1),
    "a batch norm that is off": lambda x, w: F.batch_norm(
        F.conv2d(x, w), torch.ones(8), torch.ones(8), (torch.arange(8) > 0).float(), 0 * torch.ones(8)
    ),
}
EXACT: dict[str, Function] = {
    "ReLU": lambda x, w: F.relu(F.conv2d(x, w, torch.ones(8))),
    "ReLU6": lambda x, w: F.max_pool2d(F.relu6(F.conv2d(x, w) - 3), 2),
    "clipped": lambda x, w: F.conv2d(x, w, torch.ones(8)).clamp(0, 1),
    "of the image": lambda x, w: F.relu(x[:, :2]),
}
HARDLY_ZERO: dict[str, Function] = {
    "a bias": lambda x, w: F.conv2d(x, w, torch.arange(8) + 0.5),
    "a pixel less a number": lambda x, w: x - 0.3,
    "a product with a whole image": lambda x, w: x.flatten(1) @ w.view(2, 108).t(),
    "a mean": lambda x, w: F.conv2d(x, w).mean((2, 3)),
    "a tangent": lambda x, w: torch.tanh(F.conv2d(x, w, torch.ones(8))),
    "an attention": lambda x, w: torch.softmax(F.conv2d(x, w).mean((2, 3)), 1) - 0.2,
    "a gate": lambda x, w: F.conv2d(x, w, torch.ones(8)) * torch.sigmoid(F.conv2d(x, w)),
    "a ReLU less its mean": lambda x, w: F.relu(F.conv2d(x, w)) - 0.37,
}


@pytest.mark.parametrize("name", OFTEN_ZERO)
def test_a_sign_that_is_zero_on_samples_is_refused(name: str) -> None:
    torch.manual_seed(0)
    model = After(OFTEN_ZERO[name], (3, 6, 6))
    is_refused(model, (3, 6, 6), r"linear reads torch\.sign, which is 0 at 0", "use xnorpp.nn.sign")


@pytest.mark.parametrize("name", HARDLY_ZERO)
def test_a_sign_that_is_never_zero_on_samples_is_one_bit(name: str) -> None:
    torch.manual_seed(0)
    x = images(3, 6, 6)
    before = x.clone()
    packed = agrees(After(HARDLY_ZERO[name], (3, 6, 6)), x)
    assert torch.equal(x, before)
    assert [op.op for op in packed.program.ops].count("binary_linear") == 1


@pytest.mark.parametrize("name", EXACT)
def test_a_sign_of_numbers_that_are_never_negative_is_0_or_1(name: str) -> None:
    """As in DoReFa-Net's activations of one bit."""
    torch.manual_seed(0)
    packed = agrees(After(EXACT[name], (3, 6, 6)), images(3, 6, 6))
    assert [op.op for op in packed.program.ops].count("binary_linear") == 1


def test_what_follows_from_a_sign_of_zeros_is_refused_too() -> None:
    torch.manual_seed(0)
    for follow in (lambda s: s * 0.5, lambda s: F.max_pool2d(s, 2), lambda s: torch.cat([s, s.flip(1)], 1)):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), Lambda(torch.sign), Lambda(follow))
        model.append(nn.Conv2d(16 if model(torch.zeros(1, 3, 6, 6)).shape[1] == 16 else 8, 4, 1))
        is_refused(model, (3, 6, 6), r"Conv2d reads torch\.sign, which is 0 at 0", "use xnorpp.nn.sign")


def test_the_example_is_a_sample() -> None:
    """It has numbers that random images have not."""
    torch.manual_seed(0)
    model = After(lambda x, w: x - 7.0, (3, 6, 6))
    assert check_packable(model, (3, 6, 6))
    x = torch.arange(2 * 3 * 36).float().view(2, 3, 6, 6)
    (obstacle,) = check_packable(model, x).obstacles
    share = "and has no bit, and less than 0.1 % of its numbers are 0 on samples"
    assert f"linear reads torch.sign, which is 0 at 0 {share}" in str(obstacle)


def test_bytes_are_samples_of_bytes() -> None:
    torch.manual_seed(0)
    model = After(lambda x, w: x.float() - 127, (3, 6, 6))
    x = torch.zeros(2, 3, 6, 6, dtype=torch.uint8)
    assert check_packable(model, (3, 6, 6))
    assert not check_packable(model, x)


def test_filters_that_belong_to_no_module_are_found() -> None:
    filters = torch.randn(4, 8).sign()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Identity())
    model[3].forward = lambda x: torch.sign(x) @ filters.t()
    assert check_packable(model, (3, 6, 6))


class Between(nn.Module):
    """A layer of signs, twice, around what cannot be packed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Lambda(torch.sign), nn.Conv2d(8, 8, 1))
        self.after = nn.Sequential(Lambda(torch.sign), nn.Conv2d(8, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.inner(x))
        return self.after(F.fold(F.unfold(x, 2, stride=2).i0(), (6, 6), 2, stride=2))


def test_parts_that_begin_with_a_sign_pack_as_in_the_whole_model() -> None:
    """Of the input of a part alone nothing is known; the whole model shows what it is the sign of."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Identity(), Between()).eval()
    hybrid, report = pack_submodules(model, (3, 6, 6))
    assert [part.name for part in report.packed] == ["0 to 1", "2.inner", "2.after"]
    x = torch.randn(3, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(hybrid(x), model(x), rtol=1e-4, atol=1e-4)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(8 * 8 * 9, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(torch.sign(x), self.filters.view(8, 8, 3, 3).sign(), padding=1)


def test_layers_without_a_module_of_torch_are_worth_packing() -> None:
    torch.manual_seed(0)
    model = Between()
    model.inner, model.after = nn.Sequential(Own(), nn.BatchNorm2d(8)), Own()
    model = nn.Sequential(nn.Conv2d(3, 8, 1), model).eval()
    hybrid, report = pack_submodules(model, (3, 6, 6))
    assert [str(part) for part in report.packed] == ["1.inner (1 layer)", "1.after (1 layer)"]
    assert isinstance(hybrid[0], nn.Conv2d)  # nothing is saved there
    assert [part.name for part in check_packable(model, (3, 6, 6)).packable_parts] == ["1.inner", "1.after"]


def test_a_number_near_zero_is_chance_and_many_are_not() -> None:
    torch.manual_seed(0)
    signs, x = Signs(), torch.randn(2, 8, 20, 20)
    x[0, 0, 0, 0] = 1e-9
    assert signs.next_share(x, x.sign(), nn.Identity()) is None
    x[:, :, ::4] = 1e-9
    signs.next_share(x, x.sign(), nn.Identity())
    x = torch.randn(2, 8, 20, 20) * torch.rand(2, 8, 20, 20) ** 6  # of all sizes
    signs.next_share(x, x.sign(), nn.Identity())
    assert [zeros for zeros, _ in signs.met] == [0, 2 * 8 * 5 * 20, 0]


def test_random_numbers_are_left_as_they_were() -> None:
    model = After(HARDLY_ZERO["a bias"], (3, 6, 6))
    before = torch.get_rng_state()
    pack_program(model, (3, 6, 6))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_runs_on_no_samples_is_refused_without_a_share() -> None:
    class Careful(After):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.any()):
                raise RuntimeError("black images only")
            return super().forward(x)

    (*_, obstacle) = check_packable(Careful(HARDLY_ZERO["a bias"], (3, 6, 6)), (3, 6, 6)).obstacles
    assert "torch.sign, which is 0 at 0 and has no bit" in str(obstacle)
