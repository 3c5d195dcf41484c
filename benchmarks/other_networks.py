"""MobileNetV1 and DenseNet-121 with binary layers, against other engines that run the real-valued network.

    python benchmarks/other_networks.py mobilenet [--threads 1] [--against openvino,onnxruntime,torch]
        [--avx2-only | --no-amx] [--size 224] [--record FILE.jsonl]
    python benchmarks/other_networks.py densenet --against eager

The networks are written here, so that no further package is needed. MobileNetV1 is the one of Howard et al.:
a 3x3 stem and thirteen blocks of a depthwise 3x3 and a pointwise 1x1 convolution, each followed by batch norm
and ReLU. In ours the pointwise convolutions are binary, with a shortcut around each where the shapes allow
one; stem, depthwise convolutions and classifier stay real-valued. DenseNet-121 is the one of Huang et al.,
and `binarize` makes ours from it. Weights are random, the statistics of batch norm are not.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor, nn

import xnorpp
from xnorpp.bench import compare, hidden, report, restart
from xnorpp.bench.engine import MEAN, STD
from xnorpp.bench.networks import settle_norms
from xnorpp.inspect.packed import inspect_program
from xnorpp.nn import BinaryConv2d
from xnorpp.packing import pack_program
from xnorpp.training.records.record import append_rows

WIDTHS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDED = (1, 3, 5, 11)
CLASSES = 1000
TITLES = {
    "mobilenet": "MobileNetV1, binary pointwise layers",
    "densenet": "DenseNet-121, binary layers",
}


class Block(nn.Module):
    """A depthwise convolution and a pointwise one, which is binary where asked for."""

    def __init__(self, inputs: int, outputs: int, stride: int, binary: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.norm1, self.relu1 = nn.BatchNorm2d(inputs), nn.ReLU()
        self.pointwise = (BinaryConv2d if binary else nn.Conv2d)(inputs, outputs, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(outputs), nn.ReLU()
        # A sign of what is never negative would be constant: the binary one takes the norm itself.
        self.binary, self.shortcut = binary, binary and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.depthwise(x))
        y = self.norm2(self.pointwise(x if self.binary else self.relu1(x)))
        result: Tensor = self.relu2(y + x) if self.shortcut else self.relu2(y)
        return result


class MobileNet(nn.Module):
    """MobileNetV1, real-valued or with binary pointwise convolutions."""

    def __init__(self, binary: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        widths = (32, *WIDTHS)
        self.blocks = nn.Sequential(
            *(Block(widths[i], widths[i + 1], 2 if i in STRIDED else 1, binary) for i in range(len(WIDTHS)))
        )
        self.classifier = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.blocks(self.stem(x)).mean((2, 3)))
        return result


class DenseLayer(nn.Module):
    """Two convolutions, 1x1 and 3x3, whose result is appended to their input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.path(x)], 1)


def densenet121() -> nn.Module:
    """DenseNet-121, real-valued: four stages of dense layers, with a 1x1 and average pooling between them."""
    growth, width = 32, 64
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for stage, count in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False)]
            layers += [nn.AvgPool2d(2)]
            width //= 2
        layers += [DenseLayer(width + i * growth, growth) for i in range(count)]
        width += count * growth
    head = [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(width, CLASSES))


def network(name: str, size: int, binary: bool) -> nn.Module:
    """One of the two networks, binary or real-valued, with settled norms."""
    torch.manual_seed(0)
    model = MobileNet(binary) if name == "mobilenet" else densenet121()
    if name == "densenet" and binary:
        xnorpp.binarize(model, example=torch.randn(2, 3, size, size))
    return settle_norms(model, {"name": name, "input_size": size, "in_channels": 3})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=TITLES)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--against", default="openvino,onnxruntime,torch")
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument("--avx2-only", action="store_true", help="hide instruction sets above AVX2 from all")
    masks.add_argument("--no-amx", action="store_true", help="hide the matrix unit (AMX) from all")
    parser.add_argument("--real", default="float32", help="how real numbers are stored (float32)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--record")
    given = parser.parse_args()
    mask = "above-avx2" if given.avx2_only else "amx" if given.no_amx else None
    if mask and hidden() != mask:
        restart(sys.argv[1:], mask, program=[__file__])
    size = given.size
    settings = {"mean": list(MEAN), "std": list(STD), "channels": 3, "crop": size, "resize": size * 8 // 7}
    program = pack_program(network(given.name, size, True), size, preprocess=settings, real=given.real)
    print(f"{inspect_program(program).count('binary')} of its layers are binary", flush=True)
    found = compare(
        program,
        title=f"{TITLES[given.name]}, {size}x{size}",
        threads=[int(count) for count in given.threads.split(",")],
        against=[name for name in given.against.split(",") if name != "none"],
        baseline=network(given.name, size, False),
        rounds=given.rounds,
    )
    print(report.comparison_text(found))
    if given.record:
        append_rows(given.record, report.complete(report.comparison_rows(found), seed=0))


if __name__ == "__main__":
    main()
