"""One progress line on standard error: redrawn on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """`advance(n)` counts.

    The line shows count, total and rate. Nothing is printed for work under half a second.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._terminal = sys.stderr.isatty()
        self._interval = 0.1 if self._terminal else 10.0
        self._start = time.monotonic()
        self._next = self._start + (0.5 if self._terminal else self._interval)
        self._shown = False

    def advance(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._show(now, "")

    def close(self) -> None:
        if self._shown:
            self._show(time.monotonic(), "\n")

    def _show(self, now: float, end: str) -> None:
        rate = self.done / max(now - self._start, 1e-9)
        of = f"/{self.total:,} ({100 * self.done / self.total:.0f} %)" if self.total else ""
        line = f"{self.what}: {self.done:,}{of} {self.unit}, {rate:,.0f} {self.unit}/s"
        sys.stderr.write(f"\r{line}{end}" if self._terminal else f"{line}\n")
        sys.stderr.flush()
        self._shown = True
