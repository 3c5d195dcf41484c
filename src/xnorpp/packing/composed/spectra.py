"""Fourier transforms as products with constant waves: an axis, frames of a sound, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST = 1 << 24  # numbers of the waves of one axis

# The parts of complex numbers; the second one is None where they are real.
Parts = tuple[Tensor, Any]


def _waves(count: int, frequencies: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (count, frequencies), whose zeros are exact."""
    if count * frequencies > _MOST:
        raise ValueError(f"{count} numbers, whose waves are too many")
    turns = torch.outer(torch.arange(count), torch.arange(frequencies)) % count
    angles = turns.double() * (2 * math.pi / count)
    cosines, sines = angles.cos(), angles.sin()
    sines = torch.where(turns * 2 % count == 0, 0.0, sines)
    cosines = torch.where((turns * 4 % count == 0) & (turns * 2 % count != 0), 0.0, cosines)
    return cosines.float(), sines.float()


def _sized(input: Tensor, dim: int, count: int) -> Tensor:
    """The axis last, with zeros behind it or without its end."""
    last = input.movedim(dim, -1)
    size = last.shape[-1]
    return last if size == count else F.pad(last, (0, count - size)) if size < count else last[..., :count]


def _factor(norm: str | None, count: int, inverse: bool) -> float:
    if norm == "ortho":
        return float(count**-0.5)
    return 1.0 / count if inverse == (norm in (None, "backward")) else 1.0


def _transform(parts: Parts, n: int | None, dim: int, norm: Any, inverse: bool, half: bool = False) -> Parts:
    count = parts[0].shape[dim] if n is None else n
    cosines, sines = (
        t * _factor(norm, count, inverse) for t in _waves(count, count // 2 + 1 if half else count)
    )
    sines = -sines if inverse else sines
    real = _sized(parts[0], dim, count)
    first, second = real @ cosines, -(real @ sines)
    if parts[1] is not None:
        imaginary = _sized(parts[1], dim, count)
        first, second = first + imaginary @ sines, second + imaginary @ cosines
    return first.movedim(-1, dim), second.movedim(-1, dim)


def _to_real(parts: Parts, n: int | None, dim: int, norm: Any) -> Parts:
    """The real numbers of which `parts` is the first half of the transform."""
    count = 2 * (parts[0].shape[dim] - 1) if n is None else n
    bins = count // 2 + 1
    cosines, sines = (t.mT * _factor(norm, count, True) for t in _waves(count, bins))
    twice = torch.full((bins, 1), 2.0)
    twice[0] = 1.0
    if count % 2 == 0:
        twice[-1] = 1.0
    made = _sized(parts[0], dim, bins) @ (cosines * twice)
    if parts[1] is not None:
        made = made - _sized(parts[1], dim, bins) @ (sines * twice)
    return made.movedim(-1, dim), None


def _axis(inverse: bool, half: bool = False) -> Callable[..., Parts]:
    def transform(input: Parts, n: int | None = None, dim: int = -1, norm: str | None = None) -> Parts:
        return _transform(input, n, dim, norm, inverse, half)

    return transform


def _axes(inverse: bool, real: bool, default: Sequence[int] | None) -> Callable[..., Parts]:
    """Over several axes: of real numbers, the last one is halved first, or filled up last."""

    def transform(input: Parts, s: Any = None, dim: Any = default, norm: str | None = None) -> Parts:
        if dim is None and s is None:
            raise ValueError("no axes, so that the batch is one of them")
        dims = list(range(-len(s), 0)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
        sizes = [None] * len(dims) if s is None else [None if n == -1 else n for n in s]
        pairs = list(zip(dims, sizes))
        if real and not inverse:
            input = _transform(input, pairs[-1][1], pairs[-1][0], norm, False, True)
        for axis, size in pairs[:-1] if real else pairs:
            input = _transform(input, size, axis, norm, inverse)
        return _to_real(input, pairs[-1][1], pairs[-1][0], norm) if real and inverse else input

    return transform


def _filters(n_fft: int, window: Any, win_length: int | None) -> tuple[Tensor, Tensor, Tensor]:
    length = n_fft if win_length is None else win_length
    window = torch.ones(length) if window is None else window.float()
    left = (n_fft - length) // 2
    window = F.pad(window, (left, n_fft - length - left))
    return window, *_waves(n_fft, n_fft // 2 + 1)


def _stft(
    input: Parts, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Any = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None, align_to_window: Any = None,
) -> Parts:  # fmt: skip
    """A convolution with the waves of each frequency, times the window."""
    sound = input[0]
    if input[1] is not None or onesided is False or sound.dim() != 2:
        raise ValueError("complex sounds, all frequencies, or one sound without a batch")
    wide, cosines, sines = _filters(n_fft, window, win_length)
    sound = sound.unsqueeze(1)
    if center:
        sound = F.pad(sound, (n_fft // 2, n_fft // 2), mode=pad_mode)
    scale = n_fft**-0.5 if normalized else 1.0
    waves = torch.cat([cosines.mT, -sines.mT]) * (wide * scale)
    made = F.conv1d(sound, waves.unsqueeze(1), stride=hop_length or n_fft // 4)
    bins = n_fft // 2 + 1
    return made[:, :bins], made[:, bins:]


def _istft(
    input: Parts, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Any = None, center: bool = True, normalized: bool = False,
    onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Parts:  # fmt: skip
    """A transposed convolution, by the sum of squared windows at each place."""
    if onesided is False or return_complex or input[0].dim() != 3:
        raise ValueError("complex sounds, all frequencies, or one sound without a batch")
    wide, cosines, sines = _filters(n_fft, window, win_length)
    hop, bins = hop_length or n_fft // 4, n_fft // 2 + 1
    twice = torch.full((bins, 1), 2.0)
    twice[0] = 1.0
    if n_fft % 2 == 0:
        twice[-1] = 1.0
    scale = (n_fft**0.5 if normalized else 1.0) / n_fft
    waves = torch.cat([cosines.mT * twice, -sines.mT * twice]) * (wide * scale)
    frames = torch.cat([input[0], input[1]], 1)
    made = F.conv_transpose1d(frames, waves.unsqueeze(1), stride=hop).squeeze(1)
    ones = torch.ones(1, 1, frames.shape[2])
    envelope = F.conv_transpose1d(ones, (wide * wide).reshape(1, 1, -1), stride=hop).reshape(-1)
    begin = n_fft // 2 if center else 0
    end = begin + length if length is not None else made.shape[1] - begin
    if end > made.shape[1]:
        raise ValueError(f"length={length}, which is more than the frames give")
    return made[:, begin:end] / envelope[begin:end], None


FUNCTIONS: dict[str, Callable[..., Parts]] = {
    "fft_fft": _axis(False),
    "fft_ifft": _axis(True),
    "fft_rfft": _axis(False, True),
    "fft_irfft": lambda input, n=None, dim=-1, norm=None: _to_real(input, n, dim, norm),
    "fft_fft2": _axes(False, False, (-2, -1)),
    "fft_ifft2": _axes(True, False, (-2, -1)),
    "fft_rfft2": _axes(False, True, (-2, -1)),
    "fft_irfft2": _axes(True, True, (-2, -1)),
    "fft_fftn": _axes(False, False, None),
    "fft_ifftn": _axes(True, False, None),
    "fft_rfftn": _axes(False, True, None),
    "fft_irfftn": _axes(True, True, None),
    "stft": _stft,
    "istft": _istft,
}
