"""The HTTP interface: a Starlette application around a `Batcher`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import xnorpp
from xnorpp.runtime import PackedModel
from xnorpp.runtime.choices import check_whole
from xnorpp.runtime.predict import Guess, printable
from xnorpp.serve.batches import Batcher, Busy, Stopping
from xnorpp.serve.metrics import Metrics

MOST_CLASSES = 1000


@dataclass(frozen=True)
class ServerLimits:
    """What one client may ask for.

    Attributes:
        image_bytes: The largest request body; a larger one is answered with status 413.
        seconds: The time for one request, its upload included; after it the answer is 408 or 504.
        waiting: Images that may wait at a time; beyond it the answer is 503.

    Example:
        >>> ServerLimits(image_bytes=2_000_000).seconds
        10.0
    """

    image_bytes: int = 10_000_000
    seconds: float = 10.0
    waiting: int = 256

    def __post_init__(self) -> None:
        check_whole("image_bytes", self.image_bytes)
        check_whole("waiting", self.waiting)
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"`seconds` (={self.seconds}) must be a finite number above 0")


def create_app(
    model: PackedModel,
    *,
    name: str = "model",
    workers: int = 2,
    batch: int = 8,
    limits: ServerLimits | None = None,
) -> Starlette:
    """An ASGI application that classifies images.

    `POST /predict` takes an encoded image as its body, or a form with a file; `?top=K` sets how many classes
    are returned. `GET /healthz`, `GET /metrics` (Prometheus) and `GET /` (a page to try it) are there too.

    Args:
        model: A packed model that classifies images; load it with `threads=1`.
        name: What the page and the answers call it.
        workers: Threads that decode and run batches.
        batch: Images per call of the model, at most.
        limits: What one client may ask for.

    Raises:
        ValueError: The model does not classify images.

    Example:
        >>> app = create_app(xnorpp.load("cifar10-resnet20", threads=1), workers=1)
        >>> sorted(route.path for route in app.routes)
        ['/', '/healthz', '/metrics', '/predict']
    """
    if not isinstance(model, PackedModel):
        raise TypeError(
            f"`model` is {type(model).__name__}; a PackedModel is needed, which "
            "xnorpp.load(path, threads=1) gives"
        )
    if limits is not None and not isinstance(limits, ServerLimits):
        raise TypeError(f"`limits` is {type(limits).__name__}; a ServerLimits is needed")
    allowed = limits or ServerLimits()
    metrics, name = Metrics(), str(name)
    batcher = Batcher(model, workers=workers, batch=batch, waiting=allowed.waiting, metrics=metrics)
    page = (files("xnorpp.serve") / "page.html").read_text(encoding="utf-8").replace("NAME", _escaped(name))

    async def answer(request: Request) -> tuple[Guess, ...]:
        top = _top(request)
        return await batcher.submit(await _image(request, allowed.image_bytes), top)

    async def predict(request: Request) -> Response:
        start = time.monotonic()
        try:
            found = await asyncio.wait_for(answer(request), allowed.seconds)
            body = {"model": name, "predictions": [asdict(guess) for guess in found]}
            response: Response = JSONResponse(body)
        except HTTPException as error:
            response = _refusal(error.status_code, error.detail)
        except Busy as error:
            response = _refusal(503, f"{error}; try again in a moment", {"Retry-After": "1"})
        except Stopping as error:
            response = _refusal(503, str(error), {"Connection": "close"})
        except asyncio.TimeoutError:  # not the built-in one before Python 3.11
            response = _refusal(504, f"no answer within {allowed.seconds:g} seconds")
        except ValueError as error:
            response = _refusal(400, str(error))
        except ClientDisconnect:
            response = _refusal(499, "the client closed the connection")
        metrics.request(response.status_code, time.monotonic() - start)
        return response

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "model": name, "xnorpp": xnorpp.__version__})

    async def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.text(batcher.waiting), media_type="text/plain; version=0.0.4")

    async def home(_: Request) -> Response:
        return HTMLResponse(page)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    app = Starlette(
        routes=[
            Route("/", home),
            Route("/healthz", healthz),
            Route("/metrics", show_metrics),
            Route("/predict", predict, methods=["POST"]),
        ],
        lifespan=lifespan,
    )
    app.state.batcher = batcher
    return app


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": printable(text)}, status, headers)


def _top(request: Request) -> int:
    text = request.query_params.get("top", "5")
    if not text.isdecimal() or not 1 <= int(text) <= MOST_CLASSES:
        raise HTTPException(400, f"`top` (={text!r}) must be a whole number from 1 to {MOST_CLASSES}")
    return int(text)


async def _image(request: Request, most: int) -> bytes:
    """The encoded image of a request: its body, or the first file of a form."""
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise HTTPException(413, f"the image has {stated} bytes; {most} are allowed")
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=1, max_fields=8, max_part_size=most) as form:
            for value in form.values():
                if not isinstance(value, str):
                    blob = await value.read()
                    return _checked(blob, most)
        raise HTTPException(400, "the form has no file; send the image as a file or as the body")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"the image has more than the {most} bytes that are allowed")
        parts.append(part)
    return _checked(b"".join(parts), most)


def _checked(blob: bytes, most: int) -> bytes:
    if not blob:
        raise HTTPException(400, "the body is empty; send an encoded image (JPEG, PNG, ...) as the body")
    if len(blob) > most:
        raise HTTPException(413, f"the image has {len(blob)} bytes; {most} are allowed")
    return blob


def _escaped(text: str) -> str:
    return "".join(f"&#{ord(one)};" if not one.isalnum() and one not in " .-_" else one for one in text)
