"""How accuracies are printed: by runs, by `xnorpp eval`, and in cards and tables of models."""

from __future__ import annotations


def has_top5(classes: int) -> bool:
    """Whether top-5 accuracy is printed: among five classes or fewer it is always 100 %."""
    return classes > 5


def accuracy_text(top1: float, top5: float, classes: int, *, separator: str = ", ", width: int = 0) -> str:
    """Per cent, each number at least `width` characters wide.

    >>> accuracy_text(93.5, 99.75, 10)
    'top-1 93.50 %, top-5 99.75 %'
    >>> accuracy_text(93.5, 100.0, 2)
    'top-1 93.50 %'
    """
    text = f"top-1 {top1:{width}.2f} %"
    return f"{text}{separator}top-5 {top5:{width}.2f} %" if has_top5(classes) else text
