"""A packed network as an `nn.Module`, so that it runs inside an unpacked one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xnorpp.runtime import load
from xnorpp.runtime.format.program import Program, encode, read


class PackedModule(nn.Module):
    """Runs a packed program where a trained module was, on the CPU and in evaluation only.

    It has no parameters: the program is its state, which `state_dict`, `pickle`, `torch.save` and `deepcopy`
    carry. A tensor of another device or floating-point type is converted and the output converted back. No
    gradient passes through it.

    Args:
        program: What to run; one input, one output.
        threads: How many threads one call may use; by default the work decides.

    Example:
        >>> from torch import nn
        >>> from xnorpp.packing import PackedModule, pack_program
        >>> backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> packed = PackedModule(pack_program(backbone, (3, 32, 32)))
        >>> net = nn.Sequential(packed, nn.FractionalMaxPool2d(2, 3))
    """

    def __init__(self, program: Program, threads: int | None = None) -> None:
        super().__init__()
        self.program = program
        self.threads = threads
        self._model: Callable[[npt.NDArray[np.float32]], Any] | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("a PackedModule runs in evaluation only; call .eval() on the network first")
        if self._model is None:
            self._model = load(self.program, threads=self.threads)
        shape = tuple(self.program.input_shape)
        if tuple(x.shape[1:]) != shape:
            raise ValueError(
                f"the input of a PackedModule has shape {tuple(x.shape)}; it was packed for "
                f"(n, {', '.join(map(str, shape))})"
            )
        given = x.detach().to("cpu", torch.float32).numpy()
        result = torch.from_numpy(np.asarray(self._model(given)))
        return result.to(x.device, x.dtype if x.is_floating_point() else None)

    def get_extra_state(self) -> Tensor:
        """The packed file's bytes, as part of a `state_dict`."""
        return torch.frombuffer(bytearray(encode(self.program)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self.program = read(state.numpy().tobytes())
        self._model = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    def extra_repr(self) -> str:
        sizes = " x ".join(map(str, self.program.input_shape))
        size = sum(tensor.nbytes for tensor in self.program.tensors.values())
        return f"input {sizes}, {len(self.program.ops)} operations, {size:,} bytes"
