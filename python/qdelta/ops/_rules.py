"""The rules with the signatures and defaults of flash-linear-attention.

All tensors are [B, T, H, ...], q and k with H heads of width K, v with HV heads of width V (HV a multiple of H: value head h
reads query and key head h / (HV / H)). Values and gates are float32 or bfloat16, states float32. With `cu_seqlens` B is 1 and
the sequences are packed along T. Each returns the outputs [B, T, HV, V], of the type of v, and the states on exit
[N, HV, K, V], or None where output_final_state is False.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

from . import _eager, _registered
from ._arguments import check, check_arguments, check_kind, check_operand
from ._help import explained

Tensor = torch.Tensor
# Of float32, in which C takes a scale; there 0 stands for the default.
_SMALLEST, _LARGEST = 2.0**-149, torch.finfo(torch.float32).max


def _refuse(kwargs: dict, ignored: tuple[str, ...] = ("chunk_size", "chunk_indices")) -> None:
    if "head_first" in kwargs:
        raise TypeError("head_first is not supported: tensors are [B, T, H, ...]; transpose axes 1 and 2")
    if kwargs.get("cp_context") is not None:
        raise NotImplementedError("cp_context: qdelta has no context parallelism")
    unknown = [name for name in kwargs if name not in (*ignored, "cp_context")]
    if unknown:
        raise TypeError(f"{unknown[0]} is no argument of this function")


def _cast_for_autocast(given: tuple, cu_seqlens: Tensor | None, kind: str) -> tuple:
    dtype = torch.get_autocast_dtype(kind)
    if dtype != torch.bfloat16:
        raise TypeError(f"autocast is to {dtype}; qdelta has kernels for torch.bfloat16 and torch.float32")
    q, k, v, *rest = given
    if q.dtype == k.dtype == v.dtype == dtype:
        return given
    check_arguments(*given, cu_seqlens)  # a type that is refused elsewhere is not cast either
    return q.to(dtype), k.to(dtype), v.to(dtype), *rest


@explained
def recurrence(
    rule: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    lamb: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Any rule: linear, retnet, mamba2, longhorn, delta, gated_delta or q_delta. Missing gates are those of a rule that
    does not read them; a missing g is no decay."""
    if state_v_first and initial_state is not None:
        check_kind("initial_state", initial_state)
        initial_state = initial_state.transpose(-1, -2)
    if scale is not None:
        if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
            raise TypeError("scale needs a gradient, but is taken as a number: multiply the outputs by it instead")
        try:
            scale = float(scale)
        except (TypeError, ValueError):
            raise TypeError(f"scale is {scale!r}, expected a number") from None
        if not _SMALLEST <= abs(scale) <= _LARGEST:
            raise ValueError(f"scale is {scale:g}, expected a number that is neither 0 nor infinite in float32")
    given = (q, k, v, g, beta, lamb, initial_state)
    offsets = cu_seqlens if cu_seqlens_cpu is None else _offsets_on_the_cpu(cu_seqlens, cu_seqlens_cpu)
    options = (scale, bool(use_qk_l2norm_in_kernel), bool(output_final_state))
    like = None if is_compiling() else _eager.like_the_last(rule, q, k, v, g, beta, lamb, initial_state, offsets)
    if like is None:
        o, ht = _looked_up(given, offsets, rule, *options)
    else:
        o, ht = _eager.run(like, given, offsets, *options)
    return o, ht.transpose(-1, -2) if state_v_first and output_final_state else ht


def _offsets_on_the_cpu(cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor) -> Tensor:
    check_kind("cu_seqlens_cpu", cu_seqlens_cpu)
    if cu_seqlens is None:
        raise ValueError("cu_seqlens_cpu is the copy of cu_seqlens, which is missing")
    check_kind("cu_seqlens", cu_seqlens)
    if cu_seqlens_cpu.device.type != "cpu":
        raise ValueError(f"cu_seqlens_cpu is on {cu_seqlens_cpu.device}, expected it on the CPU")
    if cu_seqlens_cpu.shape != cu_seqlens.shape:
        raise ValueError(f"cu_seqlens_cpu has shape {list(cu_seqlens_cpu.shape)}, cu_seqlens {list(cu_seqlens.shape)}")
    return cu_seqlens_cpu


# Gates that a rule cannot do without.
_NEEDED = {rule: ("beta",) for rule in ("mamba2", "longhorn", "delta", "gated_delta")} | {"q_delta": ("beta", "lamb")}


def _looked_up(given: tuple, offsets: Tensor | None, rule: str, scale: float | None, qk_l2norm: bool, final_state: bool) -> tuple:
    """A call of which nothing is known yet."""
    for name in _NEEDED.get(rule, ()):
        if given[4 if name == "beta" else 5] is None:
            raise ValueError(f"{name} is missing: rule {rule} needs it, [B, T, HV]")
    plain = _eager.is_plain(given, offsets)
    if not plain:
        check_arguments(*given, offsets)
    kind = "cuda" if given[0].is_cuda else "cpu"
    if torch.is_autocast_enabled(kind):
        given = _cast_for_autocast(given, offsets, kind)
    initial_state = given[6]
    if initial_state is not None and initial_state.dtype == torch.bfloat16:
        given = (*given[:6], initial_state.float())
    run = _eager.recurrence if plain else _registered.recurrence
    return run(given, offsets, rule, scale, qk_l2norm, final_state)


# Q-Delta ---------------------------------------------------------------------------------------------------------------


@explained
def chunk_q_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Q-Delta: S <- exp(g) S; r = beta (v - (k + lamb q)^T S); S <- S + k r^T; o = scale q^T S."""
    if kwargs:
        _refuse(kwargs)
    return recurrence(
        "q_delta", q, k, v, g, beta, lamb, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        cu_seqlens, cu_seqlens_cpu,
    )  # fmt: skip


fused_recurrent_q_delta_rule = chunk_q_delta_rule
chunk_qdelta_rule = chunk_q_delta_rule  # the published name
fused_recurrent_qdelta_rule = chunk_q_delta_rule


# Gated DeltaNet --------------------------------------------------------------------------------------------------------


def _gated_delta_rule(
    q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log,
    dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, cu_seqlens_cpu,
):  # fmt: skip
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("allow_neg_eigval=True requires use_beta_sigmoid_in_kernel=True")
    if use_gate_in_kernel:
        if A_log is None or g is None:
            raise ValueError("use_gate_in_kernel=True needs g and A_log")
        check_operand("v", v)
        check("g", g, v, tuple(v.shape[:3]), "[B, T, HV]")
        for name, parameter in (("A_log", A_log), ("dt_bias", dt_bias)):
            check(name, parameter, v, (v.shape[2],), "[HV]")
        raw = g.float() if dt_bias is None else g.float() + dt_bias.float()
        g = -A_log.float().exp() * F.softplus(raw)
    if beta is None:
        check_operand("v", v)
        beta = v.new_ones(()).expand(v.shape[:3])
    elif use_beta_sigmoid_in_kernel:
        check_kind("beta", beta)
        beta = beta.float().sigmoid() * (2 if allow_neg_eigval else 1)
    return recurrence(
        "gated_delta", q, k, v, g, beta, None, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        cu_seqlens, cu_seqlens_cpu, state_v_first,
    )  # fmt: skip


@explained
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context=None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet: S <- exp(g) S; r = beta (v - k^T S); S <- S + k r^T; o = scale q^T S."""
    if kwargs or cp_context is not None:
        _refuse({**kwargs, "cp_context": cp_context})
    return _gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, cu_seqlens_cpu,
    )  # fmt: skip


@explained
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """As chunk_gated_delta_rule."""
    if kwargs:
        _refuse(kwargs)
    if gk is not None or gv is not None:
        raise NotImplementedError("gk and gv: qdelta has one decay for each head, g")
    return _gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, None,
    )  # fmt: skip


# DeltaNet and Longhorn -------------------------------------------------------------------------------------------------


def _beta_of_heads(beta: Tensor | None, v: Tensor) -> Tensor:
    if beta is None:
        check_operand("v", v)
        return v.new_ones(()).expand(v.shape[:3])
    if isinstance(beta, Tensor) and beta.dim() == 4:
        raise NotImplementedError("beta is [B, T, H, V]: qdelta has one beta for each head, [B, T, HV]")
    return beta


@explained
def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet: r = beta (v - k^T S); S <- S + k r^T; o = scale q^T S."""
    if kwargs:
        _refuse(kwargs)
    return recurrence(
        "delta", q, k, v, None, _beta_of_heads(beta, v), None, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, cu_seqlens_cpu,
    )  # fmt: skip


@explained
def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As chunk_delta_rule; without beta it is 1."""
    return chunk_delta_rule(
        q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens
    )


@explained
def chunk_longhorn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Longhorn: the delta rule with beta / (1 + beta k.k) in the place of beta."""
    if kwargs:
        _refuse(kwargs)
    return recurrence(
        "longhorn", q, k, v, None, _beta_of_heads(beta, v), None, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens, cu_seqlens_cpu,
    )  # fmt: skip


fused_recurrent_longhorn = chunk_longhorn


# Without erasing: linear attention, RetNet, Mamba2 ---------------------------------------------------------------------


def _decay(g: Tensor | None, g_gamma: Tensor | None, v: Tensor) -> Tensor | None:
    if g is not None and g_gamma is not None:
        raise ValueError("g and g_gamma exclude each other")
    if g_gamma is None:
        return g
    check_operand("v", v)
    check("g_gamma", g_gamma, v, (v.shape[2],), "[HV]")
    return g_gamma.float().expand(v.shape[:3])


@explained
def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with a decay for each head: S <- exp(g) S + k v^T; o = scale q^T S. RetNet with g_gamma, Mamba2 with g
    and v times dt."""
    if kwargs:
        _refuse(kwargs)
    return recurrence(
        "retnet", q, k, v, _decay(g, g_gamma, v), None, None, scale, initial_state, output_final_state, False,
        cu_seqlens, cu_seqlens_cpu, state_v_first,
    )  # fmt: skip


@explained
def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """As chunk_simple_gla."""
    if reverse:
        raise NotImplementedError("reverse: qdelta reads sequences from the front")
    return chunk_simple_gla(
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens, **kwargs
    )


@explained
def fused_chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As chunk_simple_gla."""
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens)


def _sequence_starts(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """For every token the sequence that it belongs to."""
    positions = torch.arange(tokens, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), positions, right=True)


def _normalized(o, q, k, scale, z_before, cu_seqlens):
    """o / (scale q.z), z the sum of all keys so far; and z on exit, [N, 1, H, K]."""
    # Of packed sequences differences of such sums are wanted, which would leave little of float32.
    sums = F.pad((k.float() if cu_seqlens is None else k.double()).cumsum(1), (0, 0, 0, 0, 1, 0))  # [:, t]: of the keys before t
    if cu_seqlens is None:
        if z_before is not None:
            sums = sums + z_before
        z, z_after = sums[:, 1:], sums[:, -1:]
    else:
        cu_seqlens = cu_seqlens.to(k.device)
        starts = sums[0, cu_seqlens[:-1]].unsqueeze(1)  # [N, 1, H, K]
        before = -starts if z_before is None else z_before - starts
        z_after = (sums[0, cu_seqlens[1:]].unsqueeze(1) + before).float()
        z = (sums[:, 1:] + before[_sequence_starts(cu_seqlens, k.shape[1])].squeeze(1).unsqueeze(0)).float()
    weight = (q.float() * scale * z).sum(-1, keepdim=True) + 1e-10
    groups = o.shape[2] // q.shape[2]
    if groups > 1:
        weight = weight.repeat_interleave(groups, 2)
    return (o / weight).to(o.dtype), z_after


def _state_and_keys(initial_state, normalize: bool) -> tuple:
    """What a normalized linear attention goes on from: the states, and the sums of the keys."""
    if not isinstance(initial_state, tuple):
        return initial_state, None
    if not normalize:
        raise ValueError("initial_state is a pair, which only normalize=True takes")
    if len(initial_state) != 2:
        raise ValueError(f"initial_state has {len(initial_state)} parts, expected two: the states and z [N, 1, H, K]")
    return initial_state


@explained
def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
    **kwargs,
):
    """Linear attention: S <- S + k v^T; o = scale q^T S."""
    if kwargs:
        _refuse(kwargs)
    states, z_before = _state_and_keys(initial_state, normalize)
    o, ht = recurrence("linear", q, k, v, None, None, None, scale, states, output_final_state, False, cu_seqlens)
    if not normalize:
        return o, ht
    N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    check("initial_state[1]", z_before, q, (N, 1, *q.shape[2:]), "[N, 1, H, K]")
    scale = k.shape[-1] ** -0.5 if scale is None else float(scale)
    o, z_after = _normalized(o, q, k, scale, z_before, cu_seqlens)
    return o, (ht, z_after)


@explained
def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
):
    """As chunk_linear_attn, but it does not normalize unless told to."""
    if reverse:
        raise NotImplementedError("reverse: qdelta reads sequences from the front")
    return chunk_linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def _retention_decay(v: Tensor) -> Tensor:
    """log(1 - 2^(-5 - h))"""
    check_operand("v", v)
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(v.shape[2], dtype=torch.float32, device=v.device)))


@explained
def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """RetNet: a fixed decay 1 - 2^(-5 - h) for head h."""
    return chunk_simple_gla(
        q, k, v, None, _retention_decay(v), scale, initial_state, output_final_state,
        cu_seqlens=cu_seqlens, **kwargs,
    )  # fmt: skip


@explained
def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """As chunk_retention."""
    return fused_recurrent_simple_gla(
        q, k, v, None, _retention_decay(v), scale, initial_state, output_final_state, reverse,
        state_v_first, cu_seqlens, **kwargs,
    )  # fmt: skip
