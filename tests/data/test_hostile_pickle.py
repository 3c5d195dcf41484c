"""CIFAR's python batches made to harm: refused in one sentence, without much memory and without a crash."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from xnorpp.data import DatasetError
from xnorpp.data.formats.plain_pickle import PlainArray, read_python_batch

SAFE = pickle.dumps({b"data": b"x"}, protocol=2)[2:-1]


def read(path: Path, content: bytes) -> str:
    """Read in a process of its own with 1.5 GB of address space; what it prints."""
    path.write_bytes(content)
    code = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1500 << 20, 1500 << 20))
        from pathlib import Path
        from xnorpp.data import DatasetError, load_dataset
        from xnorpp.data.formats.cifar import read_python_batch
        try:
            print("read", list(read_python_batch(Path({str(path)!r}))))
        except DatasetError as error:
            print("refused:", error)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"}r\xff\xff\xff\x1f", "it has the memo index 536870911 after 2 operations"),
        (b"}p536870911\n", "it has the memo index 536870911 after 2 operations"),
        (b"}p-7\n", "it has the memo index -7"),
        (b"}(" + SAFE + b"0u", "it has the operation POP, which no CIFAR batch needs"),
        (b"}\x96" + b"\x00" * 7 + b"\x10", "it has the operation BYTEARRAY8|not a plain"),
        (b"}\x8e" + b"\x00" * 7 + b"\x10", "expected"),
        (b"}(" + b")" + b"\x85" * 300_000 + b"K\x00u", "it has more than 1000 tuples"),
        (b"(" * 300_000, "."),
        (b"]" * 300_000, "."),
    ],
)
def test_a_pickle_made_to_harm(tmp_path: Path, body: bytes, reason: str) -> None:
    printed = read(tmp_path / "batch", b"\x80\x04" + body + b".")
    assert printed.startswith("refused:"), printed
    assert "\n" not in printed
    assert len(printed) < 500
    if reason != ".":
        assert any(one in printed for one in reason.split("|")), printed


def test_one_string_is_not_copied_a_thousand_times(tmp_path: Path) -> None:
    text = b"X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20) + b"q\x00"
    once = b"c_codecs\nencode\nq\x01h\x00X\x06\x00\x00\x00latin1q\x02\x86R"
    more = b"h\x01h\x00h\x02\x86R" * 2000
    printed = read(tmp_path / "batch", b"\x80\x02}(U\x01a](" + text + once + more + b"eu.")
    assert "it copies more than it contains" in printed


def test_tuples_cannot_be_hidden_in_arguments(tmp_path: Path) -> None:
    body = b")q\x00" + b"cnumpy\ndtype\nq\x01" + b"h\x00\x85q\x00R0" * 3
    (tmp_path / "batch").write_bytes(b"\x80\x02}" + body.replace(b"R0", b"Rh\x01") + b".")
    with pytest.raises(DatasetError, match="damaged type of an array"):
        read_python_batch(tmp_path / "batch")


@pytest.mark.parametrize("protocol", range(5))
def test_honest_batches_of_every_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    pixels = np.arange(6144, dtype=np.uint8).reshape(2, 3072)
    plain = {b"data": pixels, b"labels": [3, 4], b"filenames": [b"%d.png" % i for i in range(3000)]}
    (tmp_path / "batch").write_bytes(pickle.dumps(plain, protocol=protocol))
    found = read_python_batch(tmp_path / "batch")
    assert isinstance(found[b"data"], PlainArray)
    np.testing.assert_array_equal(found[b"data"].array, pixels)
    assert found[b"filenames"] == plain[b"filenames"]
