"""One home each: the kind of a file, writing one whole or not at all, similar names, the processor."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.runtime import machine
from xnorpp.runtime.choices import check_choice, nearest_first
from xnorpp.runtime.files import FileKind, file_kind, replacing, write_atomically


def safetensors(meta: object, padding: int = 0) -> bytes:
    """A file without tensors whose header has `meta` and is `padding` bytes longer than it must be."""
    header = json.dumps({"__metadata__": meta}).encode() + b" " * padding
    return len(header).to_bytes(8, "little") + header


def image(format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (safetensors({"format": "xnorpp"}), FileKind.PACKED),
        (safetensors({"format": "xnorpp-checkpoint"}), FileKind.CHECKPOINT),
        (safetensors({"format": "pt"}), FileKind.SAFETENSORS),
        (safetensors([]), FileKind.SAFETENSORS),
        (safetensors({"format": "xnorpp"})[:-1], FileKind.UNKNOWN),
        ((2**60).to_bytes(8, "little") + b"{}", FileKind.UNKNOWN),
        (b"", FileKind.UNKNOWN),
        (b"some text", FileKind.UNKNOWN),
        (b"PK\x03\x04 and so on", FileKind.TORCH),
        (b"\x80\x02}q\x00.", FileKind.TORCH),
        *((image(name), FileKind.IMAGE) for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")),
    ],
)
def test_a_file_is_what_its_content_says(content: bytes, kind: FileKind, tmp_path: Path) -> None:
    path = tmp_path / "model.xnor"
    path.write_bytes(content)
    assert file_kind(path) is kind


@pytest.mark.parametrize("start", [b"BM", b"\x80\x02", b"P6"])
def test_a_header_whose_length_looks_like_another_kind(start: bytes, tmp_path: Path) -> None:
    plain = safetensors({"format": "xnorpp"})
    length = int.from_bytes(start, "little")
    content = safetensors({"format": "xnorpp"}, length - (len(plain) - 8))
    assert content[:2] == start
    (tmp_path / "x").write_bytes(content)
    assert file_kind(tmp_path / "x") is FileKind.PACKED


def test_folders_missing_files_and_pipes(tmp_path: Path) -> None:
    assert file_kind(tmp_path / "missing") is FileKind.MISSING
    assert file_kind(tmp_path) is FileKind.FOLDER
    (tmp_path / "checkpoints").mkdir()
    assert file_kind(tmp_path) is FileKind.RUN
    (tmp_path / "file").write_bytes(b"x")
    assert file_kind(tmp_path / "file" / "below") is FileKind.MISSING
    os.mkfifo(tmp_path / "pipe")
    assert file_kind(tmp_path / "pipe") is FileKind.UNKNOWN


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"old")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_errors_name_the_file_or_its_folder_and_never_the_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "no" / "x", b"")
    assert caught.value.filename == str(tmp_path / "no")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        write_atomically(tmp_path / "folder", b"")
    assert refused.value.filename == str(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_similar_names_come_first() -> None:
    assert nearest_first("trian", ["eval", "bench", "train"])[0] == "train"
    assert nearest_first("x", ["b", "a"]) == ["a", "b"]
    check_choice("name", "a", ("a", "b"))
    with pytest.raises(ValueError, match=r"`name` \(='trian'\) must be one of 'train', 'eval'"):
        check_choice("name", "trian", ("eval", "train"))


def test_the_processor_is_read_from_the_system_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "cpuinfo"
    table.write_text("processor : 0\nmodel name\t: A CPU 9000\nflags\t\t: fma avx2\nmodel name : other\n")
    monkeypatch.setattr(machine, "CPUINFO", table)
    assert machine.processor.__wrapped__() == ("A CPU 9000", {"fma", "avx2"})
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "missing")
    assert machine.processor.__wrapped__().flags == frozenset()
    assert machine.available_cores() >= 1


def test_files_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from xnorpp.runtime.files import file_kind; file_kind('.')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
