"""MobileNetV1 with binary pointwise layers, against other engines that run the real-valued one.

    python benchmarks/mobilenet.py [--threads 1] [--against openvino,onnxruntime,torch] [--avx2-only]
        [--record FILE.jsonl]

The network is the one of Howard et al. for 224x224 images and 1,000 classes: a 3x3 stem and thirteen blocks
of a depthwise 3x3 and a pointwise 1x1 convolution, each followed by batch norm and ReLU. In ours the
pointwise convolutions are binary, with a shortcut around each where the shapes allow one; stem, depthwise
convolutions and classifier stay real-valued. Weights are random, the statistics of batch norm are not.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor, nn

from xnorpp.bench import compare, hidden, report, restart
from xnorpp.bench.engine import MEAN, STD
from xnorpp.bench.networks import settle_norms
from xnorpp.inspect.packed import inspect_program
from xnorpp.nn import BinaryConv2d
from xnorpp.packing import pack_program
from xnorpp.training.records.record import append_rows

WIDTHS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDED = (1, 3, 5, 11)
SIZE, CLASSES = 224, 1000


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


def network(binary: bool) -> nn.Module:
    torch.manual_seed(0)
    return settle_norms(MobileNet(binary), {"name": "mobilenet", "input_size": SIZE, "in_channels": 3})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", default="openvino,onnxruntime,torch")
    parser.add_argument("--avx2-only", action="store_true", help="hide instruction sets above AVX2 from all")
    parser.add_argument("--real", default="float32", help="how real numbers are stored (float32)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--record")
    given = parser.parse_args()
    if given.avx2_only and hidden() is None:
        restart(sys.argv[1:], program=[__file__])
    settings = {"mean": list(MEAN), "std": list(STD), "channels": 3, "crop": SIZE, "resize": 256}
    program = pack_program(network(binary=True), SIZE, preprocess=settings, real=given.real)
    print(f"{inspect_program(program).count('binary')} of its layers are binary", flush=True)
    found = compare(
        program,
        title="MobileNetV1, binary pointwise layers",
        threads=(given.threads,),
        against=[name for name in given.against.split(",") if name != "none"],
        baseline=network(binary=False),
        rounds=given.rounds,
    )
    print(report.comparison_text(found))
    if given.record:
        append_rows(given.record, report.complete(report.comparison_rows(found), seed=0))


if __name__ == "__main__":
    main()
