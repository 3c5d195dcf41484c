"""A whole training step as one CUDA graph: forward, loss, backward, update, in a single launch.

The fused step of a binary ResNet-18 needs 11 ms of an H200 at 224 pixels and 4.5 ms at 64, but 23 and 26 ms
where Python starts each kernel by itself. A recorded step repeats the same kernels on the same memory, so all
that changes from step to step must be a tensor: the batch (copied into place), the learning rate, the
step's number, the annealed surrogate's progress. Random numbers follow the generator's seed, which is read at
every replay.

The first steps run one by one, on a stream of their own: they are ordinary steps of the run, and they compile
kernels and make the optimiser's tensors. Then the step is recorded, which computes nothing, and replayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xnorpp.nn.fused.dispatch import for_graph
from xnorpp.training.recipe.config import Recipe, RecipeError

WARM_UP = 3  # steps before recording

# a batch (images, labels and what else a step needs of them), the step's number -> loss; nothing in it may
# wait for the device
Update = Callable[[tuple[Tensor, ...], Tensor], Tensor]


def why_no_graph(recipe: Recipe, device: torch.device, world_size: int) -> str | None:
    """None where the run's steps can be replayed as a CUDA graph, else the reason."""
    run = recipe.run
    if run.cuda_graph == "off":
        return "`run.cuda_graph` is 'off'"
    if device.type != "cuda":
        return f"the run is on {device.type!r}, and CUDA graphs need a GPU"
    if world_size > 1:
        return f"{world_size} processes share their gradients in every step"
    if run.accumulate > 1:
        return f"`run.accumulate` (={run.accumulate}) takes a batch in several parts"
    if run.amp == "fp16":
        return "`run.amp` (='fp16') scales the loss, and whether a step counts is decided on the host"
    return None


def check_graph(recipe: Recipe, device: torch.device, world_size: int) -> str | None:
    """`why_no_graph`, as an error where the recipe insists."""
    reason = why_no_graph(recipe, device, world_size)
    if reason is not None and recipe.run.cuda_graph == "on":
        raise RecipeError(f"`run.cuda_graph` (='on') must be 'auto' or 'off' here, because {reason}.")
    return reason


class GraphStep:
    """`update` for batches of one shape, replayed once it has been recorded.

    `required`: an error where it cannot be recorded; otherwise the run continues step by step, and `say` gets
    the reason. The optimiser's learning rate becomes a tensor, which `optimizer.set_learning_rate` fills.
    """

    def __init__(
        self,
        update: Update,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        batch_size: int,
        *,
        channels_last: bool = False,
        required: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.update, self.optimizer, self.device, self.batch_size = update, optimizer, device, batch_size
        self.channels_last, self.required, self.say = channels_last, required, say
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        self.inputs: tuple[Tensor, ...] | None = None
        self.possible = True
        make_capturable(optimizer, device)
        self.reset()

    def reset(self) -> None:
        """Forget the recording, because the network or the optimiser's state is another one now."""
        self.replay: Callable[[], None] | None = None
        self.loss: Tensor | None = None
        self.steps = 0

    def __call__(self, batch: tuple[Tensor, ...], step: int) -> Tensor:
        """One step on this batch; its loss, not waited for."""
        self.number.fill_(step)
        if not self.possible or len(batch[0]) != self.batch_size:  # a streamed batch lacks unreadable images
            return self.update(batch, self.number)
        self._take(batch)
        if self.replay is None and self.steps >= WARM_UP:
            self._record()
            if not self.possible:
                return self._plain()
        if self.replay is None or self.loss is None:
            self.steps += 1
            with for_graph():
                return _aside(self._plain, self.device)
        self.replay()
        return self.loss.clone()

    def _plain(self) -> Tensor:
        assert self.inputs is not None
        return self.update(self.inputs, self.number)

    def _take(self, batch: tuple[Tensor, ...]) -> None:
        """The batch into the memory that the recorded step reads."""
        if self.inputs is None:
            memory = torch.channels_last if self.channels_last else torch.preserve_format
            images, *others = batch
            self.inputs = (
                torch.empty_like(images, memory_format=memory),
                *(torch.empty_like(one) for one in others),
            )
        for place, one in zip(self.inputs, batch, strict=True):
            place.copy_(one)

    def _record(self) -> None:
        """Recording runs nothing on the device, so a failure leaves the run as it was."""
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with for_graph():
                self.replay, self.loss = _record(self._plain, self.device)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if self.required:
                raise RecipeError(
                    f"`run.cuda_graph` (='on') must be 'auto' or 'off' here, because recording the step "
                    f"failed: {reason}"
                ) from error
            self.possible = False
            self.optimizer.zero_grad(set_to_none=True)
            self.say(f"Steps are launched one by one, not as a CUDA graph: recording failed ({reason}).")


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """The learning rate as one tensor on the device, which a recorded step reads again each time.

    Fused optimisers keep all else on the device already; Adam's `capturable` states that.
    """
    rate = torch.zeros((), device=device)
    for group in optimizer.param_groups:
        group["lr"] = rate
        if "capturable" in group and device.type == "cuda":  # pragma: cuda only
            group["capturable"] = True
    # Steps run one by one before recording; torch would warn of that.
    optimizer._warned_capturable_if_run_uncaptured = True


@functools.cache
def _side_stream(device: torch.device) -> Any:  # pragma: cuda only
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _aside(call: Callable[[], Tensor], device: torch.device) -> Tensor:  # pragma: cuda only
    """`call` on a stream of its own, as before a recording."""
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = call()
    main.wait_stream(side)
    result.record_stream(main)
    return result


def _record(call: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """`call` as a CUDA graph: what replays it, and the tensor that each replay writes its result to."""
    main = torch.cuda.current_stream(device)  # pragma: cuda only
    graph = torch.cuda.CUDAGraph()  # pragma: cuda only
    try:  # pragma: cuda only
        # Other threads may call CUDA meanwhile, such as the one that pins the batches of a loader.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = call()
    except BaseException:  # pragma: cuda only
        torch.cuda.set_stream(main)  # a recording that fails would leave its own stream current
        raise
    return graph.replay, result  # pragma: cuda only
