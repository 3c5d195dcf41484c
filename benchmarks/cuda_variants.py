"""The variants of a training step that `cuda_training.py` compares, and how each is built and run."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.models import create_model
from xnorpp.nn import BinaryConv2d, fused, fused_pool, parameter_groups

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

# name: (method, backend, recompute, compile mode or None, whole step as a CUDA graph, seconds it may need)
VARIANTS: dict[str, tuple[str, str, bool, str | None, bool, float]] = {
    "real eager": ("real", "reference", False, None, False, 8),
    "real graph": ("real", "reference", False, None, True, 8),
    "fused eager": ("xnor++", "fused", False, None, False, 35),
    "fused graph": ("xnor++", "fused", False, None, True, 12),
    "recompute eager": ("xnor++", "fused", True, None, False, 12),
    "recompute graph": ("xnor++", "fused", True, None, True, 12),
    "binary eager": ("xnor++", "reference", False, None, False, 10),
    "real compiled": ("real", "reference", False, "default", False, 60),
    "real compiled graph": ("real", "reference", False, "default", True, 30),
    "fused compiled": ("xnor++", "fused", False, "default", False, 40),
    "binary compiled": ("xnor++", "reference", False, "default", False, 80),
    "binary compiled graph": ("xnor++", "reference", False, "default", True, 30),
    "real max-autotune": ("real", "reference", False, "max-autotune-no-cudagraphs", False, 150),
}
SHORT = (
    "real eager,fused eager,fused graph,recompute graph,real graph,binary eager,"
    "real compiled,real compiled graph"
)


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def clean() -> None:
    gc.collect()
    torch._dynamo.reset()
    if CUDA:
        torch.cuda.empty_cache()


@contextlib.contextmanager
def guarded(name: str, errors: dict[str, str]) -> Iterator[None]:
    """Lets the rest go on when one part fails; keeps the end of its traceback."""
    try:
        yield
    except Exception:
        errors[name] = traceback.format_exc()[-1500:]
        print(f"!! {name} failed:\n{errors[name]}", flush=True)


def adopt_chains(model: nn.Module) -> None:
    """Lets the blocks, shortcuts and stem of a ResNet go through `fused.chain` and `fused_pool.stem_end`."""

    def block_forward(block: Any) -> Callable[[Tensor], Tensor]:
        first = fused.Unit(block.bn1, block.conv1, block.act1, block.before1)
        second = fused.Unit(block.bn2, block.conv2, block.act2, block.before2)
        down = block.downsample

        def forward(x: Tensor) -> Tensor:
            shortcut = down(x)
            if block.shortcut_per_conv:
                x = fused.chain(x, (first,), shortcut)
                return fused.chain(x, (second,), x)
            return fused.chain(x, (first, second), shortcut)

        return forward

    def down_forward(down: Any) -> Callable[[Tensor], Tensor]:
        unit = fused.Unit(down.norm, down.conv)
        return lambda x: fused.chain(down.pool(x), (unit,))

    for module in model.modules():
        if hasattr(module, "shortcut_per_conv"):
            down: Any = module.downsample
            if isinstance(down, nn.Sequential) and isinstance(down.conv, BinaryConv2d):
                down.forward = down_forward(down)
            module.forward = block_forward(module)  # type: ignore[method-assign]
    stem: Any = model
    if isinstance(stem.maxpool, nn.MaxPool2d):
        norm, activation, pool = stem.bn1, stem.act1, stem.maxpool
        stem.bn1, stem.act1 = nn.Identity(), nn.Identity()

        class StemEnd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.activation, self.pool = norm, activation, pool

            def forward(self, x: Tensor) -> Tensor:
                return fused_pool.stem_end(x, self.norm, self.activation, self.pool)

        stem.maxpool = StemEnd()


class Step:
    """A training step of one variant: `run(x, labels)` gives the loss."""

    def __init__(
        self, variant: str, size: int, classes: int, model_name: str, seed: int = 0, lr: float = 1e-3
    ) -> None:
        method, self.backend, self.recompute, mode, self.graph, _ = VARIANTS[variant]
        torch.manual_seed(seed)
        self.model = create_model(model_name, method=method, input_size=size, num_classes=classes)
        if method != "real":
            adopt_chains(self.model)
        self.model = self.model.to(DEVICE, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.Adam(
            parameter_groups(self.model, weight_decay=1e-5), lr=lr, fused=True, capturable=self.graph and CUDA
        )
        self.forward: Callable[[Tensor], Tensor] = self.model
        if mode is not None:
            self.forward = torch.compile(self.model, mode=mode)
        self.replay: Callable[[], None] | None = None

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=not self.graph):
            logits = self.forward(x)
        return F.cross_entropy(logits.float(), labels)

    def plain(self, x: Tensor, labels: Tensor) -> Tensor:
        with fused.backend(self.backend, self.recompute):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(x, labels)
            loss.backward()
            self.optimizer.step()
        return loss.detach()

    def gradients(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with fused.backend(self.backend, self.recompute):
            self.model.zero_grad(set_to_none=True)
            self.loss(x, labels).backward()
        found = {
            name: p.grad.float().clone() for name, p in self.model.named_parameters() if p.grad is not None
        }
        self.model.zero_grad(set_to_none=True)
        return found

    def capture(self, x: Tensor, labels: Tensor) -> None:
        """Records the whole step into a CUDA graph that reads the given batch's memory."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self.plain(x, labels)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.captured_loss = self.plain(x, labels)
        self.replay = graph.replay
