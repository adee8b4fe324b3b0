"""Inputs of the recurrence and the recurrence itself, token by token in float64, as a reference for every rule."""

from __future__ import annotations

import torch

RULES = ("linear", "retnet", "mamba2", "longhorn", "delta", "gated_delta", "q_delta")
HAS_DECAY = ("retnet", "mamba2", "gated_delta", "q_delta")
HAS_BETA = ("mamba2", "longhorn", "delta", "gated_delta", "q_delta")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def gates_of(rule: str, inputs: dict) -> dict:
    """Of the gates those that the rule reads."""
    return {
        "g": inputs["g"] if rule in HAS_DECAY else None,
        "beta": inputs["beta"] if rule in HAS_BETA else None,
        "lamb": inputs["lamb"] if rule == "q_delta" else None,
    }


def make_inputs(device="cpu", dtype=torch.float32, B=2, T=100, H=2, HV=4, K=24, V=40, N=None, seed=0) -> dict:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random).to(device, dtype)

    def uniform(low, high):
        return (low + (high - low) * torch.rand(B, T, HV, generator=random)).to(device)

    states = torch.randn(N or B, HV, K, V, generator=random).to(device)
    return {
        "q": normal(B, T, H, K),
        "k": normal(B, T, H, K),
        "v": normal(B, T, HV, V),
        "g": uniform(-0.2, 0),
        "beta": uniform(0, 1),
        "lamb": uniform(0, 1),
        "initial_state": states,
    }


def reference(rule, q, k, v, g=None, beta=None, lamb=None, initial_state=None, scale=None, l2norm=True, offsets=None):
    """o and the states on exit, in float64; differentiable."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = v.shape[2] // q.shape[2]
    if l2norm:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(groups, 2) for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    B, T, H, K = q.shape
    if offsets is not None:
        parts = []
        for n, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            cut = lambda x: None if x is None else x[:, begin:end]  # noqa: B023, E731
            h0 = None if initial_state is None else initial_state[n : n + 1]
            parts.append(_scan(rule, *map(cut, (q, k, v, g, beta, lamb)), h0, scale))
        return torch.cat([o for o, _ in parts], 1), torch.cat([h for _, h in parts], 0)
    return _scan(rule, q, k, v, g, beta, lamb, initial_state, scale)


def _scan(rule, q, k, v, g, beta, lamb, initial_state, scale):
    B, T, H, K = q.shape
    S = torch.zeros(B, H, K, v.shape[-1], dtype=torch.float64, device=q.device)
    if initial_state is not None:
        S = initial_state.double()
    out = []
    for t in range(T):
        qt, kt, vt = q[:, t], k[:, t], v[:, t]
        if g is not None:
            S = S * g[:, t].double().exp()[..., None, None]
        write = torch.ones_like(vt[..., 0]) if beta is None else beta[:, t].double()
        if rule == "longhorn":
            write = write / (1 + write * kt.square().sum(-1))
        erase = write if rule in ("longhorn", "delta", "gated_delta", "q_delta") else torch.zeros_like(write)
        x = kt if rule != "q_delta" else kt + lamb[:, t].double()[..., None] * qt
        r = write[..., None] * vt - erase[..., None] * torch.einsum("bhk,bhkv->bhv", x, S)
        S = S + kt[..., None] * r[..., None, :]
        out.append(scale * torch.einsum("bhk,bhkv->bhv", qt, S))
    o = torch.stack(out, 1) if out else v.new_zeros(v.shape)
    return o, S


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


# To which projection of a gate its other parameters belong.
_PROJECTION = {"lamb_bias": "lamb_proj", "dt_bias": "a_proj", "A_log": "a_proj"}


def gradient_errors(got: dict, expected: dict) -> dict[str, float]:
    """`relative` of gradients of a model's parameters, by projection. A bias is the weight of one input more, which is always 1,
    and is compared in one vector with the weights beside it: alone it may be a single number, a sum over tokens that cancels to
    anything, while its rounding scales with the terms. A_log is the same for the size of a gate."""
    groups: dict[str, list[str]] = {}
    for name in got:
        owner, _, last = name.rpartition(".")
        weight = f"{owner}.{_PROJECTION[last]}.weight" if last in _PROJECTION else f"{owner}.weight"
        groups.setdefault(weight if weight in got else name, []).append(name)
    together = lambda gradients, names: torch.cat([gradients[name].flatten() for name in names])
    return {group: relative(together(got, names), together(expected, names)) for group, names in groups.items()}
