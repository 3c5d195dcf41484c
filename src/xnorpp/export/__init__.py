"""Packed models for other places: C source for microcontrollers, and the files of other engines."""

from xnorpp.export.c import Generated, export_c
from xnorpp.export.errors import ExportError
from xnorpp.export.onnx import export_onnx
from xnorpp.export.openvino import export_openvino
from xnorpp.export.qonnx import export_qonnx

__all__ = ["ExportError", "Generated", "export_c", "export_onnx", "export_openvino", "export_qonnx"]
