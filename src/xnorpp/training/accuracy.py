"""Top-1 and top-5 accuracy and mean cross-entropy over data of any kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from xnorpp.data import Preprocess, load_dataset, make_loader
from xnorpp.data.own import as_dataset, is_path
from xnorpp.training.distributed import World, sum_over_world

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def autocast(amp: str, device: torch.device, *, cache: bool = True) -> Iterator[None]:
    """Autocast to `amp` (off, bf16 or fp16). Without `cache` a weight is cast again at each use, as a step
    that is recorded needs it.
    """
    if amp == "off":
        yield
        return
    with torch.autocast(device.type, dtype=AMP_TYPES[amp], cache_enabled=cache):
        yield


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Float32 without TF32, in convolutions and in matrix products: a number near zero that is rounded to ten
    bits may get another sign.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    amp: str = "off",
    world: World | None = None,
    batch_size: int = 256,
    workers: int = 0,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    observe: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> dict[str, float]:
    """Accuracy in per cent and mean loss of a network.

    The network is put in evaluation mode and back in the mode it was in. With `amp` off, which is how a run
    is evaluated, all arithmetic is float32, without TF32; the fused training path needs gradients and is not
    used here.

    Args:
        model: The network; data goes to the device its parameters are on.
        data: A loader that `make_loader` made, or what `train` takes as `test_data`: a torch `Dataset` or
            anything indexable, a `DataLoader`, a pair of arrays (images, labels), a data set of this package,
            or the path of a folder.
        amp: Autocast: "off", "bf16" or "fp16".
        world: The processes over which to sum; None: this one alone.
        batch_size: Samples at a time, where `data` is not a loader.
        workers: Processes that read samples, where `data` is not a loader.
        preprocess: How uint8 images are resized and normalised, such as `meta["preprocess"]` of
            `load_model`; None: own images are divided by 255, those of a folder and of our data sets are
            prepared as their cards state.
        observe: Called with the outputs and the labels of each batch.

    Returns:
        `top1`, `top5` (per cent), `loss` and `images`, the number of samples.

    Raises:
        DatasetError: The data cannot be used.
        ValueError: There is no sample to evaluate on.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
        >>> images, labels = torch.rand(10, 1, 8, 8), torch.arange(10) % 2
        >>> result = evaluate(net, (images, labels))
        >>> int(result["images"]), 0 <= result["top1"] <= 100
        (10, True)
    """
    if callable(getattr(data, "epoch", None)):
        return _measure(model, data, amp, world, observe)
    _check_module(model)
    place = next((one.device for one in model.parameters()), torch.device("cpu"))
    opened = _open(data, preprocess)
    size = None if preprocess is None else opened.info.image_size or None
    loader = make_loader(opened, batch_size=batch_size, train=False, device=place, workers=workers, size=size)
    try:
        return _measure(model, loader, amp, world, observe)
    finally:
        loader.close()


def _open(data: Any, preprocess: Preprocess | Mapping[str, Any] | None) -> Any:
    """A data set whose images are prepared as stated."""
    if preprocess is None:
        return load_dataset("folder", data, "test") if is_path(data) else as_dataset(data, argument="`data`")
    stated = preprocess if isinstance(preprocess, Preprocess) else Preprocess.from_dict(preprocess)
    if is_path(data):
        like = {"size": stated.side, "resize": stated.resize, "channels": stated.channels}
        dataset = load_dataset("folder", data, "test", **like)  # type: ignore[arg-type]
    else:
        dataset = as_dataset(data, argument="`data`")
    return replace(dataset, info=dataset.info.following(stated))


def _measure(
    model: nn.Module,
    loader: Any,
    amp: str,
    world: World | None,
    observe: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> dict[str, float]:
    """Summed over all processes of `world`."""
    _check_module(model)
    was_training = model.training
    model.eval()
    totals: torch.Tensor | None = None
    try:
        with torch.no_grad(), exact_float32():
            for images, labels in loader.epoch(0):
                logits = _scores(model, images, labels, amp).float()
                if totals is None:
                    totals = torch.zeros(4, dtype=torch.float64, device=logits.device)
                totals += _count(logits, labels)
                if observe:
                    observe(logits, labels)
    finally:
        model.train(was_training)
    device = world.device if world else torch.device("cpu")
    if totals is None:
        totals = torch.zeros(4, dtype=torch.float64, device=device)
    if world:
        totals = sum_over_world(totals, world)
    right, right5, loss, count = totals.tolist()
    if not count:
        raise ValueError("`data` gave no images to evaluate on.")
    return {"top1": 100 * right / count, "top5": 100 * right5 / count, "loss": loss / count, "images": count}


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` is {type(model).__name__}; an nn.Module is needed (`evaluate_packed` takes packed "
            "models)"
        )


def _scores(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, amp: str) -> torch.Tensor:
    """The outputs of the network, after a check that they fit the data."""
    try:
        with autocast(amp, images.device):
            logits: torch.Tensor = model(images)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(f"The network fails on a batch of shape {tuple(images.shape)}: {reason}.") from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        made = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(
            f"The network returns {made} for a batch of {len(images)}; it must return a tensor of shape "
            f"({len(images)}, classes), the scores."
        )
    if labels.device.type == "cpu" and len(labels) and int(labels.max()) >= logits.shape[1]:
        raise ValueError(
            f"`data` has the label {int(labels.max())}, and the network has {logits.shape[1]} outputs, for "
            f"the labels 0 to {logits.shape[1] - 1}."
        )
    return logits


def _count(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Right at the first guess, right within five, summed loss, number of images."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    count = torch.tensor(len(labels), device=logits.device)
    return torch.stack([hits[:, 0].sum().double(), hits.sum().double(), loss.double(), count.double()])
