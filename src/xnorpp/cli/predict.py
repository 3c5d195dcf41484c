"""`xnorpp predict`."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.cli.command import Parser, at_least, engine_options, load_packed, one_model, refuse_ignored

if TYPE_CHECKING:
    from xnorpp.runtime.predict import Prediction

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
MUCH = 1.2  # a change of the aspect ratio that is reported


def predict(arguments: list[str]) -> int:
    """Prints labels and probabilities. The model is a packed file, given first, or one that ships with the
    package, given by --model. IMAGE is a file, a folder (all images in it and in its subfolders), or - for an
    image on standard input. Needs numpy and Pillow, but not torch. Photos are turned upright as their EXIF
    orientation states. An image that cannot be read is reported on stderr; the others are still classified,
    and the exit status is 1. For a model with a class for each pixel, --save writes masks.
    """
    parser = Parser(
        "predict",
        predict,
        """
        xnorpp predict --model cifar10-resnet18 photo.png
        xnorpp predict model.xnor cat.jpg dog.png --top 3
        xnorpp predict model.xnor photos --csv > photos.csv
        xnorpp predict model.xnor *.jpg --json
        xnorpp predict model.xnor - < photo.jpg
        xnorpp predict unet.xnor photos --save masks
        """,
    )
    parser.usage = "%(prog)s [options] MODEL IMAGE ...\n       %(prog)s [options] --model NAME IMAGE ..."
    parser.add_argument(
        "files", metavar="IMAGE", nargs="*",
        help="images, folders of images, or - for standard input; without --model, MODEL comes before them",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="NAME", help="a model that ships with the package (see `xnorpp models`)"
    )
    parser.add_argument(
        "--top", metavar="K", type=at_least(1), help="how many classes to print (default: 5; with --csv: 1)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    kinds.add_argument("--csv", action="store_true", help="print comma-separated values, one line per image")
    parser.add_argument(
        "--save", metavar="DIR", help="of a model with a dense output: write a mask for each image, as PNG"
    )
    parser.add_argument(
        "--workers", metavar="N", type=at_least(1), default=2, help="threads that decode images (default: 2)"
    )
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    engine_options(parser)
    given = parser.parse_args(arguments)

    from xnorpp.runtime.predict import predict as run
    from xnorpp.runtime.predict import printable

    path, named = _model_and_images(given.model, given.files)
    model = load_packed(path, given)
    images = _expanded(named)
    if given.save is not None:
        from xnorpp.cli.masks import save_masks

        refuse_ignored(given, ("top", "csv"), "labels, and --save writes masks")
        return save_masks(model, images, Path(given.save), as_json=given.json)
    top = given.top or (1 if given.csv else 5)
    report = Report("json" if given.json else "csv" if given.csv else "text", top)
    progress = None
    if len(images) > 1:
        from xnorpp.data.progress import Progress

        progress = Progress("classifying", len(images), "images")
    noted = False
    for prediction in run(model, images, top=top, workers=given.workers):
        if prediction.error is None and prediction.distortion > MUCH and not noted:
            noted = True  # once per run: a folder of photos would repeat it for each
            print(
                f"xnorpp predict: note: the aspect ratio of {printable(prediction.image)} is changed by a "
                f"factor of {prediction.distortion:.1f}, because this model expects squashed images; crop "
                "the image to avoid it.",
                file=sys.stderr,
            )
        report.add(prediction)
        if progress:
            progress.advance(1)
    if progress:
        progress.close()
    report.close()
    to_a_person = report.kind == "text" and sys.stderr.isatty()
    if to_a_person and model.program.temperature is None and report.classified:
        print(
            "xnorpp predict: note: the probabilities of this model are not calibrated and are usually too "
            "high; see `xnorpp calibrate --help`.",
            file=sys.stderr,
        )
    return 1 if report.failed else 0


class Report:
    """Prints predictions as they come: text, CSV, or one JSON list at the end."""

    def __init__(self, kind: str, top: int) -> None:
        self.kind, self.top = kind, top
        self.failed = self.classified = 0
        self._rows: list[dict[str, Any]] = []
        if kind == "csv":
            self._csv = csv.writer(sys.stdout, lineterminator="\n")
            more = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("label", "probability")]
            self._csv.writerow(["image", "label", "probability", *more, "error"])

    def add(self, prediction: Prediction) -> None:
        from xnorpp.runtime.predict import printable

        name = printable(prediction.image)
        if prediction.error is None:
            self.classified += 1
        else:
            self.failed += 1
            print(f"xnorpp predict: {name} cannot be read ({printable(prediction.error)}).", file=sys.stderr)
        if self.kind == "json":
            row: dict[str, Any] = {"image": prediction.image}
            if prediction.error is not None:
                row["error"] = prediction.error
            else:
                row["predictions"] = [asdict(guess) for guess in prediction.guesses]
            self._rows.append(row)
        elif self.kind == "csv":
            cells = [text for one in prediction.guesses for text in (one.label, f"{one.probability:.6f}")]
            cells += [""] * (2 * self.top - len(cells))
            self._csv.writerow(
                [_as_text(cell) for cell in (prediction.image, *cells, prediction.error or "")]
            )
        elif prediction.error is None:
            best = [f"{printable(one.label)} {100 * one.probability:.1f} %" for one in prediction.guesses]
            print(f"{name}: {', '.join(best)}")

    def close(self) -> None:
        if self.kind == "json":
            print(json.dumps(self._rows, indent=2))


def _as_text(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: names of files and labels come from anyone."""
    from xnorpp.runtime.predict import printable

    return f"'{printable(cell)}" if cell[:1] in ("=", "+", "@") else printable(cell)


def _expanded(named: list[str]) -> list[str | bytes]:
    """The images that the arguments stand for: a folder is every image below it, - is standard input."""
    found: list[str | bytes] = []
    for name in named:
        if name == "-":
            found.append(_standard_input())
        elif not name:
            raise ValueError("an IMAGE is empty (''); give a file, a folder, or - for standard input")
        elif Path(name).is_dir():
            os.listdir(name)  # a folder that cannot be read is an error, not one without images
            inside = sorted(
                path for path in Path(name).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
            )
            if not inside:
                raise ValueError(f"the folder {name} has no images ({', '.join(SUFFIXES)})")
            found += map(str, inside)
        else:
            found.append(name)
    return found


def _standard_input() -> bytes:
    from xnorpp.runtime.decode import MAX_BYTES

    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("- is an image on standard input, and nothing is redirected to it")
    blob = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(blob) > MAX_BYTES:
        raise ValueError(f"the image on standard input has more than {MAX_BYTES} bytes")
    return blob


def _model_and_images(name: str | None, files: list[str]) -> tuple[Path, list[str]]:
    """The model and the images; without --model the first file is the model."""
    first = files[0] if files else None
    if name is not None and first is not None and first.endswith(".xnor"):
        return one_model(first, name), []  # raises: there are two
    if len(files) == 1 and name is None:
        raise ValueError(f"missing argument: need a model and at least one image (got only {first!r})")
    path, images = (one_model(None, name), files) if name is not None else (one_model(first, None), files[1:])
    if not images:
        raise ValueError(f"missing argument: need at least one image for the model {name}")
    return path, images
