"""A packed model over HTTP: `xnorpp serve MODEL`, or `create_app` for a server of your own.

Needs the extra `xnorpp[serve]`: Starlette and uvicorn.
"""

from __future__ import annotations

from xnorpp.serve.app import ServerLimits, create_app
from xnorpp.serve.batches import Batcher, Busy, Stopping

__all__ = ["Batcher", "Busy", "ServerLimits", "Stopping", "create_app"]
