"""Mamba as a token mixer: a diagonal state of N numbers for each channel. Per token, channel d and state n:

    delta = softplus(dt_proj(low) + dt_bias),   A = -exp(A_log)
    h[n] <- exp(delta A[n]) h[n] + delta B[n] x
    y    <- (sum_n C[n] h[n] + D x) silu(z)

The scan is a loop over the tokens in PyTorch: for checkpoints and short sequences. The engine has the fast one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ._parts import (
    ShortConvolution,
    check_extents,
    check_hidden,
    check_no_state,
    check_offset_values,
    check_offsets,
    check_state,
    is_loaded,
    positions_in_sequences,
)

Tensor = torch.Tensor


class Mamba(nn.Module):
    """A state is a dictionary that `forward` reads and updates; an empty one starts."""

    def __init__(
        self,
        hidden_size: int = 1024,
        expand: float = 2,
        state_size: int = 16,
        dt_rank: int | None = None,
        conv_size: int = 4,
        layer_idx: int | None = None,
    ):
        super().__init__()
        self.hidden_size, self.layer_idx, self.state_size = hidden_size, layer_idx, state_size
        self.inner = round(hidden_size * expand)
        self.dt_rank = dt_rank or math.ceil(hidden_size / 16)
        check_extents(hidden_size=hidden_size, state_size=state_size, dt_rank=self.dt_rank, conv_size=conv_size)
        if self.inner < 1:
            raise ValueError(f"expand is {expand}, which leaves no channels of hidden_size {hidden_size}")
        self.in_proj = nn.Linear(hidden_size, 2 * self.inner, bias=False)
        self.conv1d = ShortConvolution(self.inner, conv_size, bias=True)
        self.x_proj = nn.Linear(self.inner, self.dt_rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.inner)
        self.A_log = nn.Parameter(torch.zeros(self.inner, state_size))
        self.D = nn.Parameter(torch.zeros(self.inner))
        self.out_proj = nn.Linear(self.inner, hidden_size, bias=False)
        self.reset_scan()

    def reset_scan(self) -> None:
        """Initial values that are no plain normal distribution."""
        with torch.no_grad():
            if not is_loaded(self.A_log):
                self.A_log.copy_(torch.arange(1, self.state_size + 1.0, device=self.A_log.device).log().expand_as(self.A_log))
            if not is_loaded(self.D):
                self.D.fill_(1)

    def forward(
        self,
        hidden: Tensor,
        state: dict | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As in the other mixers."""
        check_hidden(hidden, self.hidden_size, mask)
        if cu_seqlens is not None:
            check_offsets(cu_seqlens, hidden)
            check_offset_values(cu_seqlens, hidden.shape[1])
            check_no_state(state)
        if state is not None:
            extents = {"conv": (self.conv1d.size - 1, self.inner), "h": (self.inner, self.state_size)}
            check_state(state, hidden.shape[0], extents)
        x, z = self.in_proj(hidden).chunk(2, -1)
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        x, after = self.conv1d(x, None if state is None else state.get("conv"), cu_seqlens)
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        if state is not None:
            state["conv"] = after
        low, B, C = self.x_proj(x).split([self.dt_rank, self.state_size, self.state_size], -1)
        delta = F.softplus(self.dt_proj(low).float())
        starts = None
        if cu_seqlens is not None:
            starts = positions_in_sequences(cu_seqlens.to(x.device), x.shape[1]) == 0
        y, h = self._scan(x.float(), delta, B.float(), C.float(), None if state is None else state.get("h"), starts)
        if state is not None:
            state["h"] = h
        return self.out_proj(((y + self.D.float() * x.float()) * F.silu(z.float())).to(hidden.dtype))

    def _scan(self, x, delta, B, C, h, starts):
        decay = torch.exp(delta[..., None] * -self.A_log.float().exp())  # [batch, T, inner, N]
        write = (delta * x)[..., None] * B[:, :, None]
        if starts is not None:
            decay = decay * ~starts[None, :, None, None]
        if h is None:
            h = write.new_zeros(write.shape[0], *write.shape[2:])
        if x.shape[1] == 0:
            return x, h
        outputs = []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + write[:, t]
            outputs.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
        return torch.stack(outputs, 1), h
