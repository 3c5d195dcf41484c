"""Adds the comparison with onnxruntime-web to the page: the engine, and real-valued networks as ONNX.

    python web/compare.py [--out web/dist/page/compare] [--photo RUN] [--digit RUN] [--store]

RUN is the folder of a training run of a real-valued network (`xnorpp train digits-small-real`). Without
--digit the digits network is trained here, a minute; without --photo the ResNet-20 is the one stored beside
this script, which `--photo RUN --store` writes (`xnorpp train baseline-cifar10-resnet20`; float16 halves the
file). Needs torch, onnx, onnxscript and npm.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from xnorpp.bench.peers import export_onnx
from xnorpp.models import create_model
from xnorpp.runtime.format.program import read
from xnorpp.training.state.checkpoint import load_model

ROOT = Path(__file__).resolve().parents[1]
ENGINE = "onnxruntime-web@1.30.0"
STORED = ROOT / "web" / "real" / "cifar10-resnet20.safetensors"
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
PACKED = {
    "photo": ROOT / "src" / "xnorpp" / "shipped" / "cifar10-resnet20.xnor",
    "digit": ROOT / "web" / "page" / "models" / "digits.xnor",
}


def fetch_engine(out: Path) -> None:
    """The files of onnxruntime-web that one thread of WebAssembly needs."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["npm", "pack", "--silent", ENGINE], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"npm cannot fetch {ENGINE}: {done.stderr.strip()}")
        with tarfile.open(Path(folder) / done.stdout.strip()) as archive:
            for name in FILES:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                (out / name).write_bytes(member.read())


def store(model: torch.nn.Module, meta: dict[str, Any]) -> None:
    """The weights in float16, and where they come from."""
    weights = {name: value.half() for name, value in model.state_dict().items() if value.is_floating_point()}
    known = {name: meta[name] for name in ("dataset", "metrics", "commit", "settings_hash", "seed")}
    STORED.parent.mkdir(exist_ok=True)
    safetensors.torch.save_file(weights, STORED, {"trained": json.dumps(known)})


def stored() -> torch.nn.Module:
    """The real-valued ResNet-20 that is stored here."""
    model = create_model("resnet20", method="real").eval()
    weights = {name: value.float() for name, value in safetensors.torch.load_file(STORED).items()}
    counters = {name: value for name, value in model.state_dict().items() if not value.is_floating_point()}
    model.load_state_dict({**weights, **counters})
    return model


def network(name: str, run: Path | None) -> torch.nn.Module:
    """The real-valued network, trained."""
    if run is not None:
        return load_model(run)[0]
    if name == "photo":
        return stored()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "xnorpp", "train", "digits-small-real", "--quiet", "--out", folder]
        subprocess.run(command, check=True)
        return load_model(folder)[0]


def main() -> int:
    """Fetch, export, write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "web" / "dist" / "page" / "compare")
    parser.add_argument("--photo", type=Path)
    parser.add_argument("--digit", type=Path)
    parser.add_argument("--store", action="store_true", help="store the weights of --photo, and no more")
    given = parser.parse_args()
    if given.store:
        if given.photo is None:
            parser.error("--store needs --photo RUN")
        store(*load_model(given.photo))
        print(f"{STORED}: {STORED.stat().st_size / 1e3:.0f} kB")
        return 0
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    fetch_engine(given.out)
    networks: dict[str, list[dict[str, Any]]] = {}
    for name, packed in PACKED.items():
        program = read(packed.read_bytes())
        file = f"{name}.onnx"
        export_onnx(network(name, getattr(given, name)), 1, program.input_shape, given.out / file)
        row = {
            "file": file,
            "precision": "float32",
            "mean": program.mean,
            "std": program.std,
        }
        networks[name] = [row]
    (given.out / "networks.json").write_text(json.dumps(networks), encoding="utf-8")
    total = sum(path.stat().st_size for path in given.out.iterdir())
    print(f"{given.out}: {total / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
