"""`xnorpp serve`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from xnorpp.cli.command import Parser, at_least, load_packed, one_model


def serve(arguments: list[str]) -> int:
    """Answers POST /predict with the classes of the image in the request's body, until it is stopped. SIGTERM
    and Ctrl-C let the requests that are under way finish. GET / is a page to try it, GET /healthz and
    GET /metrics are for monitoring. There is no authentication: put it behind a proxy to publish it.
    Needs the extra xnorpp[serve].
    """
    parser = Parser(
        "serve",
        serve,
        """
        xnorpp serve cifar10-resnet18
        xnorpp serve model.xnor --port 9000 --workers 4
        curl --data-binary @photo.jpg 'localhost:8000/predict?top=3'
        """,
    )
    parser.add_argument("model", metavar="MODEL", help="a packed file, or the name of a shipped model")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=at_least(0), default=8000, help="the port (default: 8000)")
    parser.add_argument(
        "--workers", metavar="N", type=at_least(1),
        help="threads that decode images and run the model (default: one per core)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", metavar="N", type=at_least(1), default=8, help="images per call, at most (default: 8)"
    )
    parser.add_argument(
        "--max-bytes", metavar="N", type=at_least(1), default=10_000_000,
        help="the largest image that is accepted (default: 10000000)",
    )  # fmt: skip
    parser.add_argument(
        "--max-waiting", metavar="N", type=at_least(1), default=256,
        help="images that may wait; further requests get status 503 (default: 256)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=10.0, help="time per request (default: 10)"
    )
    parser.add_argument("--isa", metavar="NAME", help="use the kernels of this instruction set")
    given = parser.parse_args(arguments)
    if not 0 < given.timeout < float("inf"):
        raise ValueError(f"`--timeout` (={given.timeout:g}) must be above 0 and finite")
    if given.port > 65535:
        raise ValueError(f"`--port` (={given.port}) must be at most 65535")
    _check_address(given.host, given.port)
    given.device, given.threads = "cpu", 1
    path = one_model(given.model, None)
    model = load_packed(path, given)
    try:
        import uvicorn

        from xnorpp.serve import ServerLimits, create_app
    except ModuleNotFoundError as error:
        raise ValueError(
            f"this command needs {error.name}; install it with `pip install 'xnorpp[serve]'`"
        ) from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    app = create_app(
        model,
        name=Path(path).stem,
        workers=given.workers or cores,
        batch=given.batch,
        limits=ServerLimits(given.max_bytes, given.timeout, given.max_waiting),
    )
    # uvicorn ends gracefully and then raises the signal again, which would end the process with an error.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app, host=given.host, port=given.port, log_level="info", access_log=False,
        timeout_graceful_shutdown=int(given.timeout) + 1,
    )  # fmt: skip
    return 0


def _check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before the model is loaded."""
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":  # as the server does: a port that was just in use is free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"`--host` (={host!r}) and `--port` (={port}) must be an address of this machine that is free: "
            f"{reason}"
        ) from None
