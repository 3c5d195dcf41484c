"""What `xnorpp predict --save DIR` does: masks as PNG files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xnorpp.runtime import PackedModel


def save_masks(
    model: PackedModel, images: Sequence[str | bytes], folder: Path, *, as_json: bool = False
) -> int:
    """Writes a mask for each image and dense output, and prints what each shows; 1 where an image failed."""
    from xnorpp.runtime.masks import dense_outputs, segment
    from xnorpp.runtime.predict import printable

    several = len(dense_outputs(model.program)) > 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`--save` (={folder}) must be a folder ({error.strerror})") from None
    rows: list[dict[str, Any]] = []
    failed, taken = 0, set[str]()
    for image in images:
        name = "-" if isinstance(image, bytes) else str(image)
        stem = _stem(name, taken)
        try:
            masks = segment(model, image)
        except ValueError as error:
            failed += 1
            print(
                f"xnorpp predict: {printable(name)} cannot be read ({printable(str(error))}).",
                file=sys.stderr,
            )
            rows.append({"image": name, "error": str(error)})
            continue
        for output, mask in masks.items():
            path = folder / (f"{stem}.{output}.png" if several else f"{stem}.png")
            mask.image().save(path)
            shares = mask.shares()
            height, width = mask.classes.shape
            row = {"image": name, "mask": str(path), "height": height, "width": width, "classes": shares}
            rows.append({**row, "output": output} if several else row)
            if not as_json:
                parts = [
                    f"{printable(label)} {100 * share:.1f} %" for label, share in list(shares.items())[:5]
                ]
                print(f"{printable(name)}: {printable(str(path))}, {', '.join(parts)}")
    if as_json:
        print(json.dumps(rows, indent=2))
    return 1 if failed else 0


def _stem(name: str, taken: set[str]) -> str:
    """A file name for an image's mask; a second image of the same name gets a number."""
    base = "image" if name == "-" else Path(name).stem
    stem, count = base, 1
    while stem in taken:
        count += 1
        stem = f"{base}-{count}"
    taken.add(stem)
    return stem
