"""Tar shards in the WebDataset convention, for many machines: `KEY.jpg` and `KEY.cls` (or `KEY.json`) next to
each other.

A key is a member's path up to the first dot of its file name; the rest is the extension. The image is .jpg,
.jpeg, .png, .webp or .npy (a raw uint8 array); the label is the integer in .cls, or where there is none,
"label" or "cls" in .json.

The shards' headers are read once and the index of offsets is stored, so that a sample is one seek and one
read, any rank can compute what every rank sees, and a run can resume anywhere. Training reads shards in
random order, shuffles samples within windows of several shards (see `order.SHUFFLE_WINDOW`), and gives each
rank a contiguous part of that stream: a rank reads its own shards only, except at the seams.
"""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import json
import os
import re
import tarfile
import warnings
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.data.dataset import (
    Augment,
    Dataset,
    DatasetError,
    DatasetInfo,
    Int64Array,
    StreamDataset,
    UInt8Array,
    skip_limit,
)
from xnorpp.data.formats.shard_card import CARD, MAX_LABEL_BYTES, check_count, read_card, read_label
from xnorpp.data.loading.cache import decode_all
from xnorpp.data.places import cache_path, not_found
from xnorpp.runtime.decode import Blob, fit
from xnorpp.runtime.files import replacing, write_atomically
from xnorpp.runtime.format.preprocess import as_image

SHARDS = DatasetInfo(
    name="shards",
    classes=1000,
    channels=3,
    image_size=224,
    resize=256,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    train_size=0,
    test_size=0,
    default_augment=Augment(crop=True, pad=0, flip=True),
    how_to_get="give a folder with train-*.tar and val-*.tar, or a pattern such as {train,val}-*.tar; "
    "xnorpp.data.write_shards makes them from another data set",
)
_ENDINGS = ("jpg", "jpeg", "png", "webp", "npy")
_MAX_KEY = 1024  # characters; all keys of an index take the room of the longest
_INDEX = ("labels", "offsets", "sizes", "keys")
_SPLIT_WORDS = {"train": ("train", "training"), "test": ("val", "valid", "validation", "test")}


@dataclass
class ShardDataset(StreamDataset):
    """`shards[shard_of[i]]` holds sample i in `sizes[i]` bytes from `offsets[i]` on.

    Example:
        >>> import tempfile
        >>> from xnorpp.data import load_dataset, write_shards
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shards = write_shards(load_dataset("digits", split="test"), folder, format="npy")
        ...     data = load_dataset("shards", root=folder, split="test")
        >>> type(data).__name__, len(data)
        ('ShardDataset', 359)
    """

    shards: list[str]
    shard_of: Int64Array
    offsets: Int64Array
    sizes: Int64Array
    keys: list[str]

    @property
    def groups(self) -> Int64Array:
        return self.shard_of

    def blob(self, index: int) -> Blob:
        return Blob(self.shards[self.shard_of[index]], int(self.offsets[index]), int(self.sizes[index]))

    def sample_name(self, index: int) -> str:
        return f"{self.shards[self.shard_of[index]]}:{self.keys[index]}"

    def subset(self, indices: Int64Array) -> ShardDataset:
        return replace(
            self,
            labels=self.labels[indices],
            shard_of=self.shard_of[indices],
            offsets=self.offsets[indices],
            sizes=self.sizes[indices],
            keys=[self.keys[i] for i in indices],
        )


def load(
    info: DatasetInfo,
    root: str | Path | None,
    split: str,
    *,
    classes: int | None = None,
) -> ShardDataset:
    """`root`: a folder with `train-*.tar` and `val-*.tar` (or `test-*.tar`), or a pattern with braces or
    wildcards, of whose files those named for the split are used (all, if no name contains a split).

    The number of classes is `classes`, or what the folder's dataset.json states, or the largest label plus
    one.
    """
    paths = _shard_paths(info, root, split)
    card = read_card(Path(paths[0]).parent)
    parts = [_index(Path(path)) for path in paths]
    labels = np.concatenate([part["labels"] for part in parts])
    if not len(labels):
        raise DatasetError(f"the {len(paths)} shards of {root} hold no samples")
    names = card.classes
    count = check_count(classes if classes is not None else len(names) or max(int(labels.max()) + 1, 1))
    if len(names) != count:
        names = tuple(str(label) for label in range(count))
    if labels.min() < 0 or labels.max() >= count:
        raise DatasetError(f"labels from {labels.min()} to {labels.max()} do not fit `classes` (={count})")
    sizes = {f"{split}_size": len(labels)}
    return ShardDataset(
        info=replace(info, classes=count, **{**card.fields, **sizes}),
        split=split,
        classes=names,
        labels=labels,
        shards=paths,
        shard_of=np.concatenate([np.full(len(part["labels"]), i, np.int64) for i, part in enumerate(parts)]),
        offsets=np.concatenate([part["offsets"] for part in parts]),
        sizes=np.concatenate([part["sizes"] for part in parts]),
        keys=[str(key) for part in parts for key in part["keys"]],
    )


def _shard_paths(info: DatasetInfo, root: str | Path | None, split: str) -> list[str]:
    if root is None:
        raise not_found(info, "(no root given)", "a folder or a pattern of tar files")
    pattern = os.path.expanduser(str(root))
    if re.match(r"(pipe:|\w+://)", pattern):
        raise DatasetError(f'`root` (="{pattern}") must be a folder or a pattern of local files')
    if os.path.isdir(pattern):
        stems = ("train",) if split == "train" else ("val", "validation", "test")
        for stem in stems:
            found = sorted(glob.glob(f"{glob.escape(pattern)}/{stem}*.tar"))
            if found:
                return found
        raise not_found(info, root, " or ".join(f"{stem}*.tar" for stem in stems))
    paths: list[str] = []
    for name in expand_braces(pattern):
        found = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
        missing = [path for path in found if not os.path.isfile(path)]
        if missing or not found:
            raise not_found(info, root, missing[0] if missing else name)
        paths += found
    return _of_split(info, root, paths, split)


def _of_split(info: DatasetInfo, root: str | Path, paths: list[str], split: str) -> list[str]:
    """The files whose names contain `split`: a pattern of training shards must not become the test set
    too."""
    words = [set(re.findall("[a-z]+", Path(path).name.lower())) for path in paths]
    named = {kind: [bool(found & set(_SPLIT_WORDS[kind])) for found in words] for kind in _SPLIT_WORDS}
    if not any(named["train"]) and not any(named["test"]):
        return paths
    chosen = [path for path, mine in zip(paths, named[split], strict=True) if mine]
    if not chosen:
        raise not_found(info, root, "a tar file named " + " or ".join(_SPLIT_WORDS[split]))
    return chosen


def expand_braces(pattern: str) -> list[str]:
    """`a-{000..002}.tar` and `{x,y}.tar` spelled out, as a shell does (no nesting)."""
    choices: list[list[str]] = []
    for piece in re.split(r"(\{[^{}]*\})", pattern):
        span = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", piece)
        if span:
            first, last = span.groups()
            if int(last) < int(first):
                raise ValueError(f'`root` (="{pattern}") has the empty range {piece}')
            choices.append([str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)])
        elif piece.startswith("{"):
            choices.append(piece[1:-1].split(","))
        else:
            choices.append([piece])
    return ["".join(parts) for parts in itertools.product(*choices)]


def _index(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Labels, offsets, sizes and keys of one shard.

    Stored beside it, valid for as long as its size and time stay the same.
    """
    status = path.stat()
    mark = hashlib.sha256(f"1 {path.name} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    kept = cache_path(path.parent, f"{path.stem}-{mark}.npz")
    if kept.is_file():
        try:
            with np.load(kept, allow_pickle=False) as arrays:
                index = {name: arrays[name] for name in _INDEX}
            if _fits(index, status.st_size):
                return index
        except (OSError, ValueError, KeyError, EOFError, MemoryError, SyntaxError, zipfile.BadZipFile):
            pass  # damaged: read the shard again
    index = _scan(path)
    with suppress(OSError), replacing(kept, flush=False) as temporary, temporary.open("wb") as file:
        np.savez(file, **index)  # type: ignore[arg-type]
    return index


def _fits(index: dict[str, np.ndarray[Any, Any]], size: int) -> bool:
    """Whether a stored index can be one of a shard of `size` bytes."""
    labels, offsets, sizes, keys = (index[name] for name in _INDEX)
    if any(numbers.dtype != np.int64 or numbers.ndim != 1 for numbers in (labels, offsets, sizes)):
        return False
    if keys.dtype.kind != "U" or not labels.shape == offsets.shape == sizes.shape == keys.shape:
        return False
    return bool(((offsets >= 0) & (sizes >= 0) & (offsets <= size) & (sizes <= size - offsets)).all())


def _scan(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    unlabelled: dict[str, str] = {}  # key -> a .cls or .json without a label
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                folder, _, file = member.name.rpartition("/")
                stem, _, extension = file.partition(".")
                if not member.isfile() or not stem:
                    continue
                key, extension = (f"{folder}/{stem}" if folder else stem), extension.lower()
                if extension in (*_ENDINGS, "cls", "json") and (len(key) > _MAX_KEY or member.issparse()):
                    why = "is sparse" if member.issparse() else f"is longer than {_MAX_KEY} characters"
                    raise DatasetError(f"{path}: the member {key[:60]} {why}, which is not supported")
                if extension in _ENDINGS:
                    images[key] = (member.offset_data, member.size)
                elif extension in ("cls", "json"):
                    content = shard.extractfile(member)
                    assert content is not None
                    try:
                        label = read_label(content.read(MAX_LABEL_BYTES + 1), extension)
                    except ValueError as error:
                        raise DatasetError(f"{path}: {member.name} {error}") from None
                    if label is None:
                        unlabelled[key] = member.name
                    elif extension == "cls" or key not in labels:
                        labels[key] = label
    except DatasetError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise DatasetError(f"{path} is not a complete, uncompressed tar file ({error})") from error
    bare = next((key for key in images if key not in labels), None)
    if bare in unlabelled:
        raise DatasetError(
            f'{path}: {unlabelled[bare]} must hold an integer label ("label" or "cls" in JSON)'
        )
    if bare is not None:
        raise DatasetError(f"{path}: the image {bare} has no label ({bare}.cls or {bare}.json)")
    return {
        "labels": np.array([labels[key] for key in images], np.int64),
        "offsets": np.array([offset for offset, _ in images.values()], np.int64),
        "sizes": np.array([size for _, size in images.values()], np.int64),
        "keys": np.array(list(images), np.str_),
    }


def write_shards(
    dataset: Dataset,
    folder: str | Path,
    *,
    resize: int | None = None,
    format: str = "jpg",
    quality: int = 95,
    samples_per_shard: int = 4096,
    workers: int | None = None,
    max_skipped: int | None = None,
) -> list[Path]:
    """Writes a data set as shards `train-000000.tar` ... (`val-` for a test split) with a dataset.json.

    Images are resized here once (`resize`, default the data set's own: ImageNet's 256), by `workers`
    processes (default: one per core), which makes training several times cheaper on the CPU: the paper
    resizes to 256x256 first anyhow. "npy" stores those pixels exactly (192 KiB per image); "jpg" encodes them
    again at `quality` without chroma subsampling. The order is shuffled by a fixed seed, so that a shard
    holds all kinds of classes. Unreadable images are named in a warning and left out, at most `max_skipped`
    of them. Returns the shards' paths.

    Example:
        >>> import tempfile
        >>> from xnorpp.data import load_dataset, write_shards
        >>> digits = load_dataset("digits", split="test")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shards = write_shards(digits, folder, format="npy", samples_per_shard=200)
        >>> [path.name for path in shards]
        ['val-000000.tar', 'val-000001.tar']
    """
    if format not in ("jpg", "npy"):
        raise ValueError(f'`format` (="{format}") must be "jpg" or "npy"')
    if samples_per_shard < 1:
        raise ValueError(f"`samples_per_shard` (={samples_per_shard}) must be at least 1")
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    info = dataset.info
    side = resize if resize is not None else info.resize or info.image_size
    stem = "train" if dataset.split == "train" else "val"
    order = np.random.Generator(np.random.Philox(0)).permutation(len(dataset)).astype(np.int64)
    tolerated = skip_limit(len(dataset), max_skipped)
    written = []
    for number, start in enumerate(range(0, len(order), samples_per_shard)):
        chosen = order[start : start + samples_per_shard]
        part = dataset.subset(chosen)
        if isinstance(part, StreamDataset):
            images, good, skipped = decode_all(part, side, workers=workers, max_skipped=tolerated)
            chosen, tolerated = chosen[good], tolerated - len(skipped)
            for name, reason in skipped:
                warnings.warn(f"{name} cannot be read ({reason}) and is left out", stacklevel=2)
        else:
            images = np.stack(
                [fit(as_image(image), side, side, 0, 0, info.channels) for image in part.images]
            )
        path = out / f"{stem}-{number:06d}.tar"
        with replacing(path, flush=False) as temporary, tarfile.open(temporary, "w") as shard:
            for index, pixels in zip(chosen, images, strict=True):
                key = f"{int(index):08d}"
                _add(shard, f"{key}.{format}", _encode(pixels, format, quality))
                _add(shard, f"{key}.cls", str(int(dataset.labels[index])).encode())
        written.append(path)
    card = {
        "name": info.name,
        "classes": list(dataset.classes),
        "channels": info.channels,
        "image_size": info.image_size,
        "resize": side,
        "mean": list(info.mean),
        "std": list(info.std),
    }
    write_atomically(out / CARD, (json.dumps(card, indent=1) + "\n").encode(), flush=False)
    return written


def _encode(pixels: UInt8Array, format: str, quality: int) -> bytes:
    file = io.BytesIO()
    if format == "npy":
        np.save(file, pixels)
    else:
        as_image(pixels).save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))
