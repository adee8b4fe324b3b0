"""What the token mixers are made of: norms and the short convolution."""

from __future__ import annotations

from numbers import Integral

import torch
import torch.nn.functional as F
from torch import nn

from ..ops._arguments import check_kind
from ..ops._call import host_offsets

Tensor = torch.Tensor


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) . weight, in float32."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float()).to(x.dtype)


def is_loaded(parameter: Tensor) -> bool:
    """Whether transformers has read it from a folder, and asks for initial values of what is missing beside it."""
    return getattr(parameter, "_is_hf_initialized", False)


def check_extents(**extents: int) -> None:
    for name, value in extents.items():
        if not isinstance(value, Integral):
            raise TypeError(f"{name} is {value!r}, expected a whole number")
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")


def check_hidden(hidden: Tensor, width: int, mask: Tensor | None) -> None:
    check_kind("hidden", hidden)
    if hidden.dim() != 3 or hidden.shape[2] != width:
        raise ValueError(f"hidden has shape {list(hidden.shape)}, expected [B, T, hidden_size] with hidden_size {width}")
    if mask is None:
        return
    check_kind("mask", mask)
    if mask.shape != hidden.shape[:2]:
        raise ValueError(f"mask has shape {list(mask.shape)}, expected [B, T] = {list(hidden.shape[:2])}")


def check_state(state: dict, rows: int, extents: dict[str, tuple]) -> None:
    """`extents` of one row of all tensors that a state of the layer has. An empty one starts."""
    if not isinstance(state, dict):
        raise TypeError(f"state is {type(state).__name__}, expected a dictionary, which may be empty")
    for name, tensor in state.items():
        if name not in extents:
            raise ValueError(f"state has {name!r}: it is that of another layer; here there are {', '.join(extents)}")
        if tensor is not None and tensor.shape != (rows, *extents[name]):
            raise ValueError(f"state[{name!r}] has shape {list(tensor.shape)}, expected {[rows, *extents[name]]}")


def check_offsets(cu_seqlens: Tensor, hidden: Tensor) -> None:
    """Before anything is computed with them. Whether they fit the tokens the recurrence checks."""
    check_kind("cu_seqlens", cu_seqlens)
    if hidden.shape[0] != 1:
        raise ValueError(f"with cu_seqlens the sequences are packed into one row, but there are {hidden.shape[0]}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, expected N + 1 integers")
    if cu_seqlens.device not in (hidden.device, torch.device("cpu")):
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}, expected it on the CPU or on {hidden.device}")


def check_no_state(state: dict | None) -> None:
    """The convolutions have none of packed sequences, and what goes on from a part of one would be wrong."""
    if state is not None:
        raise ValueError("state is given beside cu_seqlens: packed sequences start from nothing, and leave no state")


def check_offset_values(cu_seqlens: Tensor, tokens: int) -> None:
    """As the recurrence does, for mixers that have none."""
    if torch.compiler.is_compiling():
        return
    values = host_offsets(cu_seqlens).tolist()
    if values[0] != 0 or values[-1] != tokens or values != sorted(values):
        raise ValueError(f"cu_seqlens goes from {values[0]} to {values[-1]}, expected 0 to {tokens} without decreasing")


def positions_in_sequences(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """For each packed token how many of its sequence come before it."""
    positions = torch.arange(tokens, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), positions, right=True)
    return positions - cu_seqlens[sequence]


class ShortConvolution(nn.Conv1d):
    """A causal convolution over `size` tokens of each channel, then silu. x is [B, T, channels]; the state is the last
    size - 1 inputs [B, size - 1, channels]."""

    def __init__(self, channels: int, size: int, bias: bool = False):
        super().__init__(channels, channels, size, groups=channels, bias=bias)
        self.size = size

    def forward(self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None):
        """The output, and the state after it; with cu_seqlens neither is one taken nor left."""
        if cu_seqlens is not None:
            return self._packed(x, cu_seqlens), None
        if state is None:
            state = x.new_zeros(x.shape[0], self.size - 1, x.shape[2])
        if x.shape[1] == 0:
            return x, state
        padded = torch.cat([state.to(x.dtype), x], 1)
        y = F.conv1d(padded.transpose(1, 2), self.weight, self.bias, groups=self.groups).transpose(1, 2)
        return F.silu(y), padded[:, padded.shape[1] - (self.size - 1) :]

    def _packed(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        tokens = x.shape[1]
        position = positions_in_sequences(cu_seqlens.to(x.device), tokens)[None, :, None]
        weight = self.weight[:, 0]  # [channels, size]
        y = x * weight[:, -1]
        for back in range(1, self.size):
            shifted = F.pad(x, (0, 0, back, 0))[:, :tokens]
            y = y + torch.where(position >= back, shifted, 0) * weight[:, -1 - back]
        return F.silu(y if self.bias is None else y + self.bias)
