"""The variants of a training step that `cuda_training.py` compares, and how each is built and run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.nn import parameter_groups
from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused import ends as fused_pool

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

# name: (method, backend, recompute, compile mode or None, whole step as a CUDA graph, seconds it may need)
VARIANTS: dict[str, tuple[str, str, bool, str | None, bool, float]] = {
    "real eager": ("real", "reference", False, None, False, 8),
    "real graph": ("real", "reference", False, None, True, 8),
    "real own ends graph": ("real", "auto", False, None, True, 8),
    "real compiled": ("real", "reference", False, "default", False, 30),
    "real compiled graph": ("real", "reference", False, "default", True, 15),
    "real max-autotune": ("real", "reference", False, "max-autotune-no-cudagraphs", False, 150),
    "fused eager": ("xnor++", "fused", False, None, False, 15),
    "fused graph": ("xnor++", "fused", False, None, True, 8),
    "recompute eager": ("xnor++", "fused", True, None, False, 8),
    "recompute graph": ("xnor++", "fused", True, None, True, 8),
    "fused": ("xnor++", "auto", False, None, True, 10),
    "binary graph": ("xnor++", "reference", False, None, True, 8),
    "binary eager": ("xnor++", "reference", False, None, False, 8),
    "binary compiled": ("xnor++", "reference", False, "default", False, 40),
    "binary compiled graph": ("xnor++", "reference", False, "default", True, 25),
}
SHORT = (
    "real compiled,real compiled graph,fused graph,recompute graph,fused eager,"
    "fused graph/plain stem,fused graph/plain head,fused graph/large tiles,fused graph/many programs,"
    "fused graph/no moments,real own ends graph,binary compiled graph"
)


def _no(*_: Any) -> bool:
    return False


# After a slash, a choice made otherwise than by default: (where, what, value).
TWEAKS: dict[str, list[tuple[Any, str, Any]]] = {
    "plain stem": [(fused_pool, "use_stem_conv", _no)],
    "plain head": [(fused_pool, "use_head", _no)],
    "plain stem end": [(fused_pool, "use_stem_end", _no)],
    "large tiles": [("fused.ops", "TILE_ELEMENTS", 1024)],
    "many programs": [("fused.ops", "PROGRAMS", 3200)],
    "few programs": [("fused.ops", "PROGRAMS", 800)],
    "one stream": [("fused.unit", "runs_aside", _no)],
    "no branch": [("fused.unit", "runs_branch", _no)],
    "not late": [("fused.unit", "joins_late", _no)],
    "two streams": [("fused.unit", "runs_branch", _no), ("fused.unit", "joins_late", _no)],
    "plain weights": [("fused.unit", "clamp_of", lambda conv: None)],
    "no moments": [("fused.chain", "moments_left_on", lambda x: None)],
}


@contextlib.contextmanager
def tweaked(name: str) -> Iterator[None]:
    """The choice behind a variant's slash, made for the duration of a `with` block."""
    kept = []
    for where, what, value in TWEAKS[name.partition("/")[2]] if "/" in name else []:
        module = importlib.import_module(f"xnorpp.nn.{where}") if isinstance(where, str) else where
        kept.append((module, what, getattr(module, what)))
        setattr(module, what, value)
    try:
        yield
    finally:
        for module, what, value in kept:
            setattr(module, what, value)


def settings(variant: str) -> tuple[str, str, bool, str | None, bool, float]:
    return VARIANTS[variant.partition("/")[0]]


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
    """Lets the rest continue when one part fails; keeps the end of its traceback."""
    try:
        yield
    except Exception:
        errors[name] = traceback.format_exc()[-1500:]
        print(f"!! {name} failed:\n{errors[name]}", flush=True)


class Step:
    """A training step of one variant: `run(x, labels)` gives the loss."""

    def __init__(
        self,
        variant: str,
        size: int,
        classes: int,
        model_name: str,
        seed: int = 0,
        lr: float = 1e-3,
        build: Callable[[str], nn.Module] | None = None,
    ) -> None:
        """`build` makes the network of a method; without it `create_model` does."""
        method, self.backend, self.recompute, mode, self.graph, _ = settings(variant)
        torch.manual_seed(seed)
        self.model: nn.Module
        if build is not None:
            self.model = build(method)
        else:
            self.model = create_model(
                model_name, method=method, input_size=size, num_classes=classes, **PAPER_BLOCK
            )
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
        recorded = fused.for_graph() if self.graph else contextlib.nullcontext()
        with fused.backend(self.backend, self.recompute), recorded:
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

    def start_graph(self, x: Tensor, labels: Tensor) -> None:
        """`capture` without leaving a trace of its warm-up steps in weights, statistics and optimizer."""
        state = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
        self.inputs = (x.clone(memory_format=torch.preserve_format), labels.clone())
        self.capture(*self.inputs)
        self.model.load_state_dict(state)
        for values in self.optimizer.state.values():
            for value in values.values():
                value.zero_()

    def next(self, x: Tensor, labels: Tensor) -> Tensor:
        """A step on this batch, through the graph where the variant has one."""
        if not (self.graph and CUDA):
            return self.plain(x, labels)
        if self.replay is None:
            self.start_graph(x, labels)
        self.inputs[0].copy_(x)
        self.inputs[1].copy_(labels)
        assert self.replay is not None
        self.replay()
        return self.captured_loss.clone()
