"""Every listed network, method and scale: the packed program repeats the trained network (contract 5)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from xnorpp.models import create_model, list_models
from xnorpp.packing import pack_program as pack
from xnorpp.packing import verify
from xnorpp.runtime.format.program import encode
from xnorpp.runtime.reference import run

METHOD_SCALES = (
    ("real", None),
    ("binaryconnect", None),
    ("bnn", None),
    ("xnor", "alpha"),
    ("xnor", "alpha_k"),
    ("xnor++", "channel"),
    ("xnor++", "dense"),
    ("xnor++", "channel_spatial"),
    ("xnor++", "channel_height_width"),
)
SIZES = {"alexnet": 67, "small": 16, "resnet20": 12, "reactnet-a": 16}
OPTIONS: dict[str, dict[str, object]] = {"reactnet-a": {"width": 0.25}}
DEEP = ("resnet18", "resnet34", "alexnet")  # the wide ones: one image is enough


def unsettle(model: nn.Module, seed: int) -> None:
    """Make a fresh network look trained, and worse: negative scales, batch-norm weights and slopes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if "running_mean" in name:
                tensor.normal_(0, 0.5, generator=g)
            elif "running_var" in name:
                tensor.uniform_(0.5, 2, generator=g)
            elif "scale" in name:
                negative = torch.rand(tensor.shape, generator=g) < 0.3
                tensor.mul_(torch.where(negative, -1.0, 1.0) * (0.5 + torch.rand(tensor.shape, generator=g)))
            elif tensor.ndim == 1 or "shift" in name:
                tensor.normal_(0, 0.7, generator=g)


def images(shape: tuple[int, ...], count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def check(model: nn.Module, size: int, count: int, channels: int = 3) -> None:
    result = verify(model, images((channels, size, size), count))
    assert result.layers
    assert [layer for layer in result.layers if layer.beyond] == []
    assert result.flips <= result.bits * 1e-3
    if result.flips == 0:
        assert result.same_class == 1.0


@pytest.mark.parametrize(("method", "scale"), METHOD_SCALES)
@pytest.mark.parametrize("name", list_models())
def test_packed_equals_trained(name: str, method: str, scale: str | None) -> None:
    torch.manual_seed(1)
    size = SIZES.get(name, 24)
    options = OPTIONS.get(name, {})
    model = create_model(name, method=method, scale=scale, input_size=size, num_classes=10, **options)
    if method == "binaryconnect":  # its sums grow by sqrt(n) a layer; batch statistics keep them finite
        model.train()
        with torch.no_grad():
            model(torch.from_numpy(images((3, size, size), 4, seed=2)))
    else:
        unsettle(model, seed=3)
    check(model, size, 1 if name in DEEP else 3)


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "relu"},
        {"activation": "hardtanh", "scale": "channel"},
        {"activation": "rprelu", "sign_shift": True},
        {"activation": "identity", "scale": "channel"},
        {"shortcut": "conv", "downsample": "real"},
        {"padding_value": -1, "center_weights": True},
        {"padding_value": 1, "scale": "channel_spatial"},
        {"method": "bnn", "padding_value": -1, "activation": "hardtanh"},
        {"method": "bnn", "activation": "identity", "norm_after": True},
        {"norm_after": True, "downsample": "binary"},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()),
)
def test_options_of_the_networks_pack(options: dict[str, object]) -> None:
    torch.manual_seed(2)
    model = create_model("resnet20", input_size=12, num_classes=7, **options)
    unsettle(model, seed=4)
    check(model, 12, 3)


@pytest.mark.parametrize("padding_value", [0, -1])
def test_first_of_two_stages_packs_with_real_weights(padding_value: int) -> None:
    model = create_model("resnet20", input_size=12, num_classes=7, padding_value=padding_value)
    unsettle(model, seed=5)
    for module in model.modules():
        if hasattr(module, "binarize_weights"):
            module.binarize_weights = False
    program = pack(model, 12)
    assert {op.op for op in program.ops} >= {"signs", "conv2d"}
    assert "binary_conv2d" not in {op.op for op in program.ops}
    check(model, 12, 3)


def test_resnet18_file_sizes() -> None:
    """At most 3.63 MB with binary, 4.33 MB with real downsampling, 2.93 MB in half precision (MB = 10**6), of
    which 26 kB are the whole-numbered filters of the stem and 5 kB the encodings of format version 2."""
    for downsample, limit in (("binary", 3.63e6), ("real", 4.33e6)):
        model = create_model("resnet18", input_size=224, num_classes=1000, downsample=downsample)
        unsettle(model, seed=6)
        labels = [f"tabby cat {i}" for i in range(1000)]
        assert len(encode(pack(model, 224, labels=labels))) <= limit
        assert len(encode(pack(model, 224, half=True, labels=labels))) <= 2.93e6


def test_half_stays_near() -> None:
    model = create_model("small", input_size=16, num_classes=10)
    unsettle(model, seed=7)
    x = images((3, 16, 16), 4)
    smaller = pack(model, 16, half=True)
    whole, half = run(pack(model, 16), x), run(smaller, x)
    assert not np.array_equal(whole, half)
    assert {str(tensor.dtype) for tensor in smaller.tensors.values()} == {"float16", "float32", "uint8"}
    assert np.abs(whole - half).mean() < 0.5 * np.abs(whole).mean()
