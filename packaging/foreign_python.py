"""A Python for another processor, from Debian's packages, unpacked into a folder and run by qemu-user.

Nothing is installed on this system: apt works in a folder of its own, with this system's own mirror.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from build_wheels import run

# The Debian that has each Python: one of a wheel of its own, and the first one with the wheels' stable ABI.
SUITES = {"3.11": "bookworm", "3.13": "trixie"}


def mirror() -> str:
    """The address of this system's Debian mirror."""
    for path in [*Path("/etc/apt/sources.list.d").glob("*"), Path("/etc/apt/sources.list")]:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = re.search(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
        if found:
            return found[1]
    raise SystemExit("no Debian mirror in /etc/apt: a Python for aarch64 comes from there")


class ForeignPython:
    """Debian's Python for aarch64 in a folder."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self.root = folder / "root"
        if not (folder / "ready").exists():
            self._unpack(folder)
            (folder / "ready").touch()

    def _unpack(self, folder: Path) -> None:
        """All packages that Python needs, downloaded by apt and unpacked without being installed."""
        for name in ("lists/partial", "cache/archives/partial", "state", "root"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text(
            f"deb {mirror()} {SUITES[self.version]} main\n", encoding="utf-8"
        )
        (folder / "status").touch()
        settings = {
            "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "root",
            "Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": folder / "state", "Dir::State::Lists": folder / "lists",
            "Dir::State::Status": folder / "status", "Dir::Cache": folder / "cache",
            "APT::Install-Recommends": "false", "Acquire::Languages": "none",
        }  # fmt: skip
        apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
        run([*apt, "update"])
        run([*apt, "install", "--download-only", f"python{self.version}", "libstdc++6"])  # which numpy needs
        for archive in sorted((folder / "cache" / "archives").glob("*.deb")):
            run(["dpkg-deb", "--extract", str(archive), str(self.root)])
        if not (self.root / "lib").exists():  # a link that another package would make
            (self.root / "lib").symlink_to("usr/lib")

    def run(self, arguments: list[str], packages: Path) -> str:
        """Output of this Python with `arguments`; its failure ends the check."""
        home = self.root / "usr"
        command = [
            "qemu-aarch64",
            "-L",
            str(self.root),
            str(home / "bin" / f"python{self.version}"),
            *arguments,
        ]
        environment = {"PYTHONHOME": str(home), "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-6000:]}\nfailed")
        return done.stdout
