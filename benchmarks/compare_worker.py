"""Runs inside one version of the package, for compare_versions.py: calls as lines of JSON in, results out.

    python -S compare_worker.py '{"site": ..., "paths": [...], "options": {...}}' [FILE CALLS]

Only names that every version has are used; `pack` and `fused` have moved once. With FILE and CALLS, as under
valgrind, it loads the file, warms up and calls it the given number of times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from typing import Any

GIVEN = json.loads(sys.argv[1])
sys.path[:0] = [GIVEN["site"], *GIVEN["paths"]]

import numpy as np  # noqa: E402

models: dict[Any, Any] = {}
steps: dict[Any, Any] = {}


def image(model: Any, count: int = 1) -> np.ndarray:
    channels, height, width = model.program.input_shape
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels), np.uint8)


def pack(name: str, path: str) -> None:
    import torch

    from xnorpp.models import create_model

    try:
        from xnorpp.packing import pack_to_file
    except ImportError:
        from xnorpp.pack import pack_to_file  # type: ignore[no-redef]
    torch.manual_seed(0)
    shape = {"input_size": 224, "num_classes": 1000, "scale": "channel_height_width"}
    net = create_model("resnet18", **shape, **GIVEN["options"][name])
    pack_to_file(net.eval(), 224, path)


def load(name: str, path: str, threads: int) -> float:
    from xnorpp.runtime import load as open_model

    start = time.perf_counter()
    model = open_model(path, threads=threads)
    models[name, threads] = model, image(model)
    model(models[name, threads][1])
    return time.perf_counter() - start


def digest(name: str, threads: int) -> str:
    model, x = models[name, threads]
    channels, height, width = model.program.input_shape
    real = np.random.default_rng(1).standard_normal((2, channels, height, width)).astype(np.float32)
    return hashlib.sha256(model(x).tobytes() + model(real).tobytes()).hexdigest()


def call(name: str, threads: int, count: int) -> list[float]:
    model, x = models[name, threads]
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        model(x)
        taken.append(time.perf_counter() - start)
    return taken


def train(count: int) -> list[float]:
    """A training step on the CPU."""
    import torch

    if "cpu" not in steps:
        from xnorpp.models import create_model

        torch.set_num_threads(2)
        torch.manual_seed(0)
        net = create_model("resnet18", input_size=64, num_classes=200, scale="channel_height_width")
        net = net.to(memory_format=torch.channels_last)
        adam = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
        x = torch.randn(32, 3, 64, 64).to(memory_format=torch.channels_last)
        y = torch.randint(0, 200, (32,))

        def one() -> None:
            adam.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(net(x), y).backward()
            adam.step()

        steps["cpu"] = one
        one()
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        steps["cpu"]()
        taken.append(time.perf_counter() - start)
    return taken


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gpu_load(name: str, path: str, batch: int) -> list[Any]:
    """Seconds to the first answer, and a digest of the outputs of `batch` images that lie on the GPU."""
    import torch

    from xnorpp.runtime import load as open_model

    start = time.perf_counter()
    on_gpu = torch.cuda.is_available()
    model = open_model(path, device="cuda") if on_gpu else open_model(path)
    given = image(model, batch)
    x: Any = torch.from_numpy(given).cuda() if on_gpu else given
    out = model(x)
    _synchronize()
    models[name, "gpu"] = model, x
    numbers = out.cpu().numpy() if on_gpu else out
    return [time.perf_counter() - start, hashlib.sha256(numbers.tobytes()).hexdigest()]


def gpu_call(name: str, count: int) -> list[float]:
    """Seconds per call, from one window of `count` calls."""
    model, x = models[name, "gpu"]
    model(x)
    _synchronize()
    start = time.perf_counter()
    for _ in range(count):
        model(x)
    _synchronize()
    return [(time.perf_counter() - start) / count]


def gpu_prepare(size: int, batch: int) -> float:
    """A fused training step of ResNet-18, Case 4, the paper's block, recorded as a CUDA graph; the seconds
    that took."""
    import torch

    from xnorpp.models import PAPER_BLOCK, create_model
    from xnorpp.nn import parameter_groups

    try:
        from xnorpp.nn.fused.dispatch import backend, for_graph
    except ImportError:
        from xnorpp.nn.fused import backend, for_graph  # type: ignore[no-redef, attr-defined]
    begin = time.perf_counter()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    net = create_model("resnet18", method="xnor++", input_size=size, num_classes=200, **PAPER_BLOCK)
    net = net.to(device, memory_format=torch.channels_last).train()
    groups = parameter_groups(net, weight_decay=1e-5)
    adam = torch.optim.Adam(groups, lr=1e-3, fused=True, capturable=on_gpu)
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 200, (batch,), device=device)

    def one() -> None:
        with backend("fused" if on_gpu else "auto"), for_graph() if on_gpu else contextlib.nullcontext():
            adam.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                logits = net(x)
            torch.nn.functional.cross_entropy(logits.float(), y).backward()
            adam.step()

    if on_gpu:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                one()
        torch.cuda.current_stream().wait_stream(side)
        adam.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one()
        steps[size] = graph.replay, (net, adam, x, y, graph)  # the graph reads their memory
    else:
        steps[size] = one, ()
    steps[size][0]()
    _synchronize()
    return time.perf_counter() - begin


def gpu_train(size: int, count: int) -> list[float]:
    """Seconds per step, from one window of `count` steps."""
    step = steps[size][0]
    step()
    _synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    _synchronize()
    return [(time.perf_counter() - start) / count]


if len(sys.argv) > 2:
    load("one", sys.argv[2], 1)
    call("one", 1, int(sys.argv[3]))
else:
    for line in sys.stdin:
        function, arguments = json.loads(line)
        print("=> " + json.dumps(globals()[function](*arguments)), flush=True)
