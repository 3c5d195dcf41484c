"""Numbers at other places: indexes, assignments, `gather`, diagonals, stacks; against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor

SHAPE = (6, 7, 9)
Forward = Callable[[Tensor], Any]
ALL = slice(None)
PAIRS = torch.tensor([[0, 3, 2], [1, 1, 5]])
BATCH = "leave the batch axis first"
MAP = torch.randn(6, 7, 9)
MASK, CHANNELS = torch.rand(7, 9) > 0.5, torch.tensor([True, False, True, True, False, False])
PLACES = torch.from_numpy(np.random.default_rng(0).integers(0, 7, (1, 6, 4, 9)))
EYE = torch.triu_indices(7, 7)


def mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def put(index: Any, value: Any) -> Forward:
    """`y[index] = value` in a copy of the images, where `value` may be computed from them."""

    def run(x: Tensor) -> Tensor:
        y = x.clone()
        y[index(x) if callable(index) else index] = value(x) if callable(value) else value
        return y * 2

    return run


def put_into(start: float, index: Any, value: Any) -> Forward:
    """The same into a constant."""

    def run(x: Tensor) -> Tensor:
        y = torch.full(x.shape, start)
        y[index(x) if callable(index) else index] = value(x) if callable(value) else value
        return y + x

    return run


def scores_by_row(x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 6)
    for i in range(6):
        y[:, i] = x[:, i].mean((1, 2)) * i
    return y


INDEXES: dict[str, Forward] = {
    "tuples": lambda x: x[:, (0, 2, 5)] * 2,
    "pairs by tuples": lambda x: x[:, (0, 2, 5), (1, 0, 6)] * 2,
    "list": lambda x: x[:, [4, 0, -1, 5, 1]] * 2,
    "list of the last axis": lambda x: x[..., [-1, 0, -2]] * 2,
    "range and array": lambda x: x[:, range(3)] + x[:, np.array([0, 2, 2])],
    "one number as a tensor": lambda x: x[:, torch.tensor(3)] * 2,
    "table": lambda x: x[:, PAIRS] * 2,
    "table of rows": lambda x: x[:, 1:, PAIRS, 3] * 2,
    "table between new axes": lambda x: x[:, None, PAIRS, None] * 2,
    "lists together": lambda x: x[:, [0, 1, 2], [3, -4, 5]] * 2,
    "lists that broadcast": lambda x: x[:, [[0], [1]], [3, 4, 5]] * 2,
    "triangle": lambda x: x[:, :, EYE[0], EYE[1]] * 2,
    "mask of channels": lambda x: x[:, CHANNELS] * 2,
    "mask of pixels": lambda x: x[:, :, MASK] * 2,
    "number and list": lambda x: x[:, 0, [1, 2]] * 2,
    "list and number": lambda x: x[:, [1, 2], ::2, 3] * 2,
    "number, slice and list": lambda x: x[:, 3, 1:, [1, 2, 2]] * 2,
    "list and new axis": lambda x: x[:, [1, 2], None] + x[:, None, [0, 1]].transpose(1, 2),
    "bounds as tensors": lambda x: x[:, : torch.tensor(3), torch.tensor(2) :] * 2,
    "list, turned": lambda x: x.permute(1, 2, 0, 3)[[0, 2]].transpose(0, 2) * 2,
    "lists, turned": lambda x: x.permute(1, 2, 0, 3)[[0, 2], [1, 3]].permute(1, 0, 2) * 2,
    "index_select, turned": lambda x: (
        x.transpose(0, 3).index_select(0, torch.tensor([8, 0])).transpose(0, 3) * 2
    ),
    "flip": lambda x: x.flip(dims=(1, -1)) * 2,
    "flip, turned": lambda x: x.permute(1, 0, 2, 3).flip(0, 2).permute(1, 0, 2, 3) * 2,
    "roll, turned": lambda x: x.transpose(0, 2).roll((1, 2), (1, 0)).transpose(0, 2) * 2,
    "fliplr": lambda x: x.fliplr() * 2,
    "gather": lambda x: x.gather(2, PLACES.expand(len(x), -1, -1, -1)),
    "gather one list": lambda x: x.gather(
        1, torch.tensor([0, 5, 5]).view(1, 3, 1, 1).expand(len(x), 3, 7, 9)
    ),
    "gather a corner": lambda x: torch.gather(x, -1, PAIRS.view(1, 1, 2, 3).expand(len(x), 1, 2, 3)),
    "gather of vectors": lambda x: mean(x).gather(1, torch.tensor([[3, 3, 0]]).repeat(len(x), 1)),
    "take_along_dim": lambda x: torch.take_along_dim(x, PLACES, 2) + x.take_along_dim(PLACES[:, :, :, :1], 2),
}
BY_IMAGE: dict[str, Forward] = {
    "one place": lambda x: x[torch.arange(len(x)), torch.full((len(x),), 2)] * 2,
    "from the end": lambda x: x[torch.arange(x.size(0)), -1, :, -2] * 2,
    "of several axes": lambda x: x[torch.arange(len(x)), 1, torch.tensor([4] * len(x))] + 1,
    "by a range": lambda x: x[range(len(x)), [1] * len(x)] * 2,
    "images alone": lambda x: x[torch.arange(len(x))] * 2,
    "several places": lambda x: x[torch.arange(len(x))[:, None], torch.tensor([[0, 4, 2]])] * 2,
    "several places behind": lambda x: x[torch.arange(len(x))[:, None], :, [[6, 1]], 1:] * 2,
    "of a merged batch": lambda x: x.flatten(0, 1)[torch.arange(len(x) * 6), -1].view(len(x), 6, 9) * 2,
}
ASSIGNMENTS: dict[str, Forward] = {
    "to a list": put((ALL, [0, 3]), lambda x: x[:, [1, 2]] * 2),
    "to a list in another order": put((ALL, [4, 0, 2]), lambda x: x[:, :3] * 3),
    "to a list and a number": put((ALL, [4, 0, 2], 3), lambda x: x[:, :3, 0] * 3),
    "to a list from the end": put((ALL, [-1, -3], slice(2, -1)), lambda x: x[:, :2, 2:-1]),
    "to a mask of channels": put((ALL, CHANNELS), 0.25),
    "to every second channel": put((ALL, slice(None, None, 2)), lambda x: x[:, 1::2] * 2),
    "to every third row of seven": put((ALL, ALL, slice(1, None, 3)), lambda x: x[:, :, :2] * 2),
    "to steps of both axes": put((..., slice(None, None, 2), slice(2, None, 3)), 1.5),
    "to nothing": put((ALL, slice(3, 3)), 1.0),
    "one number for each image": put((ALL, 0, 0, 0), lambda x: x.mean((1, 2, 3))),
    "what is repeated": put((ALL, slice(0, 2)), lambda x: x.amax((2, 3), keepdim=True)[:, :2]),
    "into zeros": put_into(0.0, (ALL, ALL, 0, 0), mean),
    "into a constant": put_into(0.5, (ALL, [1, 4], ..., slice(None, None, 3)), lambda x: x[:, :2, :, :3]),
    "in a loop": scores_by_row,
    "by a mask": put(lambda x: x > 0.5, 0.25),
    "by a mask of itself": put(lambda x: x < 0, torch.tensor(0.5)),
    "by a mask of channels": put(lambda x: mean(x) > 0, -1.0),
    "by a mask of images": put(lambda x: x.mean((1, 2, 3)) > 0, -1.0),
    "by a mask into a constant": put_into(0.5, lambda x: x > 0, 1.0),
}
PARTS: dict[str, Forward] = {
    "diagonal": lambda x: x.diagonal(dim1=2, dim2=3) * 2,
    "diagonal beside": lambda x: x.diagonal(2, -1, -2) + torch.linalg.diagonal(x, offset=-2),
    "diagonal of distant axes": lambda x: torch.diagonal(x, -3, 1, 3) * 2,
    "diag_embed": lambda x: torch.diag_embed(mean(x)) + mean(x)[:, :, None],
    "diag_embed beside": lambda x: mean(x).diag_embed(2) * 2 - mean(x).diag_embed(-2),
    "diag_embed of axes": lambda x: x[:, :3, :2].diag_embed(1, 1, 3) + x[:, :3, :2].diag_embed(-1, 3, 1),
    "dstack": lambda x: torch.dstack([x, x * 2, x.relu()]),
    "dstack of vectors": lambda x: torch.dstack([mean(x), x.amax((2, 3))]),
    "column_stack": lambda x: torch.column_stack([x, x.relu()]),
    "column_stack of numbers": lambda x: torch.column_stack([mean(x)[:, 0], mean(x)]),
    "hsplit": lambda x: x.hsplit(3)[1] + torch.hsplit(x, [1, 3])[1],
    "dsplit": lambda x: x.dsplit((2, 5))[2] * x.dsplit((2, 5))[0],
}


@pytest.mark.parametrize("name", [*INDEXES, *BY_IMAGE, *ASSIGNMENTS, *PARTS])
def test_what_moves_numbers_gives_torchs(name: str) -> None:
    agrees({**INDEXES, **BY_IMAGE, **ASSIGNMENTS, **PARTS}[name], images(*SHAPE))


def test_a_mask_changes_nothing_else() -> None:
    """No sum that rounds: what is not chosen leaves no trace."""
    x = images(*SHAPE) * torch.tensor([1e-20, 1e20, 1.0])[:, None, None, None]
    packed = agrees(put(lambda x: x > 0, 1e20), x)
    assert float(abs(packed(x[:1].numpy())[x[:1].numpy() <= 0]).max()) < 1e-18


def test_images_of_any_size_keep_their_places() -> None:
    """Where the places follow the size; otherwise the network is packed for one."""

    def border(x: Tensor) -> Tensor:
        y = x * 1
        y[:, :, 1:-1, 1:-1] = 0
        return y

    for function in (border, INDEXES["flip"], PARTS["dsplit"], INDEXES["mask of pixels"]):
        packed = agrees(function, images(*SHAPE))
        if packed.program.variable:
            for size in ((11, 8), (14, 18)):
                x = images(6, *size)
                np.testing.assert_allclose(packed(x.numpy()), function(x).numpy(), rtol=1e-5, atol=1e-6)


IMAGES, COMPUTED = "chooses among images", "index computed from the input"
DIFFERS = "differs from image to image"
REFUSED: dict[str, tuple[Forward, str, str]] = {
    "computed mask": (lambda x: x[x > 0], COMPUTED, "torch.where"),
    "computed places": (lambda x: x[:, (x > 9).sum((1, 2, 3))], COMPUTED, "use slices"),
    "computed places of a constant": (lambda x: x * MAP[0, (x > 9).long()[0, 0, 0]].sum(), IMAGES, BATCH),
    "computed bound": (lambda x: x * MAP[: (x > 9).any((1, 2, 3)).long()[0]].sum(), IMAGES, BATCH),
    "images": (lambda x: x[[0, 1]] * 2, IMAGES, BATCH),
    "images in another order": (lambda x: x[torch.arange(len(x)).flip(0)] * 2, IMAGES, BATCH),
    "a place for each image": (lambda x: x[torch.arange(len(x)), torch.arange(len(x))], IMAGES, BATCH),
    "images and channels": (lambda x: x[[0, 1], [0, 1]] * 2, IMAGES, BATCH),
    "lists apart": (lambda x: x[:, [0, 1], :, [2, 3]], "lists of numbers that are apart", "one at a time"),
    "bytes": (lambda x: x[:, CHANNELS.to(torch.uint8)], "index of bytes", "index.long()"),
    "random places": (lambda x: x[:, torch.randperm(6)], "uses random numbers", "make them a buffer"),
    "nothing": (lambda x: x[:, []] * 2, "returns what does not depend", "from the input"),
    "an empty part": (lambda x: torch.tanh(x.dsplit([7])[1]), "tanh reads a tensor without", "empty parts"),
    "an empty output": (lambda x: x.dsplit([7])[1], "which has no numbers", "empty parts"),
    "diagonal of the batch": (lambda x: x.diagonal(), "diagonal chooses among images", BATCH),
    "flipud": (lambda x: x.flipud(), "flipud is not supported along the batch", BATCH),
    "vsplit": (lambda x: x.vsplit(1)[0], "vsplit is not supported", "docs/packing.md"),
    "gather among images": (lambda x: x.gather(0, torch.zeros(len(x), 1, 1, 1).long()), IMAGES, BATCH),
    "gather by computed places": (lambda x: x.gather(1, (x > 0).long()), COMPUTED, "same for every image"),
    "gather that differs": (lambda x: mean(x).gather(1, torch.arange(len(x))[:, None]), DIFFERS, "the same"),
    "take from all": (lambda x: x.take_along_dim(torch.tensor([3])), "without `dim`", "name the axis"),
    "put in images": (put(0, 1.0), IMAGES, BATCH),
    "put single numbers": (lambda x: _filled(torch.zeros(len(x)), mean(x)[:, 0]), "puts one number", "axis"),
    "put where a mask of pixels is": (put((ALL, ALL, MASK), 1.0), "slices, whole numbers and one list", ""),
    "put a map by a mask": (put(lambda x: x.mean((1, 2, 3)) > 0, MAP), "a mask and one number", "docs/"),
    "put into what differs": (lambda x: _into(torch.eye(len(x), 6), mean(x)[:, :2]), DIFFERS, "the same"),
    "put what differs": (lambda x: _into(mean(x), torch.eye(len(x), 2)), DIFFERS, "the same"),
}


def _filled(y: Tensor, value: Tensor) -> Tensor:
    y[:] = value
    return y


def _into(y: Tensor, value: Tensor) -> Tensor:
    y[:, 1:3] = value
    return y


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_index_and_a_remedy(name: str) -> None:
    function, reason, remedy = REFUSED[name]
    is_refused(Lambda(function), SHAPE, reason, remedy)


def test_a_value_of_fewer_axes_is_not_put_in_by_chance() -> None:
    """Two images and two channels: torch puts image i into channel i of every image."""
    model = Lambda(put((ALL, slice(0, 2), 0, 0), lambda x: x.mean((1, 2, 3))))
    is_refused(model, SHAPE, "puts shape", "as many axes")
