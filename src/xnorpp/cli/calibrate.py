"""`xnorpp calibrate`: the temperature that makes a packed model's probabilities mean something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xnorpp.cli.command import (
    THREADS,
    Parser,
    at_least,
    check_data,
    check_file,
    engine_options,
    load_packed,
    refuse_ignored,
)


def calibrate(arguments: list[str]) -> int:
    """Of the guesses that `xnorpp predict` prints with 80 %, about 80 % are then right. One number, the
    temperature, by which scores are divided, is fitted and written into the file. Guesses and accuracy do
    not change.

    The images must be ones that training never saw: the share of the training set that the run held out
    (`data.holdout`; the packed file records it), or another data set (--dataset, --data). The test set can be
    used (--split test), but its calibration error is then no longer meaningful.
    """
    parser = Parser(
        "calibrate",
        calibrate,
        """
        xnorpp calibrate mine.xnor --data /data/cifar10
        xnorpp calibrate mine.xnor --dataset folder --data unseen-images -o calibrated.xnor
        xnorpp calibrate mine.xnor --temperature 1.4
        """,
    )
    parser.add_argument("model", metavar="MODEL", help="a packed file")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: MODEL itself)")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--dataset", metavar="NAME", help="another data set than that of training")
    parser.add_argument(
        "--holdout", metavar="SHARE", type=float,
        help="the share of the training set that the run held out (default: what the file records)",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=("held", "test"),
        help="held: the held-out share of the training set; test: the test set, or a folder's val/",
    )  # fmt: skip
    parser.add_argument(
        "--temperature", metavar="T", type=float,
        help="write this temperature instead, such as that of a run of the same recipe that held images out",
    )  # fmt: skip
    parser.add_argument(
        "--fit", choices=("guess", "classes"), default="guess",
        help="fit the probability of the first guess (the default), or those of all classes",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", metavar="N", type=at_least(1), default=256, help="images per batch (default: 256)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, the CPU)")
    engine_options(parser, THREADS)
    given = parser.parse_args(arguments)
    check_file("--output", given.output)
    if given.temperature is not None:
        if given.data or given.dataset:
            raise ValueError("`--temperature` writes a number as it is; leave `--data` and `--dataset` out")
        refuse_ignored(given, ("holdout", "split"), "fitting a temperature, and --temperature gives one")
    if given.split == "test":
        refuse_ignored(given, ("holdout",), "--split held, and --split test was given")

    from xnorpp.data import load_dataset
    from xnorpp.data.own import as_images
    from xnorpp.data.progress import Progress
    from xnorpp.inspect import calibration
    from xnorpp.runtime.format.program import write

    model = load_packed(given.model, given)
    if given.output is None:
        check_file("MODEL", given.model)  # it is written anew
    program, output = model.program, Path(given.output or given.model)
    if given.temperature is not None:
        new = calibration.with_temperature(program, given.temperature, calibration={"fitted_on": "given"})
        write(new, output)
        print(f"{output}: temperature {given.temperature:g}")
        return 0
    name = given.dataset or program.meta.get("dataset")
    if not name:
        raise ValueError("the packed file does not record its data set; name one with --dataset NAME")
    held = given.holdout if given.holdout is not None else float(program.meta.get("holdout") or 0.0)
    # Any folder is `folder`: one that is named by --dataset holds other images than those of training.
    elsewhere = name != program.meta.get("dataset") or given.dataset == "folder"
    split = given.split or ("test" if elsewhere and given.holdout is None else "held")
    if split == "held" and not held:
        raise ValueError(
            f"{given.model} was trained on all training images of {name!r}, so that none is left to fit a "
            "temperature on; train with `data.holdout`, or give unseen images: --dataset folder --data DIR"
        )
    check_data(str(name), given.data)
    part: dict[str, Any] = {"holdout": held, "part": "held"} if split == "held" else {}
    dataset = as_images(load_dataset(name, given.data, "train" if split == "held" else "test", **part))
    progress = Progress("calibrating", len(dataset), "images")
    found = calibration.calibrate(
        model, dataset, given.fit, batch=given.batch_size, progress=progress.advance
    )
    progress.close()
    if found.temperature in (calibration.COLDEST, calibration.HOTTEST):
        why = "it is right on all" if found.temperature == calibration.COLDEST else "its outputs predict none"
        raise ValueError(
            f"no temperature can be fitted on these {found.images} images, because {why} of them; use more "
            "images (--dataset, --data), or write a temperature of your own (--temperature)"
        )
    where = f"{name}, held out ({held:g} of the training set)" if split == "held" else f"{name}, {split}"
    facts = {"fitted_on": where, "images": found.images, "error": round(found.error, 4)}
    new = calibration.with_temperature(program, found.temperature, calibration=facts)
    write(new, output)
    print(
        f"{output}: temperature {found.temperature:.3f}, fitted on {found.images} images of {where}; there, "
        f"calibration error {found.error_before:.3f} before and {found.error:.3f} after, loss "
        f"{found.loss_before:.3f} and {found.loss:.3f}"
    )
    return 0
