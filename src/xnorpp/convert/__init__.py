"""binarize(model): the layers of any nn.Module made binary, with a report; back again; and scales resized."""

from __future__ import annotations

from xnorpp.convert.conversion import binarize, real_state_dict, unbinarize
from xnorpp.convert.report import Report, ReportRow
from xnorpp.convert.resize import resize_scales

__all__ = ["Report", "ReportRow", "binarize", "real_state_dict", "resize_scales", "unbinarize"]
