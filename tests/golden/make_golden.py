"""How the golden files were made: `python tests/golden/make_golden.py v2` or `set2`, once each.

A golden file of each format version and of each operation set stays here for ever and must load and give the
stored output. What made that of version 1 is in the history of this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from xnorpp.runtime import reference
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import INPUT, VERSION, Op, Program, write
from xnorpp.runtime.stem import image_filters

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
    whole = image_filters(weight, np.array(mean), np.array(std))
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


def golden_set_2() -> Program:
    """Every operation of set 2 once or more, on a 6x7 image of 8 channels; an output for each family."""
    rng = np.random.default_rng(30)

    def real(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    b = Builder((8, 6, 7))
    outputs: dict[str, str] = {}
    x = b.emit("affine", INPUT, tensors={"mult": real(8), "add": real(8)})
    # activation
    y = x
    for curve in (
        "silu",
        "tanh",
        "elu",
        "softplus",
        "mish",
        "gelu",
        "gelu_tanh",
        "hardswish",
        "erf",
        "sigmoid",
    ):
        y = b.emit("add", b.emit(curve, y, attrs={"alpha": 0.75} if curve == "elu" else {}), x)
    positive = b.emit("exp", b.emit("hardtanh", y, attrs={"min": -3.0, "max": 3.0}))
    for curve in ("sqrt", "reciprocal", "log"):
        positive = b.emit(curve, positive)
    outputs["activation"] = b.emit("add", y, positive)
    # arithmetic
    small = b.emit("reduce", x, attrs={"function": "mean", "axes": [1, 2]})
    y = b.emit("mul", x, small, attrs={"broadcast": True})
    y = b.emit("sub", y, b.emit("reduce", x, attrs={"function": "max", "axes": [0]}))
    y = b.emit("div", y, b.emit("exp", b.emit("reduce", x, attrs={"function": "min", "axes": [2]})))
    y = b.emit(
        "add", y, b.emit("reduce", x, attrs={"function": "l2", "axes": [0, 1]}), attrs={"broadcast": True}
    )
    outputs["arithmetic"] = b.emit("offset", y, tensors={"value": real(1, 6, 7)})
    # reduction
    y = b.emit("norm", x, attrs={"groups": 2, "pixels": True, "centre": True, "eps": 1e-5})
    y = b.emit("norm", y, attrs={"groups": 1, "pixels": False, "centre": False, "eps": 1e-6})
    y = b.emit("log_softmax", y, attrs={"axis": 2})
    outputs["reduction"] = b.emit("reduce", y, attrs={"function": "sum", "axes": [1]})
    # product
    tokens = b.emit("reshape", x, attrs={"shape": [8, 42]})
    seen = b.emit("attention", tokens, tokens, tokens, attrs={"heads": 2, "scale": 0.5})
    turned = b.emit("permute", seen, attrs={"axes": [1, 0]})
    y = b.emit("softmax", b.emit("matmul", seen, turned), attrs={"axis": 0})
    deep = b.emit("reshape", x, attrs={"shape": [2, 4, 6, 7]})
    across = b.emit("matmul", deep, b.emit("permute", deep, attrs={"axes": [0, 1, 3, 2]}))
    outputs["product"] = b.emit("flatten", y)
    outputs["products"] = across
    # moves
    y = b.emit("concat", x, b.emit("flip", x, attrs={"axis": 2}), attrs={"axis": 0})
    y = b.emit("channel_shuffle", y, attrs={"groups": 4})
    y = b.emit("edge_pad2d", y, attrs={"padding": [1, 1, 0, 1], "mode": "reflect"})
    y = b.emit("pixel_unshuffle", b.emit("pixel_shuffle", y, attrs={"factor": 4}), attrs={"factor": 2})
    y = b.emit("slice", y, attrs={"start": [0, 1, 0], "stop": [None, -1, None], "step": [1, 2, 1]})
    wide = b.emit("expand", small, attrs={"shape": [8, 1, 3]})
    outputs["moves"] = b.emit(
        "concat", y, b.emit("constant", x, tensors={"value": real(2, 7, 16)}), attrs={"axis": 0}
    )
    outputs["expanded"] = b.emit("relu", wide)
    # resampling
    for i, (mode, size, scale) in enumerate((
        ("nearest", [9, 5], None), ("nearest-exact", None, [1.5, 2.0]), ("bilinear", None, [2.0, 1.25]),
        ("bicubic", [4, 11], None),
    )):  # fmt: skip
        attrs = {"size": size, "scale": scale, "mode": mode, "align_corners": mode == "bicubic"}
        outputs[f"resampled{i}"] = b.emit("upsample2d", x, attrs=attrs)
    outputs["mean"] = b.emit("adaptive_avg_pool2d", x, attrs={"size": [4, 3]})
    y = b.emit("adaptive_max_pool2d", x, attrs={"size": [5, 2]})
    window = {"kernel": [2, 2], "stride": [2, 1], "padding": [1, 0], "dilation": [2, 1], "ceil_mode": True}
    first = b.emit("dilated_max_pool2d", y, attrs=window)
    # convolution of whole numbers
    weight = rng.integers(-127, 128, (5, 8, 3, 3)).astype(np.int8)
    taps = {"stride": [2, 1], "padding": [1, 0], "dilation": [2, 1], "groups": 1, "steps": 500.0}
    limit = (2**31 - 1) // int(np.abs(weight.astype(np.int64)).reshape(5, -1).sum(1).max())
    attrs = {**taps, "limit": min(32767, limit)}
    stored = {"whole.weight": weight, "whole.bias": real(5)}
    b.tensors.update(stored, **{"whole.factors": rng.uniform(0.001, 0.01, 5).astype(np.float16)})
    b.ops.append(Op("int_conv2d", "whole", (x,), "whole", attrs, {name[6:]: name for name in stored}))
    outputs["whole"] = "whole"
    return b.program(
        first,
        meta={"golden": "set 2"},
        output_name="maxima",
        more_outputs=outputs,
        scales={"whole.weight": "whole.factors"},
    )


def main() -> None:
    folder, name = Path(__file__).parent, sys.argv[1]
    makers = {f"v{VERSION}": golden, "set2": golden_set_2}
    if name not in makers or (folder / f"{name}.xnor").exists():
        raise SystemExit(f"{name!r} is not one of {', '.join(makers)}, or its golden file exists")
    program = makers[name]()
    write(program, folder / f"{name}.xnor")
    rng = np.random.default_rng(21)
    if name == "set2":
        given = {"inputs": rng.standard_normal((2, *program.input_shape)).astype(np.float32)}
    else:
        given = {"images": rng.integers(0, 256, (4, 11, 10, 3), dtype=np.uint8)}
    outputs = reference.run(program, next(iter(given.values())))
    np.savez_compressed(folder / f"{name}.npz", **given, **outputs)


if __name__ == "__main__":
    main()
