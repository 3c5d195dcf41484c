"""Table 2: how closely a binary convolution with scale factors reproduces a real-valued one.

The paper draws weights `W` (64x64x3x3) and an input `I` (64x16x16) from a normal distribution, fixes the
signs and trains only the factors. With `R = I * W` and `B = sign(I) * sign(W)` (padding 1, zeros after the
sign) the distance is the mean of `|R - Gamma . B|` over the output's elements, which is also the loss. The
convolutions do not change while the factors train, so each is computed once; repetitions are independent and
train side by side as one batch, because Adam works on every number by itself.

**Convergence.** Every factor is its start times a number that Adam moves (start: `mean|W| . 0.8` per
channel), so that a learning rate is a relative step. It goes through `RATES`. At each, training continues
until the least loss of `WINDOW` steps is not more than `TOLERANCE` (relative) under that of all windows
before, in any repetition of the batch; `MOST_WINDOWS` ends a stage in any case. Cases 1 and 2 have an exact
optimum:

    Case 1   a weighted median: the sum over a channel of |B| |R/B - alpha| is least at the median of R/B,
             each weighing |B|
    Case 2   R/B wherever B is not 0; what is left is |R| where it is

**What to expect.** Let `W` and `I` be normal with deviations `s` and `t`. Then `R` and `B` correlate by
`2/pi`, the best constant factor is `(2/pi) s t`, and what is left is `sqrt(1 - 4/pi^2)` = 0.77 of `R`'s
deviation. XNOR-Net's `mean|W| K` is `(2/pi) s t` already; without K it is `sqrt(2/pi) s`, near it only
where `t` is near 1.25, and far off for small inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from xnorpp.nn.means import filter_means, input_scale
from xnorpp.nn.quantizers import hard_sign
from xnorpp.nn.scales import ANALYTIC_INPUT_MEAN, SCALES
from xnorpp.runtime.choices import check_choice

CHANNELS, SIZE, REPETITIONS, BATCH = 64, 16, 100, 10
RATES = (0.1, 0.01, 1e-3, 1e-4)
WINDOW, TOLERANCE, MOST_WINDOWS = 50, 1e-5, 60

CASES = {"case1": "channel", "case2": "dense", "case3": "channel_spatial", "case4": "channel_height_width"}
METHODS = ("direct", "xnor-alpha", "xnor", *CASES)

Row = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """How weights and inputs are drawn: both normal, with these deviations."""

    name: str
    about: str
    kernel: int = 3
    weight_std: float = 1.0
    input_std: float = 1.0
    channels: int = CHANNELS
    size: int = SIZE

    @property
    def fan_in(self) -> int:
        return self.channels * self.kernel**2


SETUPS = (
    Setup("stated", "as the paper states it, 3x3 kernels, standard normal weights and inputs"),
    Setup("stated-he", "as the paper states it, He-scaled weights", weight_std=math.sqrt(2 / (9 * CHANNELS))),
    Setup("pointwise", "1x1 kernels, so 64 inputs per filter, standard normal weights", kernel=1),
    Setup("pointwise-he", "1x1 kernels, He-scaled weights", kernel=1, weight_std=math.sqrt(2 / CHANNELS)),
    # Two deviations solved for three of the paper's numbers (direct, XNOR-Net, Case 1) by the formulas above,
    # with 64 inputs per filter and without K: sqrt(64) s t = 0.0617 and t = 0.33.
    Setup(
        "fitted",
        "1x1 kernels, deviations 0.0233 (weights) and 0.33 (inputs) fitted to the paper's first three rows",
        kernel=1,
        weight_std=0.0233,
        input_std=0.33,
    ),
)


@dataclass(frozen=True)
class Drawn:
    """A batch of repetitions: the outputs `(r, o, h, w)` of both convolutions and XNOR-Net's factors."""

    real: Tensor
    binary: Tensor
    alpha: Tensor  # (r, o, 1, 1)
    k: Tensor  # (r, 1, h, w)


def draw(setup: Setup, repetitions: range, seed: int = 0) -> tuple[Drawn, Drawn]:
    """The layers to fit on, and the same weights on another input; a repetition depends on its number."""
    pairs: tuple[list[Drawn], list[Drawn]] = ([], [])
    pad = setup.kernel // 2
    for repetition in repetitions:
        random = torch.Generator().manual_seed(1_000_003 * seed + repetition)
        shape = (setup.channels, setup.channels, setup.kernel, setup.kernel)
        weight = setup.weight_std * torch.randn(shape, generator=random)
        for kept in pairs:
            x = setup.input_std * torch.randn(1, setup.channels, setup.size, setup.size, generator=random)
            binary = conv2d(hard_sign(x), hard_sign(weight), padding=pad)
            kernel = (setup.kernel, setup.kernel)
            k = input_scale(x, kernel, (1, 1), (pad, pad, pad, pad), (1, 1), 1)
            kept.append(Drawn(conv2d(x, weight, padding=pad), binary, filter_means(weight)[None], k))
    fit, held = (
        Drawn(*(torch.cat([getattr(one, name) for one in kept]) for name in ("real", "binary", "alpha", "k")))
        for kept in pairs
    )
    return fit, held


def distance(layer: Drawn, gamma: Tensor | float) -> Tensor:
    """The mean of `|R - Gamma . B|` of each repetition."""
    return (layer.real - gamma * layer.binary).abs().mean((1, 2, 3))


@dataclass(frozen=True)
class Fit:
    """Gamma as trained, and the steps that it took."""

    gamma: Tensor
    steps: int


def fit(
    layer: Drawn,
    case: str,
    *,
    start: float | None = None,
) -> Fit:
    """Train the factors of a case to convergence; `start` replaces the analytic start of every channel."""
    repetitions, channels, height, width = layer.real.shape
    scale = SCALES[CASES[case]](channels, (height, width))
    moved = [torch.ones(repetitions, *factor.shape, requires_grad=True) for factor in scale.factors()]
    origin = ANALYTIC_INPUT_MEAN * layer.alpha if start is None else torch.full_like(layer.alpha, start)
    binary = origin * layer.binary  # the start is a constant, so it may be multiplied in once
    steps = 0
    for rate in RATES:
        optimizer = torch.optim.Adam(moved, lr=rate)
        before = torch.full((repetitions,), math.inf)
        for _ in range(MOST_WINDOWS):
            least = torch.full((repetitions,), math.inf)
            for _ in range(WINDOW):
                optimizer.zero_grad()
                losses = (layer.real - _product(moved) * binary).abs().mean((1, 2, 3))
                torch.autograd.backward(losses.sum())
                optimizer.step()
                least = torch.minimum(least, losses.detach())
            steps += WINDOW
            if bool((least >= before * (1 - TOLERANCE)).all()):
                break
            before = torch.minimum(before, least)
    return Fit(origin * _product(moved).detach(), steps)


def _product(factors: list[Tensor]) -> Tensor:
    first, *others = factors
    for factor in others:
        first = first * factor
    return first


def optimum(layer: Drawn, case: str) -> Tensor:
    """The Gamma of least distance, exactly: Case 1 by weighted medians, Case 2 by division."""
    if case == "case2":
        safe = torch.where(layer.binary == 0, torch.ones(()), layer.binary)
        return torch.where(layer.binary == 0, torch.zeros(()), layer.real / safe)
    if case != "case1":
        raise ValueError(f"`case` (={case!r}) must be 'case1' or 'case2'; the others have no closed form")
    real, binary = layer.real.flatten(2), layer.binary.flatten(2)
    weights = binary.abs()
    ratios, order = (real / torch.where(binary == 0, torch.ones(()), binary)).sort(-1)
    total = weights.gather(-1, order).cumsum(-1)
    place = (total < total[..., -1:] / 2).sum(-1, keepdim=True)
    return ratios.gather(-1, place)[..., None]


def measure(
    setup: Setup, repetitions: int, *, seed: int = 0, hear: Callable[[int], None] | None = None
) -> list[Row]:
    """One row per method: distance on the input of the fit and on a held-out one, mean and deviation.

    `hear` is called with the number of fits since its last call.
    """
    found: dict[str, tuple[list[Tensor], list[Tensor]]] = {method: ([], []) for method in METHODS}
    exact: dict[str, list[Tensor]] = {"case1": [], "case2": []}
    steps = dict.fromkeys(CASES, 0)
    for first in range(0, repetitions, BATCH):
        batch = range(first, min(first + BATCH, repetitions))
        layer, held = draw(setup, batch, seed)
        for method, gamma, other in _gammas(layer, held, steps):
            found[method][0].append(distance(layer, gamma))
            found[method][1].append(distance(held, other))
            if hear:
                hear(len(batch))
        for case, kept in exact.items():
            kept.append(distance(layer, optimum(layer, case)))
    base = torch.cat(found["xnor"][0])
    rows = []
    for method, (fitted, held_out) in found.items():
        values = torch.cat(fitted)
        row: Row = {
            "kind": "table2",
            "setup": setup.name,
            "method": method,
            "repetitions": repetitions,
            "distance": _spread(values),
            "held_out": _spread(torch.cat(held_out)),
            "of_xnor": _spread(values / base),  # paired: each repetition against XNOR-Net with K
            "seed": seed,
            "settings": {
                **asdict(setup), "rates": list(RATES), "window": WINDOW, "tolerance": TOLERANCE,
                "most_windows": MOST_WINDOWS, "batch": BATCH,
            },
        }  # fmt: skip
        if method in steps:
            row["most_steps"] = steps[method]
        if method in exact:
            best = torch.cat(exact[method])
            row["optimum"] = _spread(best)
            row["above_optimum"] = float((values / best - 1).max())
        rows.append(row)
    return rows


def _gammas(layer: Drawn, held: Drawn, steps: dict[str, int]) -> Iterator[tuple[str, Any, Any]]:
    """(method, Gamma on the fitted input, Gamma on the held-out one): only K is computed again there."""
    yield "direct", 1.0, 1.0
    yield "xnor-alpha", layer.alpha, held.alpha
    yield "xnor", layer.alpha * layer.k, held.alpha * held.k
    for case in CASES:
        trained = fit(layer, case)
        steps[case] = max(steps[case], trained.steps)
        yield case, trained.gamma, trained.gamma


def _spread(values: Tensor) -> dict[str, float]:
    deviation = float(values.double().std()) if len(values) > 1 else 0.0
    return {"mean": float(values.double().mean()), "std": deviation}


def run(
    *,
    quick: bool = False,
    setups: Sequence[str] = (),
    repetitions: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Iterator[list[Row]]:
    """The rows of each set-up as it is done (all, or those named); `quick` is a look, with two repetitions of
    smaller layers. One thread: a batch fits into a core's cache, and other cores would only fetch from it.
    """
    from xnorpp.data.progress import Progress

    names = tuple(setup.name for setup in SETUPS)
    for name in setups:
        check_choice("setup", name, names)
    count = repetitions or (2 if quick else REPETITIONS)
    if count < 1:
        raise ValueError(f"`repetitions` (={count}) must be at least 1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for setup in SETUPS:
            if setups and setup.name not in setups:
                continue
            if quick:
                setup = replace(setup, channels=16, size=8)
            say(f"{setup.name}: {setup.about}, {count} repetitions")
            progress = Progress(setup.name, count * len(METHODS), "fits")
            rows = measure(setup, count, seed=seed, hear=progress.advance)
            progress.close()
            yield [{**row, "quick": quick} for row in rows]
    finally:
        torch.set_num_threads(threads)
