"""Forks a process for every command line of Python that it is sent; see `warm.py`.

Torch, and what a training imports of it, are imported once, before the first fork; nothing of xnorpp is, so
that each process imports that in its own order.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

IMPORTS = ("numpy", "torch", "torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg")


def become(job: dict[str, Any], streams: list[int]) -> None:
    """Makes this process, a child, what `python ...` is at its start, and runs the command line."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    paths = [entry for entry in job["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[0:1] = paths
    kind, *rest = job["command"]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = [kind, *rest]
        main.__file__ = kind
        exec(compile(Path(kind).read_bytes(), kind, "exec"), vars(main))


def receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request, which is a line of JSON behind its length, and the open files that came with it."""
    head, descriptors, _, _ = socket.recv_fds(link, 8, 3)
    if len(head) < 8:
        return None, []
    left, parts = int.from_bytes(head, "big"), []
    while left:
        parts.append(link.recv(left))
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), list(descriptors)


def serve(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answers requests; returns in each child, with its job."""
    while True:
        request, descriptors = receive(link)
        if request is None:
            return None
        if "command" in request:
            pid = os.fork()
            if pid == 0:
                link.close()
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            answer: Any = pid
        else:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        link.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the test run; children get Python's own handler back
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    if job is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become(*job)
