"""ResNet-18 at 224 x 224 in one page of one headless Chromium: xnorpp against onnxruntime-web, one thread.

    python benchmarks/browser.py [--rounds 7] [--models DIR] [--build relaxed|simd]

Needs `make web web-compare` (the package, and onnxruntime-web) and the extra `bench` (onnx, onnxruntime) to
make the networks, which are stored in DIR. Weights are random, as in `xnorpp bench`: the packed network has
the paper's block, the others run the ordinary ResNet-18, as float32 and as int8 (QDQ, per channel). The
engines take turns; the medians and their ratios are printed as one JSON object, and appended to
results/deploy.jsonl with --record. Timings need an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "web"))
from browser import DIST, chromium, result_of  # noqa: E402
from c_library import record  # noqa: E402

PAGE = """<!doctype html><meta charset="utf-8"><title>benchmark</title><script type="module">
import { load } from "./lib/xnorpp.js";
const report = (body) => fetch("result", { method: "POST", body: JSON.stringify(body) });
try {
  const options = await (await fetch("options.json")).json();
  const ort = await import("./compare/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = new URL("compare/", location.href).href;
  ort.env.wasm.numThreads = 1;
  const model = await load("resnet18.xnor", options.build ? { build: options.build } : {});
  const bytes = new Uint8Array(224 * 224 * 3).map((_, i) => Math.imul(i, 2654435761) >>> 24);
  const floats = new ort.Tensor("float32", Float32Array.from(bytes, (b) => b / 64 - 2), [1, 3, 224, 224]);
  const engines = { xnorpp: async () => model.run(bytes) };
  for (const name of ["fp32", "int8"]) {
    const session = await ort.InferenceSession.create(`${name}.onnx`, { executionProviders: ["wasm"] });
    engines[name] = () => session.run({ [session.inputNames[0]]: floats });
  }
  const times = Object.fromEntries(Object.keys(engines).map((name) => [name, []]));
  for (const run of Object.values(engines)) for (let i = 0; i < 3; i++) await run();
  for (let round = 0; round < options.rounds; round++)
    for (const [name, run] of Object.entries(engines)) {
      const count = name === "xnorpp" ? 6 : 2;
      for (let i = 0; i < count; i++) {
        const start = performance.now();
        await run();
        times[name].push(performance.now() - start);
      }
    }
  report({ times, isa: model.isa, agent: navigator.userAgent });
} catch (error) {
  report({ error: String(error?.stack ?? error) });
}
</script>"""


def make_models(folder: Path) -> None:
    """The packed network, and the baseline as float32 and int8."""
    import torch

    import xnorpp
    from xnorpp.bench.networks import DEFAULT, baseline_network, binary_network
    from xnorpp.bench.peers import Task, export_onnx, quantise_onnx

    shape = (3, 224, 224)
    folder.mkdir(parents=True, exist_ok=True)
    baseline = baseline_network(DEFAULT)
    task = Task(baseline, shape, 1, (1,), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    xnorpp.pack(binary_network(DEFAULT), example=torch.zeros(1, *shape)).save(folder / "resnet18.xnor")
    export_onnx(baseline, 1, shape, folder / "fp32.onnx")
    quantise_onnx(task, folder)


def median(values: list[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]


def main() -> int:
    """Make, serve, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--build", choices=("relaxed", "simd"))
    parser.add_argument(
        "--compare", type=Path, default=DIST / "page" / "compare", help="folder of onnxruntime-web"
    )
    parser.add_argument("--record", action="store_true", help="append the row to results/deploy.jsonl")
    given = parser.parse_args()
    if chromium() is None or not (DIST / "page" / "lib").exists() or not given.compare.exists():
        raise SystemExit("chromium, web/dist and onnxruntime-web are needed: make web-setup web web-compare")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = given.models or folder / "models"
        if not (models / "int8.onnx").exists():
            make_models(models)
        for file in ("resnet18.xnor", "fp32.onnx", "int8.onnx"):
            shutil.copy(models / file, folder)
        shutil.copytree(DIST / "page" / "lib", folder / "lib")
        shutil.copytree(given.compare, folder / "compare")
        (folder / "index.html").write_text(PAGE, encoding="utf-8")
        options = {"rounds": given.rounds, "build": given.build}
        (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
        found: dict[str, Any] = result_of(folder, "index.html", seconds=500)
    if "error" in found:
        raise SystemExit(found["error"])
    times = {engine: median(values) for engine, values in found["times"].items()}
    best = {engine: min(values) for engine, values in found["times"].items()}
    row = {
        "kind": "browser, ResNet-18 at 224",
        "isa": found["isa"],
        "agent": found["agent"],
        "ms": {engine: round(value, 2) for engine, value in times.items()},
        "best_ms": {engine: round(value, 2) for engine, value in best.items()},
        "times_fp32": round(times["fp32"] / times["xnorpp"], 2),
        "times_int8": round(times["int8"] / times["xnorpp"], 2),
        "best_times_fp32": round(best["fp32"] / best["xnorpp"], 2),
        "best_times_int8": round(best["int8"] / best["xnorpp"], 2),
    }
    print(json.dumps(row, indent=2))
    if given.record:
        record(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
