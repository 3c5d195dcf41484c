"""What packs of a user's own modules, and what is refused with the module, the operation and the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Lambda
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d, BinaryLinear, sign
from xnorpp.packing import PackError, check_packable, pack_to_file, verify
from xnorpp.packing import pack_program as pack
from xnorpp.runtime.format.program import read
from xnorpp.runtime.reference import run

Forward = Callable[[Tensor], Tensor]


def image(c: int = 4, h: int = 8, w: int = 8, n: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, c, h, w)).astype(np.float32)


def view_twice(x: Tensor) -> Tensor:
    n = x.size(0)
    return x.view(n, -1).reshape(n, x.shape[1] * x.shape[2] * x.shape[3])


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    kept = y
    y += 1
    F.relu(y, inplace=True)
    return kept + x  # `kept` is the same tensor: it has changed too


def branch_on_shape(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2) if x.shape[-1] > 4 else x.relu()


FORMS: dict[str, Forward] = {
    "relu": F.relu,
    "torch.relu": torch.relu,
    "method relu": lambda x: x.relu(),
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "negative leaky_relu": lambda x: F.leaky_relu(x, -0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp min": lambda x: torch.clamp(x, min=0.25),
    "clamp_max": lambda x: x.clamp_max(0.25),
    "abs": torch.abs,
    "add": lambda x: x + x.relu(),
    "torch.add alpha": lambda x: torch.add(x, x.relu(), alpha=-2),
    "same twice": lambda x: x + x,
    "add number": lambda x: 1 + x,
    "sub": lambda x: x - x.relu(),
    "rsub": lambda x: 2 - x,
    "neg": lambda x: -x,
    "mul": lambda x: x * x.relu(),
    "mul number": lambda x: x * -3,
    "div": lambda x: x / 3,
    "per pixel": lambda x: x * torch.arange(64.0).reshape(1, 1, 8, 8),
    "per row": lambda x: x * torch.arange(-3.0, 5.0).reshape(8, 1),
    "full": lambda x: x * torch.arange(256.0).reshape(4, 8, 8),
    "per channel": lambda x: x * torch.tensor([1.0, -2, 0, 3]).reshape(1, 4, 1, 1) + torch.ones(4, 1, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "avg_pool2d counting": lambda x: F.avg_pool2d(x, (3, 2), padding=(1, 1), ceil_mode=True),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive to 1": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "adaptive to itself": lambda x: F.adaptive_avg_pool2d(x, (None, 8)) + 1,
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (4, 2)),
    "mean": lambda x: x.mean((2, 3)),
    "mean keepdim": lambda x: torch.mean(x, dim=[-1, -2], keepdim=True),
    "one pixel": lambda x: F.adaptive_avg_pool2d(x, 1)[:, :, 0, 0],
    "squeeze": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(),
    "views": view_twice,
    "torch.flatten": lambda x: torch.flatten(x, 1),
    "softmax": lambda x: F.softmax(x.mean((2, 3)), 1),
    "strided": lambda x: x[:, :, ::2, ::3],
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "pad channels": lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)),
    "cat": lambda x: torch.cat([x, x.relu()], 1),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) * 2,
    "identities": lambda x: x.contiguous().clone().detach().float().to(torch.float32) * 2,
    "in place": in_place,
    "branch on shape": branch_on_shape,
}


@pytest.mark.parametrize("name", FORMS)
def test_functional_forms(name: str) -> None:
    x = image()
    model = Lambda(FORMS[name])
    with torch.no_grad():
        wanted = model(torch.from_numpy(x.copy())).numpy()
    found = run(pack(model, x.shape[1:]), x)
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6)


REFUSED: dict[str, tuple[Forward, str]] = {
    "sine": (torch.lgamma, "torch.lgamma"),
    "batch moved": (lambda x: F.max_pool2d(x.transpose(0, 1), 2), "batch is axis 1"),
    "batch mixed": (lambda x: x.reshape(-1, 8, 8, 1), "whose first axis is not the batch"),
    "windows": (lambda x: F.pixel_unshuffle(x.reshape(-1, 1, 8, 8), 2), "batch is merged"),
    "value read": (lambda x: x if x.sum() > 0 else -x, "sum"),
    "item": (lambda x: x * x[0, 0, 0, 0].item(), "getitem"),
    "dropout active": (lambda x: F.dropout(x, 0.5), "training=self.training"),
    "antialias": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic", antialias=True),
        "mode='bicubic' and antialias",
    ),
    "torch.sign": (lambda x: F.conv2d(torch.sign(x), torch.ones(3, 4, 1, 1)), "xnorpp.nn.sign"),
    "indices": (lambda x: F.max_pool1d(x.flatten(2), 2, return_indices=True)[1].float(), "not packed"),
    "constant only": (lambda x: torch.ones(2, 4, 8, 8), "does not depend"),
    "its input twice": (lambda x: (x, x), "returns its input unchanged"),
    "no tensor": (lambda x: 3, "returns int, which contains no tensor"),
    "a constant among others": (lambda x: (x * 2, torch.ones(2, 3)), "returns '1', which does not depend"),
    "view changed": (lambda x: _changed_view(x * 2), "in place"),
    "chunk of the batch": (lambda x: x.chunk(2, 0)[0], "chooses among images"),
    "bool": (lambda x: x * 2 if torch.equal(x, x) else x, "values of the input"),
    "unchanged": (lambda x: x.contiguous(), "unchanged"),
}


def _changed_view(x: Tensor) -> Tensor:
    x.view(x.size(0), -1).add_(1)
    return x * 2


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(PackError, match=reason):
        pack(Lambda(function), (4, 8, 8))


def test_an_error_names_module_operation_and_line() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.lgamma(x)  # the line

    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(Odd()))
    with pytest.raises(PackError) as error:
        pack(model, (3, 4, 4))
    text = str(error.value)
    assert text.startswith("1.0: ")
    assert "torch.lgamma" in text
    assert "test_trace.py:" in text
    assert "return torch.lgamma(x)  # the line" in text


def test_user_written_binary_layer_becomes_bits() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4, 3, 3))
            self.fc = nn.Parameter(torch.randn(5, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = F.conv2d(F.pad(sign(x), (1, 1, 1, 1), value=-1.0), sign(self.weight))
            return F.linear(sign(x.mean((2, 3))), sign(self.fc), torch.arange(5.0))

    torch.manual_seed(0)
    program = pack(Own(), (4, 6, 6))
    assert {"binary_conv2d", "binary_linear"} <= {op.op for op in program.ops}
    conv = next(op for op in program.ops if op.op == "binary_conv2d")
    assert conv.attrs["pad_value"] == -1
    torch.manual_seed(0)
    assert verify(Own(), image(4, 6, 6)).holds


def test_reused_modules_and_shared_parameters_are_stored_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv2d(4, 4, 3, padding=1, scale="channel")
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.bn(self.conv(self.bn(x))))

    program = pack(Twice(), (4, 5, 5))
    assert sum(op.op == "binary_conv2d" for op in program.ops) == 2
    assert len({op.tensors["weight"] for op in program.ops if op.op == "binary_conv2d"}) == 1


def test_training_mode_and_hooks_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(64, 3))
    model.train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = pack(model, (3, 4, 4))
    assert [op.op for op in program.ops] == ["conv2d", "flatten", "linear"]
    assert [m.training for m in model.modules()] == [True, True, False, True, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    with pytest.raises(
        ValueError, match=r"`input_size` of shape \(2, 3, 5, 5\) is none that the model runs on"
    ):
        pack(model, (3, 5, 5))  # the linear layer does not fit
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert model.training


def test_batch_norm_without_statistics_is_refused() -> None:
    with pytest.raises(PackError, match="running statistics"):
        pack(nn.BatchNorm2d(3, track_running_stats=False), (3, 4, 4))


def test_a_broken_weight_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(PackError, match=r"0: `weight` has NaN"):
        pack(model, (3, 4, 4))


@pytest.mark.parametrize("method", ["real", "binaryconnect", "bnn", "xnor", "xnor++"])
@pytest.mark.parametrize("settings", [{}, {"groups": 2, "dilation": (2, 1), "stride": (1, 2), "bias": True}])
def test_layers_of_every_method(method: str, settings: dict[str, object]) -> None:
    torch.manual_seed(0)
    scale = "channel" if method == "xnor++" else None
    conv = BinaryConv2d(10, 6, (3, 2), padding=1, method=method, scale=scale, **settings)
    with torch.no_grad():
        shape = conv(torch.zeros(1, 10, 9, 9)).shape
    model = nn.Sequential(
        conv, nn.PReLU(), nn.Flatten(), BinaryLinear(shape[1:].numel(), 7, bias=True, method=method)
    )
    assert verify(model, image(10, 9, 9)).holds


def test_uneven_same_padding() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    for layer in (
        BinaryConv2d(3, 4, (2, 4), padding="same", method="bnn"),
        BinaryConv2d(3, 4, (4, 3), padding="same", dilation=3, padding_value=-1),
        nn.Conv2d(3, 4, (2, 4), padding="same"),
    ):
        with torch.no_grad():
            want = layer(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(run(pack(layer, (3, 5, 6)), x), want, atol=1e-5)
    with pytest.raises(PackError, match="unevenly"):
        pack(BinaryConv2d(3, 4, 2, padding="same", config="xnor", scale="alpha_k"), (3, 4, 4))
    assert pack(nn.Conv2d(3, 4, 3, padding="same"), (3, 4, 4)).ops[0].attrs["padding"] == [1, 1]


def test_file_carries_preprocess_labels_and_meta(tmp_path: object) -> None:
    path = f"{tmp_path}/model.xnor"
    settings = {"resize": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]}
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pack_to_file(model, 8, path, preprocess=settings, labels=["a", "b", "ç", "d"], meta={"epoch": 3})
    program = read(path)
    assert program.labels == ("a", "b", "ç", "d")
    assert program.preprocess == settings
    assert program.mean == (0.5, 0.4, 0.3)
    assert program.meta == {"epoch": 3}
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    x = (images.astype(np.float32) / 255 - np.float32([0.5, 0.4, 0.3])) / np.float32([0.2, 0.2, 0.1])
    with torch.no_grad():
        wanted = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    assert np.allclose(run(program, images), wanted, atol=1e-5)


@pytest.mark.parametrize("size", [0, -1, (3,), (1, 2, 3, 4), (3, 0, 4)])
def test_bad_input_size(size: object) -> None:
    with pytest.raises(ValueError, match="input_size"):
        pack(nn.Conv2d(3, 4, 1), size)


def test_bad_preprocess_and_labels() -> None:
    model = nn.Conv2d(3, 4, 1)
    with pytest.raises(ValueError, match="`mean`"):
        pack(model, 4, preprocess={"mean": [0.5]})
    with pytest.raises(
        ValueError, match=r"`preprocess` has the key 'foo'; allowed are resize, crop, mean, std"
    ):
        pack(model, 4, preprocess={"foo": 1})
    with pytest.raises(ValueError, match=r"`crop` \(=5\) must be"):
        pack(model, 4, preprocess={"resize": 4, "crop": 5, "mean": [0] * 3, "std": [1] * 3, "channels": 3})
    with pytest.raises(ValueError, match="mapping"):
        pack(model, 4, preprocess=3)
    with pytest.raises(ValueError, match="labels"):
        pack(model, 4, labels=["one"])


def test_wrapped_models_are_unwrapped() -> None:
    model = nn.Conv2d(3, 4, 1)
    assert len(pack(nn.DataParallel(model), 4).ops) == 1
    compiled = nn.Module()  # what torch.compile returns has the model inside under this name
    compiled._orig_mod = model
    assert len(pack(compiled, 4).ops) == 1
    assert len(pack(model.double(), 4).ops) == 1


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"`model` is str; an nn\.Module is needed"):
        pack("resnet18", 32)  # type: ignore[arg-type]


def _weights(x: Tensor) -> Tensor:
    return ATTENTION(x, x, x)[1]


ATTENTION = nn.MultiheadAttention(6, 2, batch_first=True)
FURTHER: dict[str, Callable[[Tensor], Any]] = {
    "chosen": lambda x: torch.zeros_like(x[..., :5]).scatter_(1, _weights(x).argmax(1, keepdim=True), 1.0),
    "gathered": lambda x: x.gather(2, _weights(x).argmax(2, keepdim=True)),
    "a number": lambda x: x + _weights(x).sum((1, 2))[:, None, None],
    "a table": lambda x: x + F.embedding(_weights(x).argmax(2), torch.ones(5, 6)),
    "returned": lambda x: tuple(ATTENTION(x, x, x)),
    "weights of attention": lambda x: (lambda y, w: y * w.mean((1, 2), keepdim=True))(*ATTENTION(x, x, x)),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_results_of_a_function_are_no_constants(name: str) -> None:
    """Of zeros, which a size stands for, they are the same for every image."""
    (obstacle, *_) = check_packable(Lambda(FURTHER[name]), torch.zeros(2, 5, 6)).obstacles
    assert re.search("a result of .* that is not packed", obstacle.reason)
    assert "use its first result alone" in obstacle.remedy
    with pytest.raises(PackError, match="that is not packed"):
        pack(Lambda(FURTHER[name]), example=torch.zeros(2, 5, 6))


def test_a_first_result_alone_packs() -> None:
    for function in (lambda x: x.max(1)[0], lambda x: ATTENTION(x, x, x)[0]):
        assert pack(Lambda(function), example=torch.zeros(2, 5, 6)).ops
