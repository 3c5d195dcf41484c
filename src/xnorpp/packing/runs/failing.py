"""The error of a model that does not run on its example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from xnorpp.nn.controls import evaluating
from xnorpp.packing.calls import failing_line
from xnorpp.packing.example import as_weights_are
from xnorpp.packing.graph import PackError
from xnorpp.packing.runs.state import unchanged

# What a model raises that an example does not fit, or that the trace does not follow.
_RAISED = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)


@contextmanager
def failures_of(
    model: nn.Module, given: Sequence[Tensor], tried: Sequence[Tensor], name: str = "example"
) -> Iterator[None]:
    """What a model raises in a trace as the error of `failure`; an obstacle stays what it is."""
    try:
        yield
    except PackError:
        raise
    except _RAISED as error:
        raise failure(model, given, tried, error, name) from error


def failure(
    model: nn.Module,
    given: Sequence[Tensor],
    tried: Sequence[Tensor],
    error: Exception,
    name: str = "example",
) -> ValueError:
    """The error of a model that raised on the images that were `tried`, the first ones of those `given`."""
    reason, line = str(error).partition("\n")[0].rstrip("."), failing_line(error)
    reason = f"{reason}; {line}" if line else reason
    if _runs(model, tried):
        remedy = "please report it; xnorpp.pack_submodules packs the modules around it"
        kind = type(error).__name__
        return PackError(f"the model runs, and its trace fails ({kind}: {reason}): {remedy}")
    if len(given[0]) != len(tried[0]) and _runs(model, given):
        counts = f"{len(given[0])} images, and not on {len(tried[0])}"
        return ValueError(
            f"the model runs on {counts} ({reason}); take their number from the input, x.shape[0]"
        )
    shapes = ", ".join(str(tuple(x.shape)) for x in tried)
    return ValueError(f"`{name}` of shape {shapes} is none that the model runs on ({reason})")


def _runs(model: nn.Module, given: Sequence[Tensor]) -> bool:
    try:
        with unchanged(model), evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*as_weights_are(model, given))
    except Exception:  # whatever the user's model raises
        return False
    return True
