"""A recipe: everything that decides a training run, as validated, frozen dataclasses read from TOML.

A recipe file states what differs from the defaults below and nothing else. `extends = "other-recipe"`
starts from another recipe. A key that does not exist, a value of the wrong type or out of range is refused
in one sentence.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args, get_origin, get_type_hints

from xnorpp.data.dataset import Augment
from xnorpp.nn.methods import BINARY_INPUT_METHODS, METHODS
from xnorpp.runtime.choices import nearest_first
from xnorpp.runtime.errors import XnorppError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


class RecipeError(XnorppError, ValueError):
    """A recipe that cannot be used; the message is one sentence that names the key.

    Example:
        >>> from xnorpp.training import RecipeError, load_recipe
        >>> try:
        ...     load_recipe("digits-small-case4", ["schedule.epochs=-1"])
        ... except RecipeError as error:
        ...     print("schedule.epochs" in str(error))
        True
    """


def _key(
    default: Any,
    doc: str,
    *,
    choices: Sequence[str] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A recipe key: its default, what it means, and what it may be."""
    return field(default=default, metadata={"doc": doc, "choices": tuple(choices), "low": low, "high": high})


@dataclass(frozen=True)
class PaperRow:
    """Which rows of the paper a recipe reproduces, and the accuracies (per cent) printed there."""

    rows: tuple[str, ...] = _key((), "names of the rows, such as table1-case4")
    top1: float = _key(0.0, "printed top-1 accuracy", low=0, high=100)
    top5: float = _key(0.0, "printed top-5 accuracy", low=0, high=100)


@dataclass(frozen=True)
class ModelPart:
    name: str = _key("resnet18", "network; `xnorpp models` lists them, package.module:function is your own")
    method: str = _key("xnor++", "how its inner layers are made binary", choices=METHODS)
    scale: str = _key("default", "shape of the scale factors; `default` is the method's own")
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"doc": "options of the network, such as activation or shortcut"}
    )
    calibrate: bool = _key(False, "start the scales from a least-squares fit on the first batch")


@dataclass(frozen=True)
class DataPart:
    dataset: str = _key(
        "digits", "data set; `xnorpp datasets` lists them, package.module:function is your own"
    )
    size: int = _key(0, "side of the images in pixels; 0: the data set's own", low=0)
    enlarge: str = _key(
        "once",
        "in-memory sets with a larger `size`: enlarge all images once, or each batch on the device",
        choices=("once", "batch"),
    )
    batch_size: int = _key(128, "images per step, over all processes and accumulated parts together", low=1)
    augment: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "doc": "where it differs from the data set's own: crop, pad, flip, area and side (random resized "
            "crop), operations and magnitude (RandAugment), cutout, mixup"
        },
    )
    holdout: float = _key(0.0, "share of the training set that is held out of training", low=0, high=0.9)
    evaluate: str = _key(
        "held",
        "what a run with a `holdout` is evaluated on: the images held out, or the test set",
        choices=("held", "test"),
    )
    workers: int = _key(0, "processes that decode images (streamed data sets)", low=0)
    max_skipped: int = _key(
        -1, "unreadable images that are tolerated; -1: 1 % of the set, at least 1, at most 100", low=-1
    )
    channels: int = _key(
        0, "channels of the images of a folder: 1 or 3; 0: the data set's own", low=0, high=4
    )
    mean: tuple[float, ...] = _key(
        (), "mean that uint8 images are normalised with; empty: the data set's own"
    )
    std: tuple[float, ...] = _key((), "standard deviation, like `mean`", low=1e-6)
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"doc": "options that only this data set has, such as imagenet's labels"},
    )
    prepare: str = _key(
        "", "folder to store streamed images in, decoded and resized once; empty: decode in each epoch"
    )


@dataclass(frozen=True)
class OptimizerPart:
    name: str = _key("adam", "optimiser", choices=("adam", "adamw", "sgd", "bop"))
    lr: float = _key(1e-3, "learning rate at the start", low=0)
    weight_decay: float = _key(1e-5, "weight decay", low=0)
    betas: tuple[float, ...] = _key((0.9, 0.999), "Adam's decay rates", low=0, high=1)
    momentum: float = _key(0.9, "SGD's momentum", low=0, high=1)
    nesterov: bool = _key(False, "SGD with Nesterov's momentum")
    decay_scales: bool = _key(False, "weight decay on learned scale factors too")
    decay_norms: bool = _key(True, "weight decay on batch-norm parameters and biases too")
    clip_norm: float = _key(0.0, "clip the gradient's norm to this; 0: do not", low=0)
    flip_rate: float = _key(1e-4, "Bop's rate of its moving average", low=0, high=1)
    flip_threshold: float = _key(1e-8, "Bop flips a weight where that average exceeds this", low=0)
    scale_gradients: float = _key(
        0.0,
        "OvSW: scale a binary filter's gradient up to this share of its weight's norm; 0: do not",
        low=0,
    )
    ema_decay: float = _key(
        0.0,
        "evaluate and store a moving average of the weights, with this decay per step; 0: the weights",
        low=0,
        high=0.999999,
    )


@dataclass(frozen=True)
class SchedulePart:
    name: str = _key("step", "shape of the learning rate", choices=("step", "cosine", "linear", "constant"))
    epochs: int = _key(80, "passes over the training set", low=1)
    step_epochs: float = _key(25.0, "`step`: epochs between drops, whole or not", low=0.01)
    factor: float = _key(0.1, "`step`: what each drop multiplies by", low=0, high=1)
    final_lr: float = _key(0.0, "`cosine` and `linear`: learning rate at the end", low=0)
    warmup_epochs: float = _key(0.0, "linear warm-up from zero", low=0)
    first_stage_epochs: int = _key(
        0,
        "two stages: number of first epochs with binary activations and real weights; 0: one stage",
        low=0,
    )
    max_steps: int = _key(0, "end after this many steps; 0: after the epochs", low=0)
    statistics_batches: int = _key(
        0,
        "measure batch norm's statistics again at the end, in float32, over this many batches; 0: do not",
        low=0,
    )
    statistics_images: str = _key(
        "plain",
        "on which images: with crop and flip alone (with `augment.area`: whole images and flip), or as in "
        "training",
        choices=("plain", "training"),
    )
    output_batches: int = _key(
        0,
        "then fit the output layer again, by itself, to this many batches of images with crop and flip "
        "alone; 0: do not",
        low=0,
    )


@dataclass(frozen=True)
class LossPart:
    label_smoothing: float = _key(0.0, "label smoothing", low=0, high=1)
    teacher: str = _key("", "checkpoint or state_dict of a real-valued teacher; empty: no distillation")
    answers: str = _key(
        "",
        "folder to store the teacher's answers to every crop and flip in, computed once; empty: ask it in "
        "each step",
    )
    distill_weight: float = _key(0.5, "share of the teacher in the loss", low=0, high=1)
    temperature: float = _key(1.0, "temperature of the distillation", low=0)


@dataclass(frozen=True)
class RunPart:
    seed: int = _key(0, "seed of everything random", low=0)
    amp: str = _key("off", "autocast", choices=("off", "bf16", "fp16"))
    compile: bool = _key(False, "torch.compile the training step")
    channels_last: bool = _key(False, "channels_last memory format")
    cuda_graph: str = _key(
        "auto",
        "replay a training step as one CUDA graph; `auto`: where possible",
        choices=("auto", "on", "off"),
    )
    cudnn_benchmark: bool = _key(True, "on a GPU, cuDNN times its algorithms for a shape and keeps the best")
    accumulate: int = _key(1, "parts that a batch is split into; their gradients are added", low=1)
    sync_batch_norm: bool = _key(False, "batch norm over all GPUs (CUDA only)")
    save_epochs: int = _key(1, "epochs between checkpoints", low=1)
    save_steps: int = _key(0, "steps between checkpoints inside an epoch; 0: only at its end", low=0)
    keep: int = _key(2, "number of checkpoints stored; an earlier one replaces a damaged one", low=2)
    eval_train: bool = _key(
        False, "at the end, evaluate on training images too (as many as the test set has), not augmented"
    )
    eval_epochs: int = _key(1, "epochs between evaluations; the last epoch always has one", low=1)
    log_steps: int = _key(50, "steps between lines in metrics.jsonl", low=1)
    tensorboard: bool = _key(True, "write TensorBoard events, where it is installed")
    threads: int = _key(0, "CPU threads; 0: torch's choice", low=0)


@dataclass(frozen=True)
class Recipe:
    """One training run. `to_dict` and `from_dict` are inverse to each other.

    Example:
        >>> from xnorpp.training import Recipe, load_recipe
        >>> recipe = load_recipe("digits-small-case4").replace(schedule__epochs=3)
        >>> recipe.model.name, recipe.schedule.epochs
        ('small', 3)
        >>> Recipe.from_dict(recipe.to_dict()) == recipe
        True
    """

    name: str = _key("unnamed", "the recipe's name")
    about: str = _key("", "one-line description")
    paper: PaperRow = field(default_factory=PaperRow)
    model: ModelPart = field(default_factory=ModelPart)
    data: DataPart = field(default_factory=DataPart)
    optimizer: OptimizerPart = field(default_factory=OptimizerPart)
    schedule: SchedulePart = field(default_factory=SchedulePart)
    loss: LossPart = field(default_factory=LossPart)
    run: RunPart = field(default_factory=RunPart)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @staticmethod
    def from_dict(table: Mapping[str, Any]) -> Recipe:
        recipe: Recipe = _build(Recipe, table, "")
        _check_together(recipe)
        return recipe

    def replace(self, *overrides: str, **settings: Any) -> Recipe:
        """A copy with `"section.key=value"` strings, or `section__key=value` settings, applied and
        validated.
        """
        table = self.to_dict()
        for override in overrides:
            apply_override(table, override)
        for name, value in settings.items():
            _put(table, name.replace("__", "."), value)
        return Recipe.from_dict(table)


def recipe_keys() -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Every dotted key a recipe may have, with its type and field."""
    keys: dict[str, tuple[Any, dataclasses.Field[Any]]] = {}
    for top, (kind, spec) in _fields(Recipe).items():
        if dataclasses.is_dataclass(kind):
            keys.update({f"{top}.{name}": pair for name, pair in _fields(cast(type, kind)).items()})
        else:
            keys[top] = (kind, spec)
    return keys


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    hints = get_type_hints(cls)
    return {spec.name: (hints[spec.name], spec) for spec in dataclasses.fields(cls)}


def unknown_key(key: str) -> RecipeError:
    """The error for a key that no recipe has; it names the nearest one that exists."""
    valid = list(recipe_keys())
    last = key.rsplit(".", 1)[-1]
    exact = [name for name in valid if name.rsplit(".", 1)[-1] == last]
    best = exact or nearest_first(key, valid)[:1]
    sections = {name.partition(".")[0] for name in valid if "." in name}
    section = difflib.get_close_matches(key, sections, 1) if "." not in key else []
    if not exact and section:
        best = section
    elif not exact and "." not in key:
        by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(valid)}
        best = [by_last[nearest_first(last, by_last)[0]]]
    return RecipeError(
        f"`{key}` is not a recipe key; did you mean {' or '.join(f'`{name}`' for name in best)}?"
    )


def _build(cls: Any, table: Mapping[str, Any], prefix: str) -> Any:
    known = _fields(cls)
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = prefix + name
        if name not in known:
            raise unknown_key(key)
        kind, spec = known[name]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise RecipeError(f"`{key}` (={value!r}) must be a table, written [{key}].")
            values[name] = _build(kind, value, key + ".")
        else:
            values[name] = _checked(key, value, kind, spec.metadata)
    return cls(**values)


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a string in quotes",
    bool: "true or false",
    dict: "a table",
}


def _checked(key: str, value: Any, kind: Any, rules: Mapping[str, Any]) -> Any:
    """`value` as the type `kind`, or an error that lists what is allowed."""
    origin = get_origin(kind) or kind
    if origin is tuple:
        item = get_args(kind)[0]
        if not isinstance(value, (list, tuple)):
            raise RecipeError(f"`{key}` (={value!r}) must be a list.")
        return tuple(_checked(key, one, item, rules) for one in value)
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, origin) or (origin is int and isinstance(value, bool)):
        raise RecipeError(f"`{key}` (={value!r}) must be {_WORDS[origin]}.")
    if rules.get("choices") and value not in rules["choices"]:
        raise RecipeError(
            f"`{key}` (={value!r}) must be one of {', '.join(nearest_first(value, rules['choices']))}."
        )
    low, high = rules.get("low"), rules.get("high")
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"`{key}` (={value!r}) must be finite.")
    if low is not None and value < low:
        raise RecipeError(f"`{key}` (={value!r}) must be at least {low}.")
    if high is not None and value > high:
        raise RecipeError(f"`{key}` (={value!r}) must be at most {high}.")
    return value


def _check_together(recipe: Recipe) -> None:
    """Rules that tie several keys."""
    if recipe.data.batch_size % recipe.run.accumulate:
        raise RecipeError(
            f"`data.batch_size` (={recipe.data.batch_size}) must be divisible by "
            f"`run.accumulate` (={recipe.run.accumulate})."
        )
    if len(recipe.optimizer.betas) != 2:
        raise RecipeError(f"`optimizer.betas` (={list(recipe.optimizer.betas)}) must be two numbers.")
    Augment.parse(recipe.data.augment, Augment())
    schedule = recipe.schedule
    if schedule.first_stage_epochs >= schedule.epochs:
        raise RecipeError(
            f"`schedule.first_stage_epochs` (={schedule.first_stage_epochs}) must be smaller than "
            f"`schedule.epochs` (={schedule.epochs}), which counts both stages."
        )
    if schedule.first_stage_epochs and recipe.model.method not in BINARY_INPUT_METHODS:
        raise RecipeError(
            f"`model.method` (={recipe.model.method!r}) must have binary activations "
            f"({', '.join(BINARY_INPUT_METHODS)}) for `schedule.first_stage_epochs` "
            f"(={schedule.first_stage_epochs})."
        )
    if recipe.loss.teacher and not recipe.loss.temperature:
        raise RecipeError("`loss.temperature` (=0.0) must be above 0 when there is a teacher.")


def apply_override(table: dict[str, Any], override: str) -> None:
    """Apply one `--set key=value` to a recipe's table; the value is read as TOML, or as a plain string."""
    key, equals, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise RecipeError(f"`--set {override}` must look like `section.key=value`.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    kind = recipe_keys().get(key, (None, None))[0]
    if kind is str and not isinstance(value, str):
        value = text
    _put(table, key, value)


_TABLES = (["model", "options"], ["data", "augment"], ["data", "options"])


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    if key not in recipe_keys() and parts[:2] not in _TABLES:
        raise unknown_key(key)
    for part in parts[:-1]:
        table = table.setdefault(part, {})
    table[parts[-1]] = value


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with the keys of `over` laid on top, tables merged."""
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where} is not valid TOML: {error}.") from None
    return table
