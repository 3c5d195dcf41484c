"""binarize(model): the layers of any nn.Module made binary, with a report; and scales resized on purpose."""

from __future__ import annotations

from xnorpp.convert.conversion import Report, ReportRow, binarize, resize_scales

__all__ = ["Report", "ReportRow", "binarize", "resize_scales"]
