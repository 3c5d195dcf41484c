"""`xnorpp serve` answers as the model itself does, refuses what it must, and loses nothing when stopped."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import xnorpp
from xnorpp.cli.main import main
from xnorpp.runtime.decode import CorruptImageError

pytest.importorskip("uvicorn", reason="NOT RUN: xnorpp[serve] is not installed")
from xnorpp.serve import Batcher, Busy, Stopping, create_app
from xnorpp.serve.metrics import Metrics

NAME = "cifar10-resnet20"


def encoded(seed: int = 0, size: tuple[int, int] = (40, 32)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def model() -> xnorpp.PackedModel:
    return xnorpp.load(NAME, threads=1)


class Server:
    """A server process on a free port."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "xnorpp", "serve", NAME, "--port", str(self.port), *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        for _ in range(600):
            try:
                self.ask("GET", "/healthz")
                return
            except OSError:
                assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        is_json = (reply.getheader("content-type") or "").startswith("application/json")
        return reply.status, json.loads(content) if is_json else content.decode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server("--max-bytes", "20000", "--workers", "2")
    yield running
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(60)


def test_the_answers_are_those_of_the_model(server: Server, model: xnorpp.PackedModel) -> None:
    for seed in range(4):
        status, found = server.ask("POST", "/predict?top=3", encoded(seed))
        assert status == 200
        expected = model.classify(encoded(seed), top=3)
        assert [(one["label"], one["index"]) for one in found["predictions"]] == [
            (guess.label, guess.index) for guess in expected
        ]
        assert found["predictions"][0]["probability"] == pytest.approx(expected[0].probability, abs=1e-6)


def test_a_form_is_accepted_too(server: Server, model: xnorpp.PackedModel) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    body = head + encoded(7) + b"\r\n--x--\r\n"
    status, found = server.ask("POST", "/predict", body, content_type="multipart/form-data; boundary=x")
    assert status == 200
    assert found["predictions"][0]["label"] == model.classify(encoded(7), top=1)[0].label


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/predict", b"not an image", 400, "not a recognised image format"),
        ("/predict", b"", 400, "the body is empty"),
        ("/predict?top=0", b"x", 400, "`top` (='0') must be a whole number from 1 to 1000"),
        ("/predict", bytes(20001), 413, "the image has 20001 bytes; 20000 are allowed"),
    ],
)
def test_a_bad_request_gets_one_sentence(
    server: Server, path: str, body: bytes, status: int, text: str
) -> None:
    got, found = server.ask("POST", path, body)
    assert got == status
    assert text in found["error"]


def test_a_body_without_a_stated_length_is_limited_too(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    parts = (bytes(4096) for _ in range(8))
    connection.request(
        "POST", "/predict", parts, encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
    )
    assert connection.getresponse().status == 413


def test_monitoring_and_the_page(server: Server) -> None:
    server.ask("POST", "/predict", encoded())
    status, text = server.ask("GET", "/metrics")
    assert status == 200
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(counts['xnorpp_requests_total{status="200"}']) >= 1
    assert int(counts["xnorpp_images_total"]) >= int(counts["xnorpp_batches_total"]) >= 1
    status, page = server.ask("GET", "/")
    assert status == 200
    assert f"<title>{NAME}</title>" in page


def test_sigterm_lets_requests_that_are_under_way_finish() -> None:
    server = Server("--workers", "1")
    blob = encoded(3)
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(blob)}\r\nConnection: close\r\n\r\n"
    clients = []
    for _ in range(12):
        client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        client.sendall(head.encode() + blob[:100])
        clients.append(client)
    time.sleep(0.5)  # the server has read the first part of each
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    for client in clients:
        client.sendall(blob[100:])
    for client in clients:
        answer = b"".join(iter(lambda client=client: client.recv(65536), b""))  # type: ignore[misc]
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert server.process.wait(60) == 0


def test_a_full_queue_is_refused_and_what_waits_is_answered(model: xnorpp.PackedModel) -> None:
    batcher = Batcher(model, workers=1, batch=2, waiting=3)

    async def many() -> list[Any]:
        return await asyncio.gather(*(batcher.submit(encoded(i)) for i in range(40)), return_exceptions=True)

    found = asyncio.run(many())
    refused = [one for one in found if isinstance(one, Busy)]
    answered = [one for one in found if isinstance(one, tuple)]
    assert refused
    assert len(answered) >= 3
    assert len(refused) + len(answered) == 40
    batcher.close()
    with pytest.raises(Stopping, match="is being stopped"):
        asyncio.run(batcher.submit(encoded()))


def test_one_bad_image_does_not_spoil_the_batch(model: xnorpp.PackedModel) -> None:
    metrics = Metrics()
    batcher = Batcher(model, workers=1, batch=8, metrics=metrics)

    async def three() -> list[Any]:
        blobs = (encoded(1), b"bad", encoded(2))
        return await asyncio.gather(*(batcher.submit(blob, 1) for blob in blobs), return_exceptions=True)

    first, bad, last = asyncio.run(three())
    batcher.close()
    assert first == model.classify(encoded(1), top=1)
    assert last == model.classify(encoded(2), top=1)
    assert isinstance(bad, CorruptImageError)
    assert "xnorpp_images_total 2" in metrics.text(0)


def test_create_app_refuses_what_does_not_classify(model: xnorpp.PackedModel) -> None:
    with pytest.raises(ValueError, match=r"`workers` \(=0\) must be at least 1"):
        create_app(model, workers=0)


def test_bad_options_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", NAME, "--timeout", "0"]) == 2
    assert main(["serve", NAME, "--port", "70000"]) == 2
    assert main(["serve", "nothing.xnor"]) == 2
    errors = capsys.readouterr().err
    assert "`--timeout` (=0) must be above 0" in errors
    assert "`--port` (=70000) must be at most 65535" in errors
