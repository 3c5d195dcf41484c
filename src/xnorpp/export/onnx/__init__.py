"""A packed model as ONNX."""

from xnorpp.export.onnx.model import export_onnx

__all__ = ["export_onnx"]
