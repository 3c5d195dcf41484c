"""The networks: `create_model` builds one by name, `list_models` names them."""

from __future__ import annotations

from xnorpp.models.blocks import ACTIVATIONS, Options
from xnorpp.models.registry import NETWORKS, Network, create_model, list_models

__all__ = ["ACTIVATIONS", "NETWORKS", "Network", "Options", "create_model", "list_models"]
