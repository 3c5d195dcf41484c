"""A trained ResNet-18 at 224 px in about a minute on a GPU, for comparisons that need real margins.

    PYTHONPATH=src python benchmarks/cuda_trained_model.py --images X.npy --labels Y.npy --out MODEL.xnor

Random weights make a chaotic network: one sign that rounds the other way changes the class. Whether two
engines give the same classes is a question about trained networks. `--images` is uint8 (n, h, w, 3), enlarged
to 224 on the device by bilinear interpolation and rounded to bytes, as benchmarks/cuda_inference.py does with
its test images.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F

from xnorpp.bench.engine import MEAN, STD
from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.nn import parameter_groups
from xnorpp.packing import pack_to_file

SIZE = 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True)
    parser.add_argument("--labels", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=SIZE)
    given = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    images = torch.from_numpy(np.load(given.images)).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(np.load(given.labels)).long().to(device)
    classes = int(labels.max()) + 1
    config = {"name": "resnet18", "input_size": given.size, "num_classes": classes, **PAPER_BLOCK}
    model = create_model(**config).to(device, memory_format=torch.channels_last).train()
    steps = given.epochs * (len(images) // given.batch)
    optimizer = torch.optim.Adam(parameter_groups(model, 1e-5), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (MEAN, STD))
    begin, step = time.perf_counter(), 0
    for epoch in range(given.epochs):
        order = torch.randperm(len(images), device=device)
        total, right = 0.0, 0
        for first in range(0, len(order) - given.batch + 1, given.batch):
            index = order[first : first + given.batch]
            x = images[index].float()
            if torch.rand(()) < 0.5:
                x = x.flip(3)
            x = F.interpolate(x, (given.size, given.size), mode="bilinear", antialias=False)
            x = ((x.round().clamp(0, 255) / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, torch.bfloat16):
                logits = model(x)
                loss = F.cross_entropy(logits.float(), labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
            right += int((logits.argmax(1) == labels[index]).sum())
            step += 1
        print(
            f"epoch {epoch + 1}: loss {total * given.epochs / steps:.3f}, training accuracy "
            f"{100 * right / len(images):.1f} %, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    size = {"resize": given.size, "crop": given.size}
    pack_to_file(
        model.cpu().eval(),
        given.size,
        given.out,
        preprocess={**size, "mean": list(MEAN), "std": list(STD), "channels": 3},
        meta={"model": dict(config), "weights": f"{len(images)} images, {given.epochs} epochs"},
    )


if __name__ == "__main__":
    main()
