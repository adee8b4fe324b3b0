"""Token mixers around the recurrence, h the input of a token:

    q, k, v = silu(conv(q_proj(h))), ...         causal, per channel
    g, beta, lamb                                from projections of h, or fixed, as the rule says
    o   = recurrence(q, k, v, g, beta, lamb)     over L2-normalised q and k
    out = o_proj( norm(o) . a(g_proj(h)) )       an RMS norm per head; a is silu, or sigmoid

Names and initial values of parameters are those of the native engine and of the published models.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..ops import recurrence
from ._parts import (
    RMSNorm,
    ShortConvolution,
    check_extents,
    check_hidden,
    check_no_state,
    check_offsets,
    check_state,
    is_loaded,
)

Tensor = torch.Tensor
_GATES = {"swish": F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}


class RecurrentMixer(nn.Module):
    """Any rule of the recurrence. A state is a dictionary that `forward` reads and updates; an empty one starts."""

    rule: ClassVar[str] = ""
    learns_decay: ClassVar[bool] = False  # g = -exp(A_log) softplus(a_proj(h) + dt_bias)
    learns_beta: ClassVar[bool] = False  # beta = sigmoid(b_proj(h))
    reads_lamb: ClassVar[bool] = False  # lamb = sigmoid(lamb_proj(h) + lamb_bias)
    beta_is_step: ClassVar[bool] = False  # Mamba2: beta = softplus(a_proj(h) + dt_bias)

    def __init__(
        self,
        hidden_size: int = 1024,
        num_heads: int = 6,
        head_dim: int = 128,
        num_v_heads: int | None = None,
        expand_v: float = 2,
        conv_size: int = 4,
        use_short_conv: bool = True,
        use_gate: bool = True,
        output_gate_activation: str = "swish",
        use_decay: bool = True,
        allow_neg_eigval: bool = False,
        lamb_bias: float | None = None,
        initial_lamb_bias: float = 0.8,
        fixed_lambda: float | None = None,
        norm_eps: float = 1e-6,
        layer_idx: int | None = None,
    ):
        super().__init__()
        check_extents(hidden_size=hidden_size, num_heads=num_heads, head_dim=head_dim, conv_size=conv_size)
        self.hidden_size, self.num_heads, self.head_dim, self.layer_idx = hidden_size, num_heads, head_dim, layer_idx
        self.num_v_heads = num_v_heads or num_heads
        check_extents(num_v_heads=self.num_v_heads)
        if self.num_v_heads % num_heads != 0:
            raise ValueError(f"num_v_heads is {self.num_v_heads}, not a multiple of num_heads, {num_heads}")
        self.value_dim = round(head_dim * expand_v)
        if abs(head_dim * expand_v - self.value_dim) > 1e-9 or self.value_dim <= 0:
            raise ValueError(f"head_dim {head_dim} times expand_v {expand_v} is no whole number")
        if output_gate_activation not in _GATES:
            raise ValueError(f"output_gate_activation is {output_gate_activation!r}; there are {', '.join(_GATES)}")
        self.gate = _GATES[output_gate_activation]
        self.factor = 2 if allow_neg_eigval else 1
        self.fixed_lambda = fixed_lambda
        self.constant_lamb_bias = None if lamb_bias is None else -lamb_bias
        self.initial_lamb_bias = initial_lamb_bias
        key_width, value_width = num_heads * head_dim, self.num_v_heads * self.value_dim
        project = lambda width: nn.Linear(hidden_size, width, bias=False)  # noqa: E731
        self.q_proj, self.k_proj, self.v_proj = project(key_width), project(key_width), project(value_width)
        self.g_proj = project(value_width) if use_gate else None
        self.decays = self.learns_decay and use_decay
        if self.beta_is_step and not use_decay:
            raise ValueError(f"use_decay: {self.rule} needs its decay")
        if self.decays:
            self.a_proj = project(self.num_v_heads)
            self.A_log = nn.Parameter(torch.zeros(self.num_v_heads))
            self.dt_bias = nn.Parameter(torch.zeros(self.num_v_heads))
        if self.learns_beta:
            self.b_proj = project(self.num_v_heads)
        if self.reads_lamb and fixed_lambda is None:
            self.lamb_proj = project(self.num_v_heads)
            if lamb_bias is None:
                self.lamb_bias = nn.Parameter(torch.zeros(1))
        convolution = lambda width: ShortConvolution(width, conv_size) if use_short_conv else None  # noqa: E731
        self.q_conv1d, self.k_conv1d = convolution(key_width), convolution(key_width)
        self.v_conv1d = convolution(value_width)
        convolved = {"q": key_width, "k": key_width, "v": value_width} if use_short_conv else {}
        self._state_extents = {name: (conv_size - 1, width) for name, width in convolved.items()}
        self._state_extents["recurrent"] = (self.num_v_heads, head_dim, self.value_dim)
        self.o_norm = RMSNorm(self.value_dim, norm_eps)
        self.o_proj = nn.Linear(value_width, hidden_size, bias=False)
        self.reset_gates()

    def reset_gates(self) -> None:
        """Initial values that are no plain normal distribution."""
        with torch.no_grad():
            if self.decays and not is_loaded(self.A_log):
                self.A_log.copy_(torch.empty_like(self.A_log).uniform_(1e-4, 16).log())
            if self.decays and not is_loaded(self.dt_bias):
                step = torch.exp(torch.rand_like(self.dt_bias) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
                step = step.clamp(min=1e-4)
                self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
            if "lamb_bias" in self._parameters and not is_loaded(self.lamb_bias):
                self.lamb_bias.fill_(-self.initial_lamb_bias)

    def _fixed_log_decay(self, device) -> Tensor | None:
        """[num_v_heads], of a rule whose decay is not learned; None: no decay."""
        return None

    def _gates(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        shape = (*hidden.shape[:2], self.num_v_heads)
        g = beta = lamb = None
        if self.decays:
            step = F.softplus(self.a_proj(hidden).float() + self.dt_bias.float())
            g = -self.A_log.float().exp() * step
            if self.beta_is_step:
                beta = step
        else:
            fixed = self._fixed_log_decay(hidden.device)
            g = None if fixed is None else fixed.expand(shape)
        if self.learns_beta:
            beta = self.b_proj(hidden).float().sigmoid() * self.factor
        if self.reads_lamb:
            if self.fixed_lambda is not None:
                lamb = torch.full((), float(self.fixed_lambda), dtype=torch.float32, device=hidden.device).expand(shape)
            else:
                bias = self.lamb_bias if self.constant_lamb_bias is None else self.constant_lamb_bias
                lamb = (self.lamb_proj(hidden).float() + bias).sigmoid() * self.factor
        return g, beta, lamb

    def _convolved(self, name: str, x: Tensor, state: dict | None, cu_seqlens: Tensor | None) -> Tensor:
        convolution = getattr(self, f"{name}_conv1d")
        if convolution is None:
            return F.silu(x)
        y, after = convolution(x, None if state is None else state.get(name), cu_seqlens)
        if state is not None:
            state[name] = after
        return y

    def forward(
        self,
        hidden: Tensor,
        state: dict | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """hidden is [B, T, hidden_size]; mask [B, T] is 0 where a sequence is padded on the left."""
        check_hidden(hidden, self.hidden_size, mask)
        if cu_seqlens is not None:
            check_offsets(cu_seqlens, hidden)
            if self.q_conv1d is not None:
                check_no_state(state)
        if state is not None:
            check_state(state, hidden.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, self._state_extents)
        if mask is not None:
            hidden = hidden * mask[..., None].to(hidden.dtype)
        B, T, _ = hidden.shape
        q, k, v = (
            self._convolved(name, getattr(self, f"{name}_proj")(hidden), state, cu_seqlens) for name in ("q", "k", "v")
        )
        o, after = recurrence(
            self.rule,
            q.view(B, T, self.num_heads, self.head_dim),
            k.view(B, T, self.num_heads, self.head_dim),
            v.view(B, T, self.num_v_heads, self.value_dim),
            *self._gates(hidden),
            initial_state=None if state is None else state.get("recurrent"),
            output_final_state=state is not None,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=cu_seqlens,
        )
        if state is not None:
            state["recurrent"] = after
        o = self.o_norm(o)
        if self.g_proj is not None:
            o = o * self.gate(self.g_proj(hidden)).view(o.shape)
        return self.o_proj(o.reshape(B, T, self.num_v_heads * self.value_dim))


class QDeltaNet(RecurrentMixer):
    """Q-Delta: the state is corrected by the error of a mixed key-query prediction."""

    rule = "q_delta"
    learns_decay = learns_beta = reads_lamb = True


class GatedDeltaNet(RecurrentMixer):
    """Gated DeltaNet."""

    rule = "gated_delta"
    learns_decay = learns_beta = True


class DeltaNet(RecurrentMixer):
    """DeltaNet."""

    rule = "delta"
    learns_beta = True


class Longhorn(RecurrentMixer):
    """Longhorn: the delta rule with beta / (1 + beta k.k)."""

    rule = "longhorn"
    learns_beta = True


class Mamba2Rule(RecurrentMixer):
    """Mamba2's recurrence in the same block: decay and write from one step."""

    rule = "mamba2"
    learns_decay = beta_is_step = True


class RetNet(RecurrentMixer):
    """RetNet's fixed decay, 1 - 2^(-5 - h) for head h."""

    rule = "retnet"

    def _fixed_log_decay(self, device) -> Tensor:
        heads = torch.arange(self.num_v_heads, dtype=torch.float32, device=device)
        return torch.log1p(-torch.exp2(-5.0 - heads))


class LinearAttention(RecurrentMixer):
    """Linear attention, not normalized."""

    rule = "linear"


MIXERS = {mixer.rule: mixer for mixer in (QDeltaNet, GatedDeltaNet, DeltaNet, Longhorn, Mamba2Rule, RetNet, LinearAttention)}
