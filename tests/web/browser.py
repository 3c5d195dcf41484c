"""A headless Chromium and the server it talks to: pages post what they found."""

from __future__ import annotations

import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "web" / "dist"
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
]


def chromium() -> str | None:
    """The browser that is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """The address of a server of `folder`, and what pages post to `result`."""
    results: queue.Queue[Any] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            results.put(json.loads(body))

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", results
    finally:
        server.shutdown()
        thread.join()


def result_of(folder: Path, page: str, seconds: float = 120, flags: tuple[str, ...] = ()) -> Any:
    """What a page posts."""
    browser = chromium()
    assert browser is not None
    with served(folder) as (address, results), tempfile.TemporaryDirectory() as profile:
        command = [browser, *FLAGS, *flags, f"--user-data-dir={profile}", address + page]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                return results.get(timeout=seconds)
            finally:
                process.terminate()
                process.wait(20)
