"""What a run reports while it trains: metrics.jsonl, TensorBoard, the progress bar."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from xnorpp.training.records.append import AppendedFile
from xnorpp.training.records.board import open_board
from xnorpp.training.state.checkpoint import write_atomically

EVERY = 30.0  # seconds between lines of progress where there is no terminal


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a kill is left out."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


class Journal:
    """Writes the run's rows and shows its progress. In processes other than the first it does nothing."""

    def __init__(self, out: Path, *, active: bool, total_images: int, done_images: int, from_step: int,
                 tensorboard: bool, quiet: bool) -> None:  # fmt: skip
        self._file: Any = None
        self._board: Any = None
        self._bar: Any = None
        self._quiet = quiet or not active
        self._total, self._done, self._loss = total_images, done_images, ""
        self._next = time.monotonic() + EVERY
        if not active:
            return
        path = out / "metrics.jsonl"
        kept = [row for row in read_metrics(path) if row["step"] <= from_step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = AppendedFile(path)
        if tensorboard:
            self._board = open_board(out / "tensorboard", from_step)
        if not quiet and sys.stderr.isatty():  # pragma: no cover
            from tqdm import tqdm

            self._bar = tqdm(
                total=total_images, initial=done_images, unit="img", unit_scale=True, dynamic_ncols=True
            )

    def row(self, kind: str, step: int, **values: Any) -> None:
        """One line of metrics.jsonl, and the same numbers to TensorBoard."""
        if self._file is None:
            return
        self._file.append((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
        if self._board is not None:
            self._board.add({f"{kind}/{name}": value for name, value in values.items()}, step)

    def advance(self, images: int, epoch: int, loss: float | None = None) -> None:
        """Count images of `epoch`, counted from one. Off a terminal a line is printed now and then, so that a
        log shows progress; it repeats the last loss given.
        """
        self._done += images
        if loss is not None:
            self._loss = f", loss {loss:.3f}"
        if self._bar is not None:  # pragma: no cover
            self._bar.update(images)
            self._bar.set_postfix_str(f"epoch {epoch}{self._loss}", refresh=False)
        elif self._line_is_due():
            share = 100 * self._done / max(self._total, 1)
            self.say(f"{self._done:,} of {self._total:,} images ({share:.1f} %), epoch {epoch}{self._loss}")

    def evaluating(self, dataset: Any, processes: int) -> Callable[[Any, Any], None]:
        """What `evaluate` calls for each batch: shows how much of the data set this process has evaluated, of
        which it takes one part in `processes`.
        """
        total = f" of {-(-len(dataset) // processes):,}" if hasattr(dataset, "__len__") else ""
        done = 0

        def observe(outputs: Any, labels: Any) -> None:
            nonlocal done
            done += len(labels)
            if self._bar is not None:  # pragma: no cover
                self._bar.set_postfix_str(f"evaluating {done:,}{total}")
            elif self._line_is_due():
                self.say(f"evaluating: {done:,}{total} images")

        return observe

    def _line_is_due(self) -> bool:
        """Whether the time for the next line of progress has come; if so, it is counted from now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def say(self, text: str) -> None:
        """A line for the person watching."""
        if self._quiet:
            return
        if self._bar is not None:  # pragma: no cover
            self._bar.write(text)
        else:
            print(text, flush=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        for part in (self._file, self._board, self._bar):
            if part is not None:
                part.close()


class Clock:
    """Images per second since the last call, evaluation not counted."""

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step
        self.restart()

    def restart(self) -> None:
        self.steps, self.start = 0, time.perf_counter()

    def tick(self) -> None:
        self.steps += 1

    def images_per_second(self) -> float:
        seconds = time.perf_counter() - self.start
        rate = self.steps * self.images_per_step / max(seconds, 1e-9)
        self.restart()
        return rate


def time_left(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    whole = int(seconds + 0.5)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
