"""A call recorded as a CUDA graph, for the tests of what runs inside of one."""

from __future__ import annotations

from collections.abc import Callable

import torch


def recorded(call: Callable[[], object]) -> Callable[[], None]:
    """`call` as a CUDA graph, after two calls on a stream of their own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
