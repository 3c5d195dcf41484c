"""The networks: `create_model` builds one by name, `list_models` names them, `register_model` adds one."""

from __future__ import annotations

from xnorpp.models import alexnet, reactnet, resnet, small  # noqa: F401  (importing a family registers it)
from xnorpp.models.blocks import ACTIVATIONS, PAPER_BLOCK, Options
from xnorpp.models.registry import NETWORKS, Network, create_model, list_models, register_model

__all__ = [
    "ACTIVATIONS",
    "NETWORKS",
    "PAPER_BLOCK",
    "Network",
    "Options",
    "create_model",
    "list_models",
    "register_model",
]
