"""Side by side with the other engines, in turns. Importing this imports neither torch nor a peer."""

from __future__ import annotations

from xnorpp.bench.avx2 import CannotMask, hidden, restart
from xnorpp.bench.compare import Comparison, Result, compare, default_program, open_program
from xnorpp.bench.layers import ChainResult, bench_layers
from xnorpp.bench.machine import describe_machine
from xnorpp.bench.real_layers import bench_real_layers
from xnorpp.bench.startup import Startup, measure_commands, measure_startup
from xnorpp.bench.throughput import Throughput, measure_throughput

__all__ = [
    "CannotMask",
    "ChainResult",
    "Comparison",
    "Result",
    "Startup",
    "Throughput",
    "bench_layers",
    "bench_real_layers",
    "compare",
    "default_program",
    "describe_machine",
    "hidden",
    "measure_commands",
    "measure_startup",
    "measure_throughput",
    "open_program",
    "restart",
]
