"""Networks of other people: `binarize`, five training steps, `pack`, and the packed model against torch.

    python benchmarks/zoo.py [NAMES...] [--unlisted] [--check] [--time] [--record FILE.jsonl]

Needs timm and torchvision (`make zoo` installs them into an environment of their own). Weights are random,
statistics of batch norm too, and inputs small. A network passes if the packed model gives torch's class for
at least 99 % of 200 inputs (of all pixels where the output is a map, and for each output) and `verify`
explains every difference by rounding. Without names the networks of LISTED run; `--unlisted` runs those of
zoo_unlisted.py and the constructs of zoo_constructs.py and zoo_styles.py, without training. Any other name of
timm's works too, `torchvision:NAME`, `fpn:NAME` (the backbone of a detector of torchvision's) and
`construct:NAME`. `--check` lists the obstacles alone, `--time` adds one-thread milliseconds of the packed,
the real and the binary network.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import xnorpp
from xnorpp.bench.machine import describe_machine
from xnorpp.packing import verify
from xnorpp.paper.foreign import ENOUGH, differs_as_torch, passes
from zoo_constructs import CONSTRUCTS
from zoo_rounding import rounding_of, tensors_of, torch_against_itself
from zoo_styles import STYLES
from zoo_unlisted import SMALL, UNLISTED

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "extras"))
from torchvision_operators import declare_missing

LISTED = [
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "seresnet18",
    "seresnet33ts",
    "regnetx_002",
    "regnety_002",
    "densenet121",
    "vgg11_bn",
    "mobilenetv2_100",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "efficientnet_lite0",
    "tf_efficientnetv2_b0",
    "mnasnet_100",
    "convnext_atto",
    "convnextv2_atto",
    "repvgg_a0",
    "inception_v3",
    "mixer_s32_224",
    "vit_tiny_patch16_224",
    "poolformer_s12",
    "torchvision:squeezenet1_1",
    "torchvision:shufflenet_v2_x0_5",
    "own:unet",
    "own:two_heads",
    "own:audio",
]
CLASSES = 10
COUNT = 200  # inputs that are compared
LARGE = 1 << 20  # numbers of an input from which `verify`, which stores every value, gets one alone


class UNet(nn.Module):
    """Two levels with transposed convolutions, and a class for each pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Sequential:
            layers = [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
            return nn.Sequential(*layers, nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

        self.down1, self.down2, self.bottom = (
            block(3, width),
            block(width, 2 * width),
            block(2 * width, 4 * width),
        )
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.join2, self.join1 = block(4 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.bottom(nn.functional.max_pool2d(b, 2))
        b = self.join2(torch.cat([self.up2(c), b], 1))
        return self.head(self.join1(torch.cat([self.up1(b), a], 1)))


class TwoHeads(nn.Module):
    """One trunk, a class and a dense map."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        )  # fmt: skip
        self.classes, self.map = nn.Linear(64, CLASSES), nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.trunk(x)
        return {"classes": self.classes(features.mean((2, 3))), "map": self.map(features)}


def audio_network() -> nn.Module:
    """Raw samples, one channel."""
    layers: list[nn.Module] = [nn.Conv1d(1, 32, 16, stride=4), nn.BatchNorm1d(32), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv1d(32, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES))


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "unet": (UNet, (3, 64, 64)),
    "two_heads": (TwoHeads, (3, 32, 32)),
    "audio": (audio_network, (1, 2048)),
}


def create(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with random weights, and the shape of one input: the smallest that it runs on."""
    home, _, rest = name.rpartition(":")
    if home in ("own", "construct"):
        build, shape = (OWN if home == "own" else CONSTRUCTS | STYLES)[rest]
        return build(), shape
    last: Exception | None = None
    for shape in SMALL:
        for options in ({"image_size" if home else "img_size": shape[-1]}, {}):
            try:
                net = _foreign(home, rest, options).eval()
                with torch.no_grad():
                    net(torch.zeros(2, *shape))
                return net, shape
            except Exception as error:  # of any kind: a size or an option that the network does not take
                last = error
    raise last or ValueError(name)


def _foreign(home: str, name: str, options: dict[str, Any]) -> nn.Module:
    declare_missing()
    if home == "fpn":
        from torchvision.models.detection import backbone_utils

        build = backbone_utils.mobilenet_backbone if "mobile" in name else backbone_utils.resnet_fpn_backbone
        return build(backbone_name=name, weights=None, **{"fpn": True} if "mobile" in name else {}, **options)
    if home == "torchvision":
        import torchvision

        dense = {"weights_backbone": None} if name.startswith(("deeplab", "fcn", "lraspp")) else {}
        return torchvision.models.get_model(name, num_classes=CLASSES, **dense, **options)
    import timm

    return timm.create_model(name, num_classes=CLASSES, **options)


def fill(model: nn.Module) -> None:
    """Random numbers where a network begins with zeros alone: ends of branches, heads, shifts of norms."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and not parameter.any():
                parameter.normal_(0, 0.1 if parameter.dim() == 1 else parameter[0].numel() ** -0.5)


def settle(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Statistics of batch norm from one batch, each disturbed; and a last layer that prefers no class."""
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    x = examples(shape, 18)
    with torch.no_grad():
        if norms:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the mean of all batches, here one
            model.train()
            model(x)
        for norm in norms:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean += 0.3 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
            norm.running_var *= 0.5 + 1.5 * torch.rand_like(norm.running_var)
        model.eval()
        first = tensors_of(model(x))[0]
        ends = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d) and m.bias is not None]
        if first.argmax(1).unique().numel() == 1 and ends and ends[-1].bias.shape == first.shape[1:2]:
            ends[-1].bias -= first.movedim(1, 0).flatten(1).mean(1)


def examples(shape: tuple[int, ...], count: int) -> Tensor:
    """Random inputs of three brightnesses."""
    return torch.randn(count, *shape) + (torch.arange(count) % 3 - 1).reshape(-1, *[1] * len(shape))


def train(model: nn.Module, shape: tuple[int, ...], steps: int) -> None:
    """A few steps on random inputs: every class prefers inputs of another brightness."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(steps):
        labels = torch.randint(0, 3, (16,))
        x = torch.randn(16, *shape) + labels.reshape(-1, *[1] * len(shape)) - 1
        loss = torch.zeros(())
        for y in tensors_of(model(x)):
            target = labels.reshape(-1, *[1] * (y.dim() - 2)).expand(y.shape[0], *y.shape[2:])
            loss = loss + nn.functional.cross_entropy(y, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def milliseconds(run: Callable[[], Any], seconds: float = 1.0) -> float:
    run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def row_of(name: str, timed: bool, steps: int) -> dict[str, Any]:
    """One network from its definition to the comparison."""
    torch.manual_seed(0)
    net, shape = create(name)
    tensors_of(net(torch.zeros(2, *shape)))  # lazy layers learn their sizes
    fill(net)
    real = copy.deepcopy(net).eval()
    example = torch.randn(2, *shape)
    report = xnorpp.binarize(net, example=example)
    row: dict[str, Any] = {
        "network": name,
        "input": list(shape),
        "binary": sum(r.changed for r in report.rows),
    }
    if report.obstacles:
        return {**row, "packs": False, "obstacles": [str(o) for o in report.obstacles]}
    if steps:
        train(net, shape, steps)
    settle(net, shape)
    packed = xnorpp.pack(net, example=example)
    x = examples(shape, COUNT)
    with torch.no_grad():
        goal = [y for part in x.split(20) for y in [tensors_of(net(part))]]
    goals = [torch.cat([part[i] for part in goal]).numpy() for i in range(len(goal[0]))]
    mine = tensors_of(packed(x.numpy()))
    same = [float(np.mean(a.argmax(1) == b.argmax(1))) for a, b in zip(goals, mine, strict=True)]
    checked = verify(net, x[: 8 if x[0].numel() < LARGE else 1].numpy())
    row |= {
        "packs": True,
        "same_class": min(same),
        "verify": checked.holds,
        "beyond": sorted({layer.op for layer in checked.layers if layer.beyond}),
        "largest_error": max(float(np.abs(a - b).max()) for a, b in zip(goals, mine, strict=True)),
        "classes_seen": len(np.unique(goals[0].argmax(1))),
        "file_bytes": len(xnorpp.runtime.format.program.encode(packed.program)),
    }
    if min(same) < ENOUGH:
        row |= torch_against_itself(net, x, goals, mine) | rounding_of(net, x[:4])
    if timed:
        one, image = x[:1], x[:1].numpy()
        engine = xnorpp.PackedModel(packed.program, threads=1)
        with torch.no_grad():
            row["ms_packed"] = round(milliseconds(lambda: engine(image)), 3)
            row["ms_torch_real"] = round(milliseconds(lambda: real(one)), 3)
            row["ms_torch_binary"] = round(milliseconds(lambda: net(one)), 3)
    return row


def obstacles_of(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net, shape = create(name)
    found = xnorpp.check_packable(net, (torch.randn(2, *shape),))
    return {"network": name, "packs": bool(found), "obstacles": [str(o) for o in found.obstacles]}


def commit() -> str:
    """The commit, and a plus sign where files of the repository were changed since."""

    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        found = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        return found.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", ":/", ":!/results")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--unlisted", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    steps = 0 if given.unlisted else 5
    others = [*(f"construct:{name}" for name in CONSTRUCTS | STYLES), *UNLISTED]
    names = given.names or (others if given.unlisted else LISTED)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    failed = unsure = 0
    declare_missing()  # timm imports torchvision
    import timm

    about = {
        "timm": timm.__version__,
        "seed": 0,
        "steps": steps,
        "commit": commit(),
        "machine": describe_machine(),
    }
    for name in names:
        start = time.perf_counter()
        try:
            row = obstacles_of(name) if given.check else row_of(name, given.time, steps)
        except Exception as error:  # one network that fails must not hide the others
            row = {"network": name, "packs": False, "error": f"{type(error).__name__}: {error}"[:500]}
        row["seconds"] = round(time.perf_counter() - start, 1)
        row |= about
        failed += not passes(row)
        unsure += not passes(row) and differs_as_torch(row)
        print("ok  " if passes(row) else "FAIL", json.dumps(row), flush=True)
        if given.record:
            with given.record.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(f"{len(names) - failed} of {len(names)} networks pass. Of the others, {unsure} differ where torch")
    print("differs from itself, and their values are as near to float64 as those of torch in float32.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
