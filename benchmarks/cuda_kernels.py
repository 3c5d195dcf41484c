"""Which tiling of the CUDA kernels wins, layer by layer: builds, checks against numpy, then times.

    PYTHONPATH=src python benchmarks/cuda_kernels.py [group ...]

Every group runs in its own process. The last lines are one table; $OUT/cuda_kernels.json has everything.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.runtime.cuda import driver as cu
from xnorpp.runtime.cuda import layout as lay
from xnorpp.runtime.cuda.source import ConvArguments, StemArguments, kernel_source
from xnorpp.runtime.stem import image_filters

BITS = lay.Fusion("SIGN(0,0)", 1, 1)
CHAIN = "AFFINE(0,1) PRELU(2) ADD(0) STORE(0) SIGN(0,3)"
PEAK_BITS, BANDWIDTH = 10_342e12, 4.3e12  # measured on an H200


def time_graph(stream: cu.Stream, work: Any, launches: int = 20, replays: int = 5) -> float:
    """Milliseconds of one `work()`, the best replay of a graph of `launches`."""
    work(), stream.synchronize()
    stream.begin()
    for _ in range(launches):
        work()
    graph = stream.end()
    timer = cu.Timer()
    best = float("inf")
    for _ in range(replays):
        timer.start(stream.value)
        cu.replay(graph, stream.value)
        best = min(best, timer.stop(stream.value))
    return best / launches


def random_bits(layout: lay.BitsLayout, images: int, rng: np.random.Generator) -> np.ndarray:
    """Random bits with a zero halo."""
    words = np.zeros((images, layout.rows, layout.width + 2 * layout.halo, layout.units, 2), np.uint32)
    h = layout.halo
    inner = rng.integers(0, 2**32, (images, layout.height, layout.width, layout.units, 2), dtype=np.uint32)
    words[:, h : h + layout.height, h : h + layout.width] = inner
    return layout.place(words)


def plain_dots(shape: lay.ConvShape, bits: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(n, c, h, w) booleans -> exact dot products (n, oh, ow, o) as float32."""
    a = np.pad(np.where(bits, 1, -1).astype(np.float32), ((0, 0), (0, 0), *((p, p) for p in shape.padding)))
    out = np.zeros((bits.shape[0], shape.out_height, shape.out_width, shape.out_channels), np.float32)
    for ky, kx in itertools.product(range(shape.kernel[0]), range(shape.kernel[1])):
        part = a[:, :, ky :: shape.stride[0], kx :: shape.stride[1]][
            :, :, : shape.out_height, : shape.out_width
        ]
        out += np.moveaxis(part, 1, 3) @ np.where(weight[:, :, ky, kx], 1, -1).astype(np.float32).T
    return out


class Layer:
    """One convolution with random data on the device, and its expected results for a few images."""

    def __init__(
        self, device: cu.Device, c: int, oc: int, size: int, stride: int, images: int, side: int = 0
    ) -> None:
        rng = np.random.default_rng(c + size)
        self.device, self.images = device, images
        self.shape = lay.ConvShape(c, oc, (3, 3), (stride, stride), (1, 1), (1, 1), size, size)
        oh = self.shape.out_height
        self.layout, self.out = lay.bits_layout(c, size, size, 1), lay.bits_layout(oc, oh, oh, 1)
        self.pooled = lay.bits_layout(oc, oh // 2, oh // 2, 1)
        self.side = lay.bits_layout(side, oh, oh, 0) if side else None
        weight = rng.random((oc, c, 3, 3)) < 0.5
        side_weight = rng.random((oc, max(side, 1))) < 0.5
        case, constant = lay.constants(self.shape, weight)
        self.cases = constant.shape[0]
        spatial, side_spatial = rng.uniform(0.5, 2, (2, oh, oh)).astype(np.float32)
        channel = rng.normal(size=(7, oc)).astype(np.float32)
        channel[0] /= 10.0
        bits = random_bits(self.layout, images, rng)
        self.pixels = images * oh * oh
        residual = rng.normal(size=(min(images, 16) * oh * oh, oc)).astype(np.float32)
        residual = np.concatenate([residual] * -(-images // min(images, 16)))[: self.pixels]
        self.residuals = {"float": residual, "u16": residual.astype(np.float16)}
        up = device.upload
        self.memory = {
            "input": up(bits), "weight": up(lay.pack_weights(weight)), "channel": up(channel),
            "constant": up(constant / lay.SCALE_UP),
            "pixel": up(lay.pixel_table(case, spatial, side_spatial, self.out)),
        }  # fmt: skip
        self.some = sorted({0, images // 3, images - 1})
        rows = self.layout.rows * self.layout.row
        body = bits[: images * rows].reshape(images, rows)[self.some].reshape(-1)
        self.y = plain_dots(self.shape, self.layout.unpack(body, len(self.some)), weight) * spatial[..., None]
        if self.side:
            side_bits = random_bits(self.side, images, rng)
            side_constant = side - 2 * side_weight.sum(axis=1).astype(np.float32)
            self.memory |= {
                "side": up(side_bits), "side_weight": up(lay.pack_side_weights(side_weight)),
                "side_constant": up(side_constant.astype(np.float32) / lay.SCALE_UP),
            }  # fmt: skip
            side_rows = self.side.rows * self.side.row
            body = side_bits[: images * side_rows].reshape(images, side_rows)[self.some].reshape(-1)
            bits = self.side.unpack(body, len(self.some))
            signs = np.where(side_weight, 1, -1).astype(np.float32)
            dots = np.where(np.moveaxis(bits, 1, 3), 1, -1).astype(np.float32) @ signs.T
            self.z = (dots * side_spatial[..., None]) * channel[4] + channel[5]
        self.c = channel
        self.streams: dict[str, cu.Memory] = {}

    def fusion(self, kind: str) -> lay.Fusion:
        stream = "u16" if "half" in kind else "float"
        if kind.startswith("bits"):
            return BITS
        if kind.startswith("residual"):
            return lay.Fusion(CHAIN, 7, 1, stream=stream)
        if kind.startswith("side"):
            chain = "AFFINE(0,1) PRELU(2) SIDE_SCALE(4) SIDE_SHIFT(5) SIDE_ADD STORE(0) SIGN(0,3)"
            return lay.Fusion(chain, 7, 1, stream=stream)
        return lay.Fusion(
            "AFFINE(0,1) PRELU(2) ADD(0) SIGN(0,3)",
            7,
            1,
            pool=True,
            pooled="SIGN(2,6)",
            pool_bits=True,
            stream=stream,
        )

    def request(self, kind: str, tile: lay.Tile) -> tuple[str, str, int, int]:
        fusion = self.fusion(kind)
        self.macros = lay.conv_macros(
            self.shape, self.layout, self.out, tile, fusion, self.cases, self.pooled if fusion.pool else None,
            self.side if kind.startswith("side") else None,
        )  # fmt: skip
        source = kernel_source("binary_conv.cu", self.macros)
        return source, "binary_conv", tile.threads, lay.shared_bytes(self.macros)

    def arguments(self, kind: str, tile: lay.Tile) -> ConvArguments:
        a = ConvArguments(images=self.images, tiles=-(-self.pixels // tile.block_m))
        for name, memory in self.memory.items():
            setattr(a, name, memory.pointer)
        self.bits = self.device.upload(np.full(self.out.size(self.images), 0x5A, np.uint8))
        self.pooled_bits = self.device.upload(np.full(self.pooled.size(self.images), 0x5A, np.uint8))
        a.bits_out[0], a.bits_out[2] = self.bits.pointer, self.pooled_bits.pointer
        stream = self.fusion(kind).stream
        if not kind.startswith("bits"):
            if stream not in self.streams:
                self.streams[stream] = self.device.upload(self.residuals[stream])
                self.streams[stream + " out"] = self.device.allocate(self.residuals[stream].nbytes)
            a.stream_in[0], a.stream_out[0] = (
                self.streams[stream].pointer,
                self.streams[stream + " out"].pointer,
            )
        return a

    def check(self, kind: str) -> str:
        """Compares bits (and stream) of a few images with numpy; returns what was wrong or ''."""
        c, y = self.c, self.y
        oh, oc = self.shape.out_height, self.shape.out_channels
        if kind.startswith("bits"):
            want = y > c[0]
        else:
            y = y * c[0] + c[1]
            y = np.where(y > 0, y, c[2] * y)
            stream = self.fusion(kind).stream
            if kind.startswith("side"):
                y = y + self.z
            else:
                old = self.residuals[stream].reshape(self.images, oh, oh, oc)[self.some].astype(np.float32)
                y = y + old
            want = y > c[3]
        raw = self.device.download(self.bits.pointer, np.zeros(self.out.size(self.images), np.uint8))
        rows = self.out.rows * self.out.row
        body = raw[: self.images * rows].reshape(self.images, rows)[self.some].reshape(-1)
        wrong = int((np.moveaxis(self.out.unpack(body, len(self.some)), 1, 3) != want).sum())
        message = f"{wrong} wrong bits" if wrong else ""
        if kind.startswith(("residual", "side")):
            got = self.residuals[stream].copy()
            self.device.download(self.streams[stream + " out"].pointer, got)
            got = got.reshape(self.images, oh, oh, oc)[self.some]
            if not np.array_equal(got, y.astype(got.dtype)):
                message += f" {int((got != y.astype(got.dtype)).sum())} wrong floats"
        if kind.startswith("end"):
            q = ((y[:, ::2, ::2] + y[:, ::2, 1::2]) + y[:, 1::2, ::2]) + y[:, 1::2, 1::2]
            want = q * np.float32(0.25) > c[6]
            raw = self.device.download(
                self.pooled_bits.pointer, np.zeros(self.pooled.size(self.images), np.uint8)
            )
            rows = self.pooled.rows * self.pooled.row
            body = raw[: self.images * rows].reshape(self.images, rows)[self.some].reshape(-1)
            wrong = int((np.moveaxis(self.pooled.unpack(body, len(self.some)), 1, 3) != want).sum())
            message += f" {wrong} wrong pooled bits" if wrong else ""
        return message

    def floor(self, kind: str) -> tuple[float, float]:
        """(arithmetic, memory) in microseconds."""
        size = self.layout.size(self.images) + self.out.size(self.images)
        item = 2 if "half" in kind else 4
        floats = {"bits": 0, "residual": 2, "side": 1, "end": 1}[kind.split()[0]]
        size += floats * self.pixels * self.shape.out_channels * item
        return 2e6 * self.shape.multiply_adds(self.images) / PEAK_BITS, 1e6 * size / BANDWIDTH


def run_layer(
    device: cu.Device, title: str, layer: Layer, jobs: list[tuple[str, lay.Tile]], early: bool = False
) -> list[dict]:
    rows, requests, kept = [], [], []
    for kind, tile in jobs:
        try:
            requests.append(layer.request(kind, tile))
            kept.append((kind, tile))
        except ValueError as error:
            rows.append({"layer": title, "kind": kind, "tile": asdict(tile), "error": str(error)})
    start = time.perf_counter()
    kernels: list[Any] = []
    for request in requests:
        if request[3] > device.shared_limit:
            kernels.append(None)
    try:
        built = cu.build_kernels(device, [r for r in requests if r[3] <= device.shared_limit])
    except cu.CudaError as error:
        return [{"layer": title, "error": str(error)[:600]}]
    iterator = iter(built)
    kernels = [next(iterator) if r[3] <= device.shared_limit else None for r in requests]
    seconds = time.perf_counter() - start
    stream = cu.Stream()
    for (kind, tile), kernel in zip(kept, kernels, strict=True):
        row: dict[str, Any] = {"layer": title, "kind": kind, "tile": asdict(tile), "early": early}
        rows.append(row)
        if kernel is None:
            row["error"] = "too much shared memory"
            continue
        a = layer.arguments(kind, tile)
        nblocks = layer.shape.out_channels // tile.block_n
        slots = (
            min(a.tiles, max(1, kernel.resident * device.multiprocessors // nblocks))
            if tile.stay
            else a.tiles
        )
        grid = slots * nblocks
        cu.launch(kernel, grid, a, stream.value)
        stream.synchronize()
        row["wrong"] = layer.check(kind)
        ms = time_graph(stream, lambda: cu.launch(kernel, grid, a, stream.value, early))  # noqa: B023
        arithmetic, memory = layer.floor(kind)
        row |= {
            "us": 1e3 * ms, "tops": 2e-9 * layer.shape.multiply_adds(layer.images) / ms, "grid": grid,
            "registers": kernel.registers, "spilled": kernel.spilled, "shared": kernel.shared,
            "floor_arithmetic_us": arithmetic, "floor_memory_us": memory, "compile_s": seconds,
        }  # fmt: skip
    return rows


T = lay.Tile


def big_tiles(c: int) -> list[lay.Tile]:
    if c == 64:
        return [
            T(wm=4, mt=2, ml=1, stages=1), T(wm=4, mt=2, ml=2, stages=1), T(wm=4, mt=2, ml=2, stay=1),
            T(wm=4, mt=2, ml=2, blocks=4, stay=1), T(wm=4, mt=2, ml=4, hold=1, stay=1), T(wm=8, mt=2, ml=2,
            stay=1, blocks=2),
            T(wm=4, mt=1, ml=4, stay=1, blocks=5),
            T(wm=4, mt=2, ml=2, blocks=3, stay=1), T(wm=4, mt=1, ml=4, hold=1, stay=1, blocks=4),
        ]  # fmt: skip
    tiles = [
        T(wm=2, wn=2, mt=2, ml=1, stages=1), T(wm=2, wn=2, mt=2, ml=2, stay=1, blocks=2), T(wm=4, wn=1, mt=2,
        ml=1, stay=1, blocks=3),
        T(wm=4, wn=2, mt=2, ml=1, stay=1), T(wm=2, wn=2, mt=4, ml=1, stay=1, blocks=2), T(wm=4, wn=2, mt=4,
        ml=1, stay=1),
        T(wm=4, wn=1, mt=2, ml=2, stay=1, blocks=2), T(wm=2, wn=1, mt=4, ml=1, stay=1, blocks=4), T(wm=4,
        wn=1, mt=4, ml=1, stay=1, blocks=2),
        T(wm=4, wn=1, mt=2, ml=1, stages=1, blocks=3),
    ]  # fmt: skip
    if c >= 256:
        tiles += [T(wm=2, wn=4, mt=2, ml=1, stay=1), T(wm=2, wn=4, mt=2, ml=1, stages=1, stay=1)]
    if c == 128:
        tiles += [
            T(wm=2, wn=2, mt=2, ml=2, hold=1, stay=1, blocks=2),
            T(wm=4, wn=2, mt=1, ml=2, stay=1, blocks=2),
        ]
    return tiles


def conv_group(device: cu.Device, c: int) -> list[dict]:
    size = 56 * 64 // c
    layer = Layer(device, c, c, size, 1, 256, side=c // 2 if c > 64 else 0)
    kinds = (
        ["bits", "residual", "residual half"] + (["side"] if c > 64 else []) + (["end"] if c < 512 else [])
    )
    tiles = big_tiles(c)
    more = [T(wm=4, mt=1, ml=2, stay=1, blocks=6), T(wm=4, mt=2, ml=1, stay=1, blocks=4),
            T(wm=2, mt=2, ml=2, stay=1, blocks=6)]  # fmt: skip
    more += [T(wm=4, mt=1, ml=4, stay=1, blocks=5), T(wm=4, mt=2, ml=2, blocks=3, stay=1),
             T(wm=4, mt=2, ml=2, blocks=4, ahead=2, stay=1),
             T(wm=4, mt=1, ml=2, blocks=5, stay=1)]  # fmt: skip
    jobs = [("bits", t) for t in tiles] + [(k, t) for k in kinds[1:] for t in tiles[1:6] + more]
    return run_layer(device, f"{c}@{size} n256", layer, jobs)


def stride_group(device: cu.Device) -> list[dict]:
    rows = []
    for c in (64, 128, 256):
        layer = Layer(device, c, 2 * c, 56 * 64 // c, 2, 256)
        jobs = [("bits", t) for t in big_tiles(128)[1:5]]
        rows += run_layer(device, f"{c}@{56 * 64 // c}/2 n256", layer, jobs)
    return rows


def small_group(device: cu.Device) -> list[dict]:
    """Batch 1: the time of one layer in a chain of 20, with and without early start."""
    rows = []
    for c in (64, 128, 256, 512):
        layer = Layer(device, c, c, 56 * 64 // c, 1, 1)
        tiles = [
            T(wm=1, mt=1, stages=1), T(wm=2, mt=1, stages=1), T(wm=1, wn=2, mt=1, np=2, stages=1),
            T(wm=2, wn=2, mt=1, np=2, stages=1), T(wm=1, wn=1, mt=1, np=2, stages=1),
        ]  # fmt: skip
        for early in (False, True):
            jobs = [(k, t) for k in ("bits", "residual") for t in tiles]
            rows += run_layer(device, f"{c}@{56 * 64 // c} n1", layer, jobs, early)
    return rows


def stem_group(device: cu.Device) -> list[dict]:
    rng = np.random.default_rng(0)
    rows: list[dict] = []
    stream = cu.Stream()
    weight = rng.normal(size=(64, 3, 7, 7)).astype(np.float32)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    mult, add = rng.normal(size=64).astype(np.float32), rng.normal(size=64).astype(np.float32)
    rounded = image_filters(weight, mean, std, 2)
    filters = lay.stem_filters(rounded, mult < 0)
    out = lay.bits_layout(64, 56, 56, 1)
    threshold = np.abs(rng.normal(size=64)).astype(np.float32)
    channel = np.stack([filters.rest, rounded.step, np.abs(mult), add, threshold])
    for images in (256, 1):
        pixels = rng.integers(0, 256, (images, 224, 224, 3), dtype=np.uint8)
        last = pixels[-1:].astype(np.int64)
        full = np.zeros((1, 230, 240, 4), np.float64)
        full[:, 3:227, 3:227, :3], full[:, 3:227, 3:227, 3] = last, 255
        sums = np.zeros((1, 112, 112, 64))
        for ky, kx in itertools.product(range(7), range(7)):
            sums += full[:, ky : ky + 223 : 2, kx : kx + 223 : 2] @ filters.whole[:, ky, kx].T.astype(
                np.float64
            )
        padded = np.pad(sums, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-(2.0**31))
        best = np.max(
            [padded[:, i : i + 111 : 2, j : j + 111 : 2] for i in range(3) for j in range(3)], axis=0
        )
        best = (best + filters.rest.view(np.int32)).astype(np.float32) * rounded.step
        want = np.maximum(best * np.abs(mult) + add, np.float32(0))
        memory = [device.upload(a) for a in (pixels, filters.packed, channel)]
        bits = device.allocate(out.size(images))
        kept = []
        for stream_type, r, pairs, blocks, across, hold in [
            ("u16", 14, 4, 2, 0, 0), ("float", 28, 2, 2, 2, 1), ("u16", 28, 2, 2, 2, 1),
            ("u16", 14, 2, 2, 2, 1), ("u16", 56, 2, 2, 2, 1), ("u16", 28, 2, 1, 4, 1),
            ("u16", 14, 2, 1, 4, 1), ("u16", 28, 2, 4, 1, 1), ("u16", 7, 2, 2, 2, 1),
            ("u16", 1, 2, 1, 0, 0), ("u16", 1, 2, 1, 2, 0), ("u16", 1, 2, 1, 1, 0),
            ("u16", 1, 2, 1, 1, 1), ("u16", 2, 2, 1, 1, 0),
        ]:  # fmt: skip
            macros = lay.stem_macros(
                224,
                224,
                7,
                3,
                64,
                out,
                5,
                "SCALE(1) AFFINE(2,3) RELU STORE(0) SIGN(0,4)",
                1,
                stream_type,
                r,
                pairs,
                blocks,
                across,
                hold,
            )
            threads = lay.stem_threads(macros)
            kept.append(
                (macros, (kernel_source("stem.cu", macros), "stem", threads, lay.stem_shared_bytes(macros)))
            )
        kept = [k for k in kept if k[1][3] <= device.shared_limit]
        kernels = cu.build_kernels(device, [k[1] for k in kept])
        for (macros, _), kernel in zip(kept, kernels, strict=True):
            dtype = np.float32 if macros["STREAM"] == "float" else np.float16
            result = np.full((images, 56, 56, 64), np.nan, dtype)
            target = device.upload(result)
            a = StemArguments(memory[0].pointer, memory[1].pointer, memory[2].pointer)
            a.stream_out[0], a.bits_out[0], a.images = target.pointer, bits.pointer, images
            grid = lay.stem_blocks(macros, images)
            cu.launch(kernel, grid, a, stream.value)
            stream.synchronize()
            device.download(target.pointer, result)
            wrong = int((result[-1:] != want.astype(dtype)).sum()) + int(np.isnan(result).sum())
            ms = time_graph(stream, lambda: cu.launch(kernel, grid, a, stream.value))  # noqa: B023
            rows.append({
                "layer": f"stem n{images}", "kind": str(macros["STREAM"]),
                "tile": {k: macros[k] for k in ("R", "NP", "XB", "HOLD", "BLOCKS")},
                "wrong": f"{wrong} wrong floats" if wrong else "", "us": 1e3 * ms, "grid": grid,
                "tops": 2e-9 * images * 112 * 112 * 64 * 147 / ms, "registers": kernel.registers,
                "spilled": kernel.spilled,
                "shared": kernel.shared, "floor_arithmetic_us": images * 112 * 112 * 64 * 224 * 4 / 1293e6,
                "floor_memory_us": images * (224 * 224 * 3 + 56 * 56 * 64 * dtype().nbytes) / 4.3e6,
            })  # fmt: skip
    return rows


def copy_group(device: cu.Device) -> list[dict]:
    """Copies in device memory: from memory, and small enough for the second-level cache."""
    rows, stream = [], cu.Stream()
    for size in (2**30, 2**28, 2**25, 2**24):
        a, b = device.allocate(size), device.allocate(size)

        def work(a: cu.Memory = a, b: cu.Memory = b, size: int = size) -> None:
            args = (
                ctypes.c_uint64(b.pointer),
                ctypes.c_uint64(a.pointer),
                ctypes.c_size_t(size),
                stream.handle,
            )
            cu.call("cuMemcpyDtoDAsync_v2", *args)

        ms = time_graph(stream, work)
        rows.append(
            {"layer": f"copy {size >> 20} MiB", "error": f"{2e-9 * size / ms:.2f} TB/s read and written"}
        )
    return rows


def torch_group(device: cu.Device) -> list[dict]:
    """The real-valued baseline: the number to beat."""
    import torch
    from torchvision.models import resnet18

    rows = []
    torch.backends.cudnn.benchmark = True
    net = resnet18().cuda().eval().to(torch.bfloat16, memory_format=torch.channels_last)
    for n in (256, 1):
        x = torch.randn(n, 3, 224, 224, device="cuda", dtype=torch.bfloat16).to(
            memory_format=torch.channels_last
        )
        for mode in ("eager", "default", "reduce-overhead"):
            torch._dynamo.reset()
            run = net if mode == "eager" else torch.compile(net, mode=mode)
            with torch.inference_mode():
                for _ in range(5):
                    run(x)
                torch.cuda.synchronize()
                base = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                times = []
                for _ in range(30):
                    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record()
                    for _ in range(5):
                        run(x)
                    stop.record()
                    torch.cuda.synchronize()
                    times.append(start.elapsed_time(stop) / 5)
                peak = torch.cuda.max_memory_allocated()
            text = f"{np.median(times):.4f} ms, peak {peak >> 20} MiB, held before the call {base >> 20} MiB"
            rows.append({"layer": f"torch {mode} n{n}", "error": text})
    return rows


GROUPS = {
    "stem": stem_group,
    "conv64": lambda d: conv_group(d, 64),
    "conv128": lambda d: conv_group(d, 128),
    "conv256": lambda d: conv_group(d, 256),
    "conv512": lambda d: conv_group(d, 512),
    "stride": stride_group,
    "small": small_group,
    "copy": copy_group,
    "torch": torch_group,
}


def short(row: dict[str, Any]) -> str:
    tile = " ".join(f"{k}{v}" for k, v in row.get("tile", {}).items() if v and k != "tail128")
    head = f"{row['layer']:<13}{row.get('kind', ''):<14}{'early ' if row.get('early') else ''}"
    if "us" not in row:
        return f"{head} {row.get('error')} {tile}"
    floor = f"floor {row['floor_arithmetic_us']:5.1f}/{row['floor_memory_us']:5.1f}"
    cost = f"r{row['registers']} l{row['spilled']} s{row['shared'] // 1024}K g{row['grid']}"
    return f"{head}{row['us']:8.2f} us {row['tops']:7.0f} T  {floor}  {cost} {row['wrong'] or 'ok':<6} {tile}"


def main() -> None:
    names = sys.argv[1:] or list(GROUPS)
    if len(names) == 1 and os.environ.get("XNORPP_GROUP"):
        device = cu.Device()
        rows = GROUPS[names[0]](device)
        Path(os.environ["XNORPP_GROUP"]).write_text(json.dumps(rows))
        return
    out = Path(os.environ.get("OUT", "."))
    everything: list[dict[str, Any]] = []
    for name in names:
        target = out / f"{name}.json"
        start = time.perf_counter()
        environment = os.environ | {"XNORPP_GROUP": str(target)}
        try:
            done = subprocess.run(
                [sys.executable, __file__, name],
                env=environment,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            failed = done.stderr[-1500:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = "timed out after 100 s"
        print(f"{name}: {time.perf_counter() - start:.1f} s {failed}", flush=True)
        if target.exists():
            everything += json.loads(target.read_text())
    (out / "cuda_kernels.json").write_text(json.dumps(everything, indent=1))
    order = {row["layer"]: i for i, row in reversed(list(enumerate(everything)))}
    everything.sort(key=lambda r: (order[r["layer"]], r.get("kind", ""), r.get("us", 1e9)))
    last: dict[tuple[str, str, bool], int] = {}
    for row in everything:
        key = (row["layer"], row.get("kind", ""), bool(row.get("early")))
        last[key] = last.get(key, 0) + 1
        if last[key] <= (1 if row["layer"].endswith(" n1") else 2) or row.get("wrong") or "error" in row:
            print(short(row))


if __name__ == "__main__":
    assert ctypes.sizeof(ConvArguments) == 6 * 8 + 7 * 8 + 3 * 8 + 8
    main()
