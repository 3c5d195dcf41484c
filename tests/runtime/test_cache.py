"""The cache folder that code is run from: the user's own, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xnorpp.runtime.cache import cache_folder, private_folder
from xnorpp.runtime.cuda import driver as cuda_driver


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XNORPP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "xnorpp"
    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_a_new_folder_is_for_this_user_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        private_folder(tmp_path / "open")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "theirs")
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "link")


def test_cuda_kernels_do_not_come_from_a_folder_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_source(source: str, options: object) -> bytes:
        compiled.append(source)
        return b"ours"

    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda_driver, "compile_source", compile_source)
    monkeypatch.setattr(cuda_driver, "_target", lambda arch: arch)
    assert [cuda_driver.cached_cubin("source", "sm_80") for _ in range(2)] == [b"ours", b"ours"]
    assert compiled == ["source"]
    for file in tmp_path.rglob("*.cubin"):
        file.write_bytes(b"theirs")
        file.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written to by other users"):
        assert cuda_driver.cached_cubin("source", "sm_80") == b"ours"
    assert compiled == ["source", "source"]
