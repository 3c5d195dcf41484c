"""Complex numbers, Fourier transforms and spectrograms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

torch.manual_seed(0)
WEIGHTS, TURNS = torch.randn(6, 8, dtype=torch.cfloat), torch.polar(torch.ones(9), torch.linspace(0, 3, 9))
WINDOW, BANDS = torch.hann_window(32), torch.rand(6, 17)
fft = torch.fft


def complex_of(x: Tensor) -> Tensor:
    return torch.complex(x, x.flip(1) * 0.5)


def real(y: Tensor) -> Tensor:
    return torch.view_as_real(y)


def put(x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 6, 7, 9, dtype=torch.cfloat)
    y[:, :, 2:5] = complex_of(x)[:, :, :3]
    return real(y)


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "fft": lambda x: real(fft.fft(x)),
    "fft of two axes": lambda x: fft.fft(fft.fft(x, dim=-1), dim=-2).real,
    "fft of an even axis": lambda x: real(fft.fft(x, dim=1)),
    "ifft": lambda x: real(fft.ifft(complex_of(x), dim=2, norm="ortho")),
    "rfft": lambda x: real(fft.rfft(x)),
    "rfft of more": lambda x: real(fft.rfft(x, n=16)),
    "rfft of less": lambda x: real(fft.rfft(x, n=6, dim=2, norm="forward")),
    "irfft": lambda x: fft.irfft(complex_of(x)),
    "irfft to an odd length": lambda x: fft.irfft(fft.rfft(x), n=9) + x,
    "irfft to less": lambda x: fft.irfft(complex_of(x), n=7, norm="ortho"),
    "fft2": lambda x: real(fft.fft2(x)),
    "ifft2": lambda x: real(fft.ifft2(complex_of(x))),
    "rfft2 and back": lambda x: fft.irfft2(fft.rfft2(x, norm="ortho") * 2, s=x.shape[-2:], norm="ortho"),
    "rfftn": lambda x: real(fft.rfftn(x, dim=(1, 2, 3))),
    "shifted": lambda x: real(fft.fftshift(fft.fft(x), dim=-1)),
}
ARITHMETIC: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: real(complex_of(x) + x - 2 * complex_of(x.relu()) + (1 + 2j)),
    "product": lambda x: real(complex_of(x) * complex_of(x.relu()) * TURNS * 0.5),
    "a real value by complex numbers": lambda x: (x * TURNS).imag,
    "quotient": lambda x: real(complex_of(x) / 2 + 1 / (complex_of(x) + 4)),
    "conjugate": lambda x: real(torch.conj(complex_of(x)) * 2),
    "magnitude": lambda x: complex_of(x + 3).abs() + torch.abs(complex_of(x + 3)) ** 2,
    "square": lambda x: real(complex_of(x) ** 2),
    "exp": lambda x: real(torch.exp(complex_of(x))),
    "polar": lambda x: real(torch.polar(x.abs(), x * 2)),
    "matmul": lambda x: real(complex_of(x).transpose(1, 3) @ WEIGHTS),
    "einsum": lambda x: real(torch.einsum("nchw,co->nohw", complex_of(x), WEIGHTS)),
    "parts and order": lambda x: real(
        torch.cat([complex_of(x)[:, 1:, ::2], complex_of(x)[:, :1, ::2]], 1).mT
    ),
    "split": lambda x: real(complex_of(x).chunk(2, 1)[1].sum(2).flatten(1)),
    "put": put,
    "rotated": lambda x: real(
        torch.view_as_complex(x[..., :8].reshape(*x.shape[:-1], 4, 2).contiguous()) * TURNS[:4]
    ).flatten(3),
}
SOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "magnitudes": lambda x: torch.stft(x, 32, 8, window=WINDOW, return_complex=True).abs(),
    "both parts": lambda x: real(torch.stft(x, 32, return_complex=True, normalized=True)),
    "a short window": lambda x: real(
        torch.stft(x, 32, 16, 20, window=WINDOW[:20], center=False, return_complex=True)
    ),
    "bands": lambda x: (
        BANDS @ torch.stft(x, 32, 8, window=WINDOW, return_complex=True)[..., :-1].abs() ** 2
    ).clamp(min=1e-5).log10(),
    "and back": lambda x: torch.istft(
        torch.stft(x, 32, 8, window=WINDOW, return_complex=True) * 0.5, 32, 8, window=WINDOW, length=160
    ),
    "back without a length": lambda x: torch.istft(
        torch.stft(x, 30, 10, window=WINDOW[:30], return_complex=True, normalized=True),
        30, 10, window=WINDOW[:30], normalized=True,
    ),
}  # fmt: skip


class Spectral(nn.Module):
    """A Fourier neural operator: a product for each of the low frequencies, beside a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 1, 1)
        self.weights = nn.Parameter(torch.randn(8, 8, 6, dtype=torch.cfloat) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        low = torch.zeros(len(x), 8, x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        low[:, :, :6] = torch.einsum("nix,iox->nox", fft.rfft(x)[:, :, :6], self.weights)
        return self.last(F.gelu(fft.irfft(low, n=x.shape[-1]) + self.second(x)))


class StateSpace(nn.Module):
    """A diagonal state space, as a long convolution by its Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.step = nn.Parameter(torch.randn(8, 4, 2)), nn.Parameter(torch.rand(8) * -2 - 2)
        self.last = nn.Conv1d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        length, poles = x.shape[-1], -0.5 + 1j * math.pi * torch.arange(4)
        steps = poles * self.step.exp()[:, None]
        factors = torch.view_as_complex(self.mixed) * (steps.exp() - 1) / poles
        powers = torch.exp(steps.unsqueeze(-1) * torch.arange(length))
        kernel = 2 * torch.einsum("hn,hnl->hl", factors, powers).real
        both = fft.rfft(x, n=2 * length) * fft.rfft(kernel, n=2 * length)
        return F.glu(self.last(F.gelu(fft.irfft(both, n=2 * length)[..., :length] + x)), dim=1)


@pytest.mark.parametrize("name", [*TRANSFORMS, *ARITHMETIC])
def test_transforms_and_arithmetic(name: str) -> None:
    agrees({**TRANSFORMS, **ARITHMETIC}[name], images(6, 7, 9))


@pytest.mark.parametrize("name", SOUNDS)
def test_spectrograms(name: str) -> None:
    agrees(SOUNDS[name], images(160))


@pytest.mark.parametrize(("build", "shape"), [(Spectral, (1, 32)), (StateSpace, (8, 32))])
def test_networks_of_frequencies(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    agrees(build(), images(*shape))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "root": (lambda x: complex_of(x).sqrt().real, "sqrt of complex numbers", "pack_submodules"),
    "a complex output": (complex_of, "which is complex", "view_as_real"),
    "a third power": (lambda x: (complex_of(x) ** 3).real, "the power 3", "docs/packing.md"),
    "all axes": (lambda x: fft.fftn(x).real, "the batch is one of them", "docs/packing.md"),
    "along the batch": (lambda x: fft.fft(x, dim=0).real, "batch", "image"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_remedy(name: str) -> None:
    function, reason, remedy = REFUSED[name]
    is_refused(Lambda(function), images(6, 7, 9), reason, remedy)
