"""One step of a recurrent layer: `nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _lstm_cell(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
    state, memory = hx
    put, leave, new, show = (F.linear(input, w_ih, b_ih) + F.linear(state, w_hh, b_hh)).chunk(4, 1)
    memory = leave.sigmoid() * memory + put.sigmoid() * new.tanh()
    return show.sigmoid() * memory.tanh(), memory


def _gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Tensor:
    reset_in, stay_in, new_in = F.linear(input, w_ih, b_ih).chunk(3, 1)
    reset_past, stay_past, new_past = F.linear(hx, w_hh, b_hh).chunk(3, 1)
    new = torch.tanh(new_in + (reset_in + reset_past).sigmoid() * new_past)
    return new + (stay_in + stay_past).sigmoid() * (hx - new)


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
    ) -> Tensor:
        return activation(F.linear(input, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))

    return cell


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": _rnn_cell(torch.tanh),
    "rnn_relu_cell": _rnn_cell(torch.relu),
}
