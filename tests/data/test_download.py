from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import load_dataset
from xnorpp.data.download import Archive, DownloadError, fetch, unpack
from xnorpp.data.formats import cifar, mnist, tiny_imagenet
from xnorpp.data.progress import Progress


class Server(ThreadingHTTPServer):
    """Serves `files`, each answer cut after `cut` bytes; `ranges`: honour them; `log`: those asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.ranges = True
        self.log: list[str | None] = []

    def archive(self, name: str, data: bytes, md5: str | None = None) -> Archive:
        self.files[f"/{name}"] = data
        url = f"http://127.0.0.1:{self.server_address[1]}/{name}"
        return Archive(url, md5 or hashlib.md5(data).hexdigest())


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.log.append(wanted)
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        stop = len(data) if self.server.cut is None else start + self.server.cut
        self.wfile.write(data[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


DATA = bytes(range(256)) * 40


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    archive = server.archive("a.bin", DATA)
    path = fetch(archive, tmp_path / "new")
    assert path.read_bytes() == DATA
    assert fetch(archive, tmp_path / "new") == path
    assert server.log == [None]
    path.write_bytes(b"damaged since")
    assert fetch(archive, tmp_path / "new").read_bytes() == DATA


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    archive = server.archive("a.bin", DATA, md5="0" * 32)
    with pytest.raises(
        DownloadError, match=r"has md5 [0-9a-f]{32} where 0{32} was expected; it has been deleted"
    ):
        fetch(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_fetch_continues(server: Server, tmp_path: Path, ranges: bool) -> None:
    archive = server.archive("a.bin", DATA)
    server.cut, server.ranges = 4000, ranges
    with pytest.raises(DownloadError, match=r"failed .*early.*4,000 bytes are stored"):
        fetch(archive, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
    server.cut = None
    assert fetch(archive, tmp_path).read_bytes() == DATA
    assert server.log == [None, "bytes=4000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_killed_after_the_last_byte(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(DATA)
    assert fetch(server.archive("a.bin", DATA), tmp_path).read_bytes() == DATA


def test_nothing_there_and_nobody_there(server: Server, tmp_path: Path) -> None:
    archive = server.archive("a.bin", DATA)
    server.files.clear()
    with pytest.raises(DownloadError, match="404"):
        fetch(archive, tmp_path)
    with pytest.raises(DownloadError, match="failed"):
        fetch(Archive("http://127.0.0.1:1/a.bin", "0" * 32), tmp_path)


def packed(kind: str, files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as package:
            for name, data in files.items():
                package.writestr(name, data)
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture(params=["this Python", "a Python without filters"])
def filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """tarfile as it is, and as it was before 3.10.12 and 3.11.4."""
    if request.param != "this Python":
        extract = tarfile.TarFile.extractall

        def old(self: tarfile.TarFile, path: Path) -> None:
            extract(self, path, **({"filter": "fully_trusted"} if hasattr(tarfile, "tar_filter") else {}))

        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", old)


@pytest.mark.usefixtures("filters")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_unpacking(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"set.{kind}"
    path.write_bytes(packed(kind, {"set/a.txt": b"1", "set/b/c.txt": b"2"}))
    folder = unpack(path, tmp_path, "set")
    assert (folder / "b" / "c.txt").read_bytes() == b"2"
    assert unpack(path, tmp_path, "set") == folder
    with pytest.raises(DownloadError, match='does not hold a folder "other"'):
        unpack(path, tmp_path, "other")
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, "set"}


@pytest.mark.usefixtures("filters")
def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "in" / "set.tar.gz"
    path.parent.mkdir()
    path.write_bytes(packed("tar.gz", {"../../escaped.txt": b"x", "set/a": b""}))
    with pytest.raises(DownloadError, match=r"set.tar.gz was not unpacked: .*escaped.txt"):
        unpack(path, path.parent, "set")
    assert not list(tmp_path.rglob("escaped.txt"))


def test_data_sets_are_downloaded(
    server: Server,
    tmp_path: Path,
    tiny_folder: Path,
    idx: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zipped = {
        f"{prefix}-{what}-ubyte.gz": gzip.compress(idx(values))
        for prefix in ("train", "t10k")
        for what, values in (
            ("images-idx3", np.zeros((4, 28, 28), np.uint8)),
            ("labels-idx1", np.arange(4, dtype=np.uint8)),
        )
    }
    archives = tuple(server.archive(name, data) for name, data in zipped.items())
    monkeypatch.setitem(mnist.ARCHIVES, "mnist", archives)
    record = bytes([3]) + bytes(3072)
    batches = {f"cifar-10-batches-bin/data_batch_{i}.bin": record for i in range(1, 6)}
    batches["cifar-10-batches-bin/test_batch.bin"] = record * 2
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10", server.archive("c.tar.gz", packed("tar.gz", batches)))
    files = {
        str(path.relative_to(tiny_folder.parent)): path.read_bytes()
        for path in tiny_folder.rglob("*")
        if path.is_file()
    }
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", server.archive("tiny.zip", packed("zip", files)))
    for name, sizes in (("mnist", (4, 4)), ("cifar10", (5, 2)), ("tiny_imagenet", (12, 6))):
        for split, size in zip(("train", "test"), sizes, strict=True):
            assert len(load_dataset(name, tmp_path / "home", split, download=True)) == size
    asked = len(server.log)
    load_dataset("cifar10", tmp_path / "home", download=True)
    assert len(server.log) == asked


def test_the_official_addresses() -> None:
    archives = [archive for group in mnist.ARCHIVES.values() for archive in group]
    archives += [*cifar.ARCHIVES.values(), tiny_imagenet.ARCHIVE]
    for archive in archives:
        assert archive.url.startswith(("http://", "https://"))
        assert len(archive.md5) == 32
        assert archive.file.endswith((".gz", ".zip"))


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    now = [0.0]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("xnorpp.data.progress.time.monotonic", lambda: now[0])
    progress = Progress("reading", 200, "files")
    progress.advance(50)
    assert screen.getvalue() == ""
    now[0] = 20.0
    progress.advance(50)
    progress.close()
    assert "reading: 100/200 (50 %) files, 5 files/s" in screen.getvalue()
    assert screen.getvalue().startswith("\r") == terminal
    assert screen.getvalue().endswith("\n")
