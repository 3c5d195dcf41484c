"""What holds for every test: set before torch is imported by any of them, whatever their order."""

from __future__ import annotations

import os

# Some virtual machines list AMX and die of its instructions; oneDNN is kept below it, in subprocesses too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
