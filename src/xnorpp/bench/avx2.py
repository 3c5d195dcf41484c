"""`--avx2-only`, `--no-amx`: run the whole comparison again as if the processor ended at AVX2, or had no AMX.

Every engine picks its kernels from what CPUID reports. `benchmarks/avx2_only.c` makes CPUID fault and answers
with everything above AVX2 (or AMX alone) cleared, so one switch is the same for all of them. It is a
preloaded library: the process starts itself again with it. It is compiled into the user's cache folder,
where nobody else may write. Where CPUID cannot fault, other engines run as copies (`patched.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from xnorpp.bench import patched
from xnorpp.runtime.cache import cache_folder, private_folder
from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.files import replacing
from xnorpp.runtime.machine import processor

HIDDEN = "XNORPP_HIDDEN"  # set in the process that was started again: one of these names
OPTIONS = {"above-avx2": "--avx2-only", "amx": "--no-amx"}
MEANINGS = {
    "above-avx2": "everything above AVX2 and FMA is hidden from all engines",
    "amx": "the matrix unit (AMX) is hidden from all engines",
}
_NO_FAULT = 3  # the status of avx2_only.c where CPUID cannot fault
_PREFIXES = {"above-avx2": ("avx512", "amx", "avx_vnni", "gfni"), "amx": ("amx",)}


class CannotMask(XnorppError, OSError):
    """This machine or installation cannot hide instructions; the message gives the reason in one sentence."""


class CannotFault(CannotMask):
    """This processor or kernel cannot make CPUID fault."""


def source_file() -> Path:
    """The library's source in a checkout."""
    return Path(__file__).resolve().parents[3] / "benchmarks" / "avx2_only.c"


def hidden() -> str | None:
    """What is hidden from this process: "above-avx2", "amx" or None."""
    name = os.environ.get(HIDDEN)
    return name if name in OPTIONS else None


def visible(flags: Sequence[str]) -> list[str]:
    """The instruction sets among `flags` that this process is allowed to see."""
    return [flag for flag in flags if not flag.startswith(_PREFIXES.get(hidden() or "", ("-",)))]


def build(folder: Path | None = None, name: str = "above-avx2") -> Path:
    """Compile the library (once for a source text) and check that it works here."""
    library, option = _compiled(folder, OPTIONS[name]), OPTIONS[name]
    done = subprocess.run(
        [sys.executable, "-c", "pass"], env=_environment(library, name), capture_output=True, text=True
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        kind = CannotFault if done.returncode == _NO_FAULT else CannotMask
        raise kind(f"{option} does not work on this machine: {reason[0]}")
    return library


def _compiled(folder: Path | None, option: str) -> Path:
    source = source_file()
    if not source.is_file():
        raise CannotMask(f"{option} needs benchmarks/avx2_only.c from a checkout of the source")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotMask(f"{option} needs a C compiler (gcc or cc) to build its library")
    text = source.read_bytes()
    try:
        place = private_folder(folder or cache_folder() / "avx2")
    except OSError as error:
        raise CannotMask(f"{option} has no place for its library: {error}") from None
    library = place / f"avx2_only-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not library.exists():
        with replacing(library, flush=False) as fresh:
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise CannotMask(f"{option} could not be built: {done.stderr.strip().splitlines()[-1:]}")
    return library


def mask_environment(name: str = "above-avx2") -> dict[str, str]:
    """The environment of a process that sees no more than AVX2, or no AMX.

    Args:
        name: What is hidden: "above-avx2" or "amx".

    Raises:
        CannotMask: This machine or installation cannot hide instructions.
    """
    try:
        library = build(name=name)
        environment = _environment(library, name)
    except CannotFault as error:
        if name == "amx":
            if any(flag.startswith("amx") for flag in processor()[1]):
                raise
            return {**os.environ, HIDDEN: name}  # there is nothing to hide
        library = _compiled(None, OPTIONS[name])
        try:
            site = patched.copies(library.parent, patched.packages())
        except (OSError, subprocess.CalledProcessError) as reason:
            raise CannotMask(f"{error}, and copies of the engines cannot be made: {reason}") from None
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**_environment(library, name), **patched.SWITCHES, "XNORPP_PATCHED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    # Kernels that torch.compile cached for the whole processor must not be found again here.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(library.parent / f"inductor-{name}")
    environment["PYTHONFAULTHANDLER"] = "1"  # a crash under the mask names the engine it happened in
    return environment


def restart(
    arguments: Sequence[str], name: str = "above-avx2", program: Sequence[str] = ("-m", "xnorpp")
) -> NoReturn:
    """Replace this process by `xnorpp` with the same arguments and with instruction sets hidden.

    Args:
        arguments: The command and its arguments.
        name: What is hidden: "above-avx2" or "amx".
        program: What Python runs; a script of its own in place of `xnorpp`.

    Raises:
        CannotMask: This machine or installation cannot hide instructions.
    """
    environment = mask_environment(name)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *program, *arguments], environment)


def _environment(library: Path, name: str) -> dict[str, str]:
    before = os.environ.get("LD_PRELOAD")
    preload = f"{library} {before}" if before else str(library)
    return {**os.environ, "LD_PRELOAD": preload, HIDDEN: name}
