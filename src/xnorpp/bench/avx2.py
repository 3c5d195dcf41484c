"""`--avx2-only`: run the whole comparison again as if the processor ended at AVX2.

Every engine picks its kernels from what CPUID reports. `benchmarks/avx2_only.c` makes CPUID fault and answers
with everything above AVX2 cleared, so one switch is the same for all of them. It is a preloaded library: the
process starts itself again with it. It is compiled into the user's cache folder, where nobody else may write.
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

from xnorpp.runtime.cache import cache_folder, private_folder
from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.files import replacing

AVX2_ONLY = "XNORPP_AVX2_ONLY"  # set in the process that was started again


class CannotMask(XnorppError, OSError):
    """This machine or installation cannot hide instructions; the message gives the reason in one sentence."""


def source_file() -> Path:
    """The library's source in a checkout."""
    return Path(__file__).resolve().parents[3] / "benchmarks" / "avx2_only.c"


def build(folder: Path | None = None) -> Path:
    """Compile the library (once for a source text) and check that it works here."""
    source = source_file()
    if not source.is_file():
        raise CannotMask("--avx2-only needs benchmarks/avx2_only.c from a checkout of the source")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotMask("--avx2-only needs a C compiler (gcc or cc) to build its library")
    text = source.read_bytes()
    try:
        place = private_folder(folder or cache_folder() / "avx2")
    except OSError as error:
        raise CannotMask(f"--avx2-only has no place for its library: {error}") from None
    library = place / f"avx2_only-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not library.exists():
        with replacing(library, flush=False) as fresh:
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise CannotMask(f"--avx2-only could not be built: {done.stderr.strip().splitlines()[-1:]}")
    done = subprocess.run(
        [sys.executable, "-c", "pass"], env=_environment(library), capture_output=True, text=True
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise CannotMask(f"--avx2-only does not work on this machine: {reason[0]}")
    return library


def restart(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `xnorpp` with the same arguments and with everything above AVX2 hidden.

    Args:
        arguments: The command and its arguments.

    Raises:
        CannotMask: This machine or installation cannot hide instructions.
    """
    library = build()
    environment = _environment(library)
    # Kernels that torch.compile cached for the whole processor must not be found again here.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(library.parent / "inductor")
    environment["PYTHONFAULTHANDLER"] = "1"  # a crash under the mask names the engine it happened in
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "xnorpp", *arguments], environment)


def _environment(library: Path) -> dict[str, str]:
    before = os.environ.get("LD_PRELOAD")
    preload = f"{library} {before}" if before else str(library)
    return {**os.environ, "LD_PRELOAD": preload, AVX2_ONLY: "1"}
