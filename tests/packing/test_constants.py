"""What does not depend on the input: constants changed in place, random numbers, TorchScript functions."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from xnorpp.packing import PackError, pack_program

SHAPE = (6, 7, 9)
Forward = Callable[[Tensor], Any]
MAP = torch.randn(6, 7, 9)


def zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape)


def added(x: Tensor) -> Tensor:
    y = zeros(x)
    y += x * 2
    y += 1
    return y * 2


def operators(x: Tensor) -> Tensor:
    y = torch.full(x.shape, 3.0)
    y *= x + 2
    y /= x.abs() + 1
    y -= x
    return y + y.relu()


def added_to_parts(x: Tensor) -> Tensor:
    y = torch.ones(x.shape)
    y[:, 0] += x[:, 0]
    y[:, 1:3] += x[:, 1:3] * 2
    return y * 2


def map_and_values(x: Tensor) -> Tensor:
    y = MAP.expand(len(x), -1, -1, -1).clone()
    y.mul_(x).clamp_(-1, 1)
    return y * MAP


def empty(x: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    y[:] = x
    return y + torch.empty(9).fill_(2)


CHANGED: dict[str, Forward] = {
    "added": added,
    "operators": operators,
    "added to parts": added_to_parts,
    "a map": map_and_values,
    "empty": empty,
    "methods": lambda x: zeros(x).add_(x, alpha=2).sub_(MAP),
    "one example": lambda x: torch.ones_like(x).mul_(x.mean((2, 3), keepdim=True)),
    "zeros of random numbers": lambda x: x * 2 + torch.zeros_like(torch.rand(9)),
    "unused random numbers": lambda x: (torch.randn_like(x), x * 2)[1],
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_constant_that_is_changed_in_place(name: str) -> None:
    """The constant is what it was before, also where the example's numbers are zeros, as those of a size."""
    agrees(CHANGED[name], images(*SHAPE))


def test_a_bias_is_not_counted_twice() -> None:
    """With zeros as the example all images give the same: no constant may be read after it changed."""
    torch.manual_seed(0)
    conv = nn.Conv2d(6, 4, 1)

    class Accumulates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor) -> Tensor:
            total = torch.zeros(len(x), 4, 7, 9)
            total += self.conv(x)
            return total.add_(1)

    agrees(Accumulates(), images(*SHAPE))


def view_changed(x: Tensor) -> Tensor:
    y = zeros(x)
    part = y[:, 0]
    part += x[:, 0]
    return y * 2 + x


def view_before(x: Tensor) -> Tensor:
    y = zeros(x)
    other = y[:, 1]
    y[:, 0] = x[:, 0]
    return x + other[:, None] * 2


def view_returned(x: Tensor) -> Tensor:
    y = zeros(x)
    y[:, 0].add_(x[:, 0])
    return y


def masked_view(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:3][x[:, 1:3] > 0] = 3.0
    return y


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(2, 6, 7, 9))

    def forward(self, x: Tensor) -> Tensor:
        self.memory[:, 0].add_(x[:, 0])
        return self.memory + x


@pytest.mark.parametrize("function", [view_changed, view_before, view_returned, masked_view, Buffer()])
def test_memory_that_was_changed_through_another_view(function: Any) -> None:
    model = function if isinstance(function, nn.Module) else Lambda(function)
    is_refused(model, SHAPE, "whose memory was changed in place", "clone the tensor")


def noise_in_part(x: Tensor) -> Tensor:
    y = torch.zeros(9)
    y[0].uniform_()
    return x + y


def decided(x: Tensor) -> Tensor:
    return x * 2 if torch.rand(1) < 2 else x


RANDOM: dict[str, tuple[Forward, str]] = {
    "added": (lambda x: x + torch.rand(9), r"Tensor\.add uses random numbers"),
    "like the images": (lambda x: x + 0.1 * torch.randn_like(x), r"Tensor\.add uses random numbers"),
    "computed from": (lambda x: x * (torch.rand(9) * 2).floor(), r"Tensor\.mul uses random numbers"),
    "in a part": (noise_in_part, r"Tensor\.add uses random numbers"),
    "dropout of ones": (lambda x: x * F.dropout(torch.ones(9)), r"Tensor\.mul uses random numbers"),
    "a distribution": (
        lambda x: x + torch.distributions.Normal(0.0, 1.0).sample((9,)),
        r"Tensor\.add uses random numbers",
    ),
    "a number": (lambda x: x * torch.rand(1).item(), r"Tensor\.item reads random numbers"),
    "a decision": (decided, r"Tensor\.__bool__ reads random numbers"),
    "of the images": (lambda x: torch.bernoulli(x.sigmoid()) * x, r"torch\.bernoulli is not supported"),
    "gumbel softmax": (lambda x: F.gumbel_softmax(x, dim=1), "gumbel_softmax is not supported"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_refused(name: str) -> None:
    function, reason = RANDOM[name]
    remedy = "draw random numbers in training alone (if self.training), or make them a buffer"
    is_refused(Lambda(function), SHAPE, reason, remedy)


def test_random_numbers_in_training_alone_pack() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noise = torch.randn(9)
            return (x + noise if self.training else x) * 2

    agrees(Noise(), images(*SHAPE))


def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_functions_of_torchscript() -> None:
    """A scripted function packs as the function that it was made from; a traced one is refused."""
    scripted = torch.jit.script(swish)
    agrees(lambda x: scripted(x) + scripted(x, 2.0), images(*SHAPE))
    before = torch.jit.ScriptFunction.__call__
    assert "sigmoid" in {op.op for op in pack_program(Lambda(scripted), SHAPE).ops}
    traced = torch.jit.trace(swish, torch.ones(2, *SHAPE))
    is_refused(Lambda(traced), SHAPE, r"torch\.jit runs a TorchScript function", "use the function")
    assert torch.jit.ScriptFunction.__call__ is before, "packing leaves torch as it was"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_threads_pack_functions_of_torchscript_side_by_side() -> None:
    scripted = torch.jit.script(swish)
    before, errors = torch.jit.ScriptFunction.__call__, []

    def work() -> None:
        try:
            for _ in range(5):
                pack_program(Lambda(lambda x: scripted(x) * 2), (3, 4, 4))
        except PackError as error:  # what another thread left is refused, never packed wrongly
            errors.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("unknown origin" in error or "TorchScript" in error for error in errors)
    assert torch.jit.ScriptFunction.__call__ is before


def test_a_tensor_of_the_models_surroundings_is_known_by_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of a process are many: they are not looked through for a tensor that both runs meet."""
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked through all objects"))
    agrees(lambda x: x * MAP + MAP[:1], images(*SHAPE))


def test_a_tensor_that_no_other_run_met_is_looked_up() -> None:
    factors = [torch.tensor([2.0]) for _ in range(100)]  # another at each run
    runs = itertools.count()
    agrees(lambda x: x * factors[next(runs)], images(*SHAPE))


LARGER = torch.rand(6, 7, 9) + 0.5
ENLARGED: dict[str, Forward] = {
    "product": lambda y: y * LARGER,
    "quotient": lambda y: y / LARGER,
    "divided": lambda y: LARGER / (y.abs() + 1),
    "sum": lambda y: y + LARGER,
    "difference": lambda y: LARGER - y,
    "one more axis": lambda y: y[:, None] / LARGER,
    "addcmul": lambda y: torch.addcmul(y, y, LARGER),
    "addcmul to a constant": lambda y: torch.addcmul(LARGER, y, y),
    "addcmul of constants": lambda y: torch.addcmul(y, LARGER, LARGER, value=2),
    "addcdiv": lambda y: torch.addcdiv(y, y, LARGER),
}


@pytest.mark.parametrize("name", ENLARGED)
def test_a_constant_that_is_larger_than_the_value(name: str) -> None:
    agrees(lambda x: ENLARGED[name](x.mean((2, 3), keepdim=True)), images(*SHAPE))


class OldStyle(nn.Module):
    """As code from before PyTorch 0.4 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor([2, 0, 1]))
        self.gain = nn.Parameter(torch.tensor([[[1.5]], [[-0.5]], [[2.0]]]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.index_select(x, 1, torch.autograd.Variable(self.index)) * torch.autograd.Variable(
            self.gain
        )


def test_a_variable_of_a_buffer_is_a_constant() -> None:
    agrees(OldStyle(), torch.randn(3, 3, 4, 5, generator=torch.Generator().manual_seed(0)))


ALIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "Variable": lambda x: x + torch.autograd.Variable(x * 3) * 2,
    "of the input": lambda x: torch.autograd.Variable(x) * 2,
    "Tensor": lambda x: x + torch.Tensor(x.relu()) * 2,
    "Parameter": lambda x: x + nn.Parameter(x.exp()).detach() * 2,
    "of another library": lambda x: x + from_dlpack(to_dlpack(x * 2)),
    "in place": lambda x: torch.autograd.Variable(x.clone()).mul_(2) + x,
}
LEGACY: dict[str, Callable[[Tensor], Tensor]] = {
    "FloatTensor": lambda x: x * 2 + torch.FloatTensor([1, 2, 3, 4]),
    "Tensor of a list": lambda x: x * torch.Tensor([2.0]) + torch.Tensor(4).fill_(3.0),
    "of numpy": lambda x: (
        x * 2 + torch.from_numpy(np.eye(2, dtype=np.float32).flatten()).view(1, 4).repeat(len(x), 1)
    ),
    "then changed": lambda x: x * torch.exp(torch.FloatTensor([[1, 2, 3, 4]]) * 0.1),
}


@pytest.mark.parametrize("name", [*ALIASES, *LEGACY])
def test_other_names_of_values_and_constants_without_a_function(name: str) -> None:
    agrees(({**LEGACY, **ALIASES})[name], images(4))


def test_what_no_function_shows_is_compared_on_samples() -> None:
    hidden: list[Tensor] = []

    class Unseen(nn.Module):
        """Reads its input by an address, as an extension would."""

        def forward(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                hidden.append(x.detach().clone().mean(-1, keepdim=True))
            return x + hidden[-1] * 2

    is_refused(Unseen(), (4,), "unknown origin", "buffer")
