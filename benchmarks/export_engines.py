"""A shipped network in onnxruntime and OpenVINO: classes against the library's on CIFAR-10, size of the file.

    python benchmarks/export_engines.py --data DIR [--images 1000]

Needs onnx, onnxruntime and openvino (the environment of `make test-export`) and CIFAR-10 in its binary form.
Rows go to results/export.jsonl.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino

from xnorpp.data import load_dataset
from xnorpp.export import export_onnx, export_openvino
from xnorpp.runtime import load
from xnorpp.runtime.reference import normalise
from xnorpp.shipped import shipped_path

ROOT = Path(__file__).resolve().parents[1]
BATCH = 20


def in_onnxruntime(data: bytes, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.concatenate(
        [session.run(None, {"input": x[i : i + BATCH]})[0] for i in range(0, len(x), BATCH)]
    )


def in_openvino(model: Any, x: Any) -> tuple[Any, list[str]]:
    config = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    rows = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    found = [
        row["primitiveType"].astype(str) for row in rows if row["layerType"].astype(str).startswith("Binary")
    ]
    return np.concatenate([np.array(compiled(x[i : i + BATCH])[0]) for i in range(0, len(x), BATCH)]), found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="CIFAR-10")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--model", default="cifar10-resnet18")
    given = parser.parse_args()
    images = load_dataset("cifar10", given.data, "test").images[: given.images // BATCH * BATCH]
    packed = load(shipped_path(given.model), threads=1)
    expected = packed(images).argmax(1)
    x = normalise(packed.program, images)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    size = shipped_path(given.model).stat().st_size

    def record(engine: str, classes: Any, **more: Any) -> None:
        row = {"kind": "exported model", "model": given.model, "engine": engine, "images": len(images)}
        row |= {"same_class": int((classes == expected).sum()), **more, "commit": commit.stdout.strip()}
        with (ROOT / "results" / "export.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")
        print(row, flush=True)

    for layout in ("bits", "qdq"):
        data = export_onnx(packed.program, layout=layout).SerializeToString()
        classes = in_onnxruntime(data, x).argmax(1)
        ratio = round(len(data) / size, 3)
        record(
            f"onnxruntime {onnxruntime.__version__}", classes, layout=layout, bytes=len(data), of_packed=ratio
        )
    scores, kernels = in_openvino(export_openvino(packed.program, batch=BATCH), x)
    record(f"openvino {openvino.__version__.split('-')[0]}", scores.argmax(1), binary_kernels=sorted(kernels))


if __name__ == "__main__":
    main()
