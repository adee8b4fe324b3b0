"""The recurrence on plain tensors, past the dispatcher of PyTorch, which takes longer than a small kernel.

What a forward keeps for its backward, the states on entry to the chunks and on a GPU matrices of the chunks, is one piece of
memory here.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from . import _call
from ._arguments import check_arguments
from ._call import Geometry, Kept, Tensor


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_plain(tensors: tuple, cu_seqlens: Tensor | None) -> bool:
    """Whether nothing has to see the call but autograd: no tracing, no subclass of tensors, no mode, no transform, not even
    a tensor that a transform has left behind. Whatever is no tensor is not plain either."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_torch_function_mode_enabled():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if tensors[0] is None or tensors[1] is None or tensors[2] is None:
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if (type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter) or _is_wrapped(tensor):
            return False
    return cu_seqlens is None or type(cu_seqlens) is Tensor


def _needs_gradient(q, k, v, g, beta, lamb, initial_state) -> bool:
    return torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
        or (g is not None and g.requires_grad)
        or (beta is not None and beta.requires_grad)
        or (lamb is not None and lamb.requires_grad)
        or (initial_state is not None and initial_state.requires_grad)
    )  # fmt: skip


def recurrence(
    given: tuple, cu_seqlens: Tensor | None, rule: str, scale: float | None, qk_l2norm: bool, final_state: bool
) -> tuple:
    """o and the states on exit, or None. `given` are q, k, v, g, beta, lamb and initial_state."""
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    if geometry.strided_rows:
        given = tuple(map(_call.rows_contiguous, given))
        geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    options = (_call.rule_number(rule), geometry.scale if scale is None else scale, qk_l2norm)
    if _needs_gradient(*given):
        results = _record(*given, cu_seqlens, geometry, options, final_state)
        return results if final_state else (results, None)
    if geometry.is_one_token:
        return step(geometry, given, options, final_state)
    o, ht, _ = _forward(geometry, given, _call.host_offsets(cu_seqlens), options, final_state, save=False)
    return o, ht


def _new_states(geometry: Geometry) -> Tensor:
    return torch.empty(geometry.states, dtype=torch.float32, device=geometry.device)


def step(geometry: Geometry, given: tuple, options: tuple, final_state: bool) -> tuple[Tensor, Tensor | None]:
    """A sequence of one token: in place on a copy of the states."""
    before = given[6]
    if before is None:
        states = torch.zeros(geometry.states, dtype=torch.float32, device=geometry.device)
    else:
        states = before.clone(memory_format=torch.contiguous_format)
    o = torch.empty_like(given[2], memory_format=torch.contiguous_format)
    _call.step(geometry, given, states, o, *options)
    return o, states if final_state else None


def _forward(geometry: Geometry, given: tuple, offsets: Tensor | None, options: tuple, final_state: bool, save: bool):
    """o, the states on exit or None, and what is kept for the backward or None."""
    o = torch.empty_like(given[2], memory_format=torch.contiguous_format)
    ht = _new_states(geometry) if final_state else None
    if not save:
        _call.forward(geometry, given, offsets, o, ht, 0, 0, 0, *options)
        return o, ht, None
    kept = geometry.kept(options[0], options[2], offsets)
    memory = geometry.new_bytes(kept.states + kept.rest)
    _call.forward(geometry, given, offsets, o, ht, *_places(memory, kept), *options)
    return o, ht, memory


def _places(memory: Tensor, kept: Kept) -> tuple[int, int, int]:
    begin = memory.data_ptr()
    return begin, begin + kept.states if kept.rest else 0, kept.chunks


def _gradients(ctx, do: Tensor | None, dht: Tensor | None = None) -> tuple:
    *given, cu_seqlens, memory = ctx.saved_tensors
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    q, k, v, g, beta, lamb, initial_state = given
    if do is None:
        do = torch.zeros_like(v)
    if geometry.is_cuda:
        do, dht = _call.rows_contiguous(do), _call.rows_contiguous(dht)
    contiguous = torch.contiguous_format
    gradients = (
        torch.empty_like(q, memory_format=contiguous),
        torch.empty_like(k, memory_format=contiguous),
        torch.empty_like(v, memory_format=contiguous),
        # The library always writes this one.
        torch.empty(v.shape[:3], device=geometry.device) if g is None else torch.empty_like(g, memory_format=contiguous),
        None if beta is None else torch.empty_like(beta, memory_format=contiguous),
        None if lamb is None else torch.empty_like(lamb, memory_format=contiguous),
        None if initial_state is None else torch.empty_like(initial_state, memory_format=contiguous),
    )
    offsets = _call.host_offsets(cu_seqlens)
    kept = geometry.kept(ctx.options[0], ctx.options[2], offsets)
    _call.backward(geometry, tuple(given), offsets, do, dht, *_places(memory, kept), gradients, *ctx.options)
    needed = [d if wanted else None for wanted, d in zip(ctx.needs_input_grad, gradients, strict=False)]
    return (*needed, None, None, None, None)


_gradients_once = once_differentiable(_gradients)


class QDeltaRecurrence(torch.autograd.Function):
    """(o, states on exit), or o alone."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, lamb, initial_state, cu_seqlens, geometry, options, final_state):
        given = (q, k, v, g, beta, lamb, initial_state)
        o, ht, memory = _forward(geometry, given, _call.host_offsets(cu_seqlens), options, final_state, save=True)
        ctx.save_for_backward(q, k, v, g, beta, lamb, initial_state, cu_seqlens, memory)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return (o, ht) if final_state else o

    @staticmethod
    def backward(ctx, *gradients):
        # Gradients are recorded only where second derivatives may be asked for; then these must be refused.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, *gradients)


# QDeltaRecurrence.apply, without looking for transforms of functorch in Python: is_plain has.
_record = super(torch.autograd.Function, QDeltaRecurrence).apply
