"""`xnorpp predict`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xnorpp.cli.command import Parser, at_least, engine_options, load_packed, one_model

MUCH = 1.2  # a change of the aspect ratio that is reported


def predict(arguments: list[str]) -> int:
    """Prints labels and probabilities. The model is a packed file, given first, or one that ships with the
    package, given by --model. Needs numpy and Pillow, but not torch. Photos are turned upright as their EXIF
    orientation says. An image that cannot be read is reported on stderr; the others are still classified, and
    the exit status is 1.
    """
    parser = Parser(
        "predict",
        predict,
        """
        xnorpp predict --model cifar10-resnet18 photo.png
        xnorpp predict model.xnor cat.jpg dog.png --top 3
        xnorpp predict model.xnor *.jpg --json
        """,
    )
    parser.usage = "%(prog)s [options] MODEL IMAGE ...\n       %(prog)s [options] --model NAME IMAGE ..."
    parser.add_argument(
        "files", metavar="IMAGE", nargs="*", help="images; without --model, MODEL comes before them"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="a model that ships with the package (see `xnorpp models`)"
    )
    parser.add_argument(
        "--top", metavar="K", type=at_least(1), default=5, help="how many classes to print (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    engine_options(parser)
    given = parser.parse_args(arguments)

    from xnorpp.runtime.predict import predict as run
    from xnorpp.runtime.predict import printable

    path, images = _model_and_images(given.model, given.files)
    model = load_packed(path, given)
    failed, noted = 0, False
    rows: list[dict[str, Any]] = []
    for prediction in run(model, images, top=given.top):
        name = printable(prediction.image)
        if prediction.error is not None:
            failed += 1
            print(f"xnorpp predict: {name} cannot be read ({printable(prediction.error)}).", file=sys.stderr)
        elif prediction.distortion > MUCH and not noted:
            noted = True  # once per run: a folder of photos would repeat it for each
            print(
                f"xnorpp predict: note: the aspect ratio of {name} is changed by a factor of "
                f"{prediction.distortion:.1f}, because this model expects squashed images; crop the image to "
                "avoid it.",
                file=sys.stderr,
            )
        if given.json:
            row = {"image": prediction.image, "error": prediction.error} if prediction.error else None
            predictions = [asdict(guess) for guess in prediction.guesses]
            rows.append(row or {"image": prediction.image, "predictions": predictions})
        elif prediction.error is None:
            guesses = prediction.guesses
            best = [f"{printable(guess.label)} {100 * guess.probability:.1f} %" for guess in guesses]
            print(f"{name}: {', '.join(best)}")
    if given.json:
        print(json.dumps(rows, indent=2))
    return 1 if failed else 0


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
