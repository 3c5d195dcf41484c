"""How the golden files were made: `python tests/golden/make_golden.py VERSION`, once a version.

A golden file of each format version stays here for ever and must load and give the stored output. What made
that of version 1 is in the history of this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from xnorpp.runtime import reference
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import INPUT, VERSION, Program, write
from xnorpp.runtime.stem import picture_filters

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from random_programs import Builder


def golden() -> Program:
    """Every operation of set 1 once, on an 11x10 image; whole-numbered filters for its bytes, two outputs of
    which one is dense, a temperature, and tensors of every encoding that operations of set 1 use."""
    rng = np.random.default_rng(20)

    def real(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def window(kernel: int, stride: int, padding: int) -> dict[str, list[int]]:
        return {"kernel": [kernel] * 2, "stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1]}

    def taps(stride: int, padding: int, groups: int = 1) -> dict[str, object]:
        return {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1], "groups": groups}

    b = Builder((3, 11, 10))
    mean, std = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
    weight = real(12, 3, 3, 3)
    whole = picture_filters(weight, np.array(mean), np.array(std))
    stem = {
        "weight": weight, "bias": real(12), "byte_weight": whole.taps, "byte_rest": whole.rest,
        "byte_mean": whole.mean.astype(np.int16), "byte_scale": whole.step,
    }  # fmt: skip
    x = b.emit("relu", b.emit("conv2d", INPUT, attrs=taps(1, 1), tensors=stem))
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True}
    x = b.emit("max_pool2d", x, attrs=pool)
    bits = b.emit("sign", x, tensors={"threshold": real(12), "flip": rng.integers(0, 2, 12).astype(np.uint8)})
    weight = {"weight": pack_conv_weight(real(12, 6, 3, 3))}
    dot = b.emit("binary_conv2d", bits, attrs={**taps(1, 1, 2), "pad_value": -1}, tensors=weight)
    y = b.emit("affine", dot, tensors={"row": real(6), "col": real(6), "mult": real(12), "add": real(12)})
    x = b.emit("add", b.emit("prelu", y, tensors={"slope": real(12)}), x)
    k = b.emit("box_filter", b.emit("abs_mean", x), attrs=window(3, 1, 1))
    weight = {"weight": pack_conv_weight(real(12, 12, 3, 3))}
    dot = b.emit("binary_conv2d", b.emit("sign", x), attrs={**taps(1, 1), "pad_value": 0}, tensors=weight)
    x = b.emit("mul", dot, k)
    dense = x = b.emit("affine", x, tensors={"map": real(6, 6), "mult": real(12)})
    weight = {"weight": pack_conv_weight(real(9, 12, 2, 2))}
    x = b.emit(
        "hardtanh",
        b.emit("bitweight_conv2d", x, attrs=taps(1, 0), tensors=weight),
        attrs={"min": -9.0, "max": 8.0},
    )
    average = {
        "kernel": [2, 2],
        "stride": [2, 2],
        "padding": [1, 1],
        "ceil_mode": False,
        "count_include_pad": False,
    }
    x = b.emit("avg_pool2d", x, attrs=average)
    x = b.emit("pad2d", x, attrs={"padding": [1, 0, 0, 1, 1, 0], "value": 0.5})
    x = b.emit("signs", b.emit("sign", x, tensors={"full": real(10, 4, 4), "threshold": real(10)}))
    left = b.emit("flatten", b.emit("global_avg_pool", x))
    flat = b.emit("flatten", x)
    weight = {"weight": pack_linear_weight(real(10, 160))}
    right = b.emit(
        "affine", b.emit("binary_linear", b.emit("sign", flat), tensors=weight), tensors={"mult": real(10)}
    )
    x = b.emit(
        "bitweight_linear", b.emit("add", left, right), tensors={"weight": pack_linear_weight(real(7, 10))}
    )
    fc = {"weight": (real(5, 7) / 8).astype(np.float16), "bias": real(5)}
    x = b.emit("softmax", b.emit("linear", x, tensors=fc))
    return b.program(
        x,
        mean=mean,
        std=std,
        preprocess={"resize": 11, "mean": list(mean), "std": list(std)},
        labels=("ant", "bée", "cat", "dog", "elk"),
        meta={"golden": str(VERSION)},
        output_name="probabilities",
        more_outputs={"features": dense},
        temperature=1.25,
    )


def main() -> None:
    folder = Path(__file__).parent
    version = sys.argv[1]
    if version != str(VERSION) or (folder / f"v{version}.xnor").exists():
        raise SystemExit(f"version {version!r} is not this format's or its golden file exists")
    program = golden()
    write(program, folder / f"v{version}.xnor")
    pictures = np.random.default_rng(21).integers(0, 256, (4, 11, 10, 3), dtype=np.uint8)
    outputs = reference.run(program, pictures)
    np.savez(folder / f"v{version}.npz", pictures=pictures, **outputs)


if __name__ == "__main__":
    main()
