"""The recurrence as operators of PyTorch: torch.ops.qdelta.recurrence and its backward.

    recurrence(q, k, v, g?, beta?, lamb?, initial_state?, cu_seqlens?, rule, scale, qk_l2norm, final_state, save)
        -> (o, final_state, chunk_states, saved)

The last two are what the backward needs besides, where `save` is set; outputs that are not asked for are empty. Their
extents depend on the shapes of the inputs alone, so that torch.compile can trace a call with cu_seqlens.
"""

from __future__ import annotations

import torch

from . import _call
from ._call import CHUNK, Tensor

_NAMESPACE = "qdelta"
_library = torch.library.Library(_NAMESPACE, "DEF")
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? lamb, Tensor? initial_state, Tensor? cu_seqlens"
)
_OPTIONS = "str rule, float scale, bool qk_l2norm"
_library.define(f"recurrence({_INPUTS}, {_OPTIONS}, bool final_state, bool save) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"recurrence_backward({_INPUTS}, Tensor? do, Tensor? dht, Tensor chunk_states, Tensor saved, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


class _Shapes:
    """Extents of a call. They may be symbols."""

    def __init__(self, q: Tensor, v: Tensor, cu_seqlens: Tensor | None):
        self.B, self.T, self.H, self.K = q.shape
        self.HV, self.V = v.shape[2], v.shape[3]
        self.N = self.B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        # Chunks of all sequences; with cu_seqlens at most so many.
        per_sequence = (self.T + CHUNK - 1) // CHUNK
        self.chunks = self.B * per_sequence if cu_seqlens is None else self.T // CHUNK + self.N

    @property
    def states(self):
        return (self.N, self.HV, self.K, self.V)


def _operands_are_bf16(q: Tensor, k: Tensor, v: Tensor, qk_l2norm: bool) -> bool:
    return qk_l2norm and q.dtype == k.dtype == v.dtype == torch.bfloat16


def _new_outputs(q, k, v, cu_seqlens, rule, qk_l2norm, final_state, save):
    at = _Shapes(q, v, cu_seqlens)
    o = torch.empty((at.B, at.T, at.HV, at.V), dtype=v.dtype, device=v.device)
    ht = torch.empty(at.states if final_state else (0,), dtype=torch.float32, device=v.device)
    if not save:
        nothing = torch.empty((0,), dtype=torch.float32, device=v.device)
        return o, ht, nothing, torch.empty((0,), dtype=torch.uint8, device=v.device)
    on_gpu = v.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu and _operands_are_bf16(q, k, v, qk_l2norm) else torch.float32
    chunk_states = torch.empty((at.chunks, at.HV, at.K, at.V), dtype=dtype, device=v.device)
    size = at.chunks * at.HV * _call.saved_bytes(v.device, _call.rule_number(rule)) if on_gpu else 0
    return o, ht, chunk_states, torch.empty((size,), dtype=torch.uint8, device=v.device)


def _no_decay(v: Tensor) -> Tensor:
    """g of rules without one: a zero that all tokens share."""
    return torch.zeros((), device=v.device).expand(v.shape[0], v.shape[1], v.shape[2])


def _chunk_count(offsets: Tensor) -> int:
    lengths = offsets[1:] - offsets[:-1]
    return int(((lengths + CHUNK - 1) // CHUNK).sum())


def _forward(q, k, v, g, beta, lamb, initial_state, cu_seqlens, rule, scale, qk_l2norm, final_state, save):
    number = _call.rule_number(rule)
    if g is None:
        g = _no_decay(v)
    q, k, v, initial_state = map(_call.rows_contiguous, (q, k, v, initial_state))
    if q.shape[1] == 1 and cu_seqlens is None and not save and q.shape[0] > 0:
        return _step(q, k, v, g, beta, lamb, initial_state, number, scale, qk_l2norm, final_state)
    offsets = _call.host_offsets(cu_seqlens)
    outputs = _new_outputs(q, k, v, cu_seqlens, rule, qk_l2norm, final_state, save)
    o, ht, chunk_states, saved = outputs
    states = None
    if save and offsets is not None:
        count = _chunk_count(offsets)
        states = chunk_states[:count]
        chunk_states[count:].zero_()  # no result may depend on what memory held before
    elif save:
        states = chunk_states
    inputs = (q, k, v, g, beta, lamb, initial_state, offsets)
    _call.forward(inputs, (o, ht if final_state else None, states), saved, number, scale, qk_l2norm)
    return outputs


def _step(q, k, v, g, beta, lamb, initial_state, number, scale, qk_l2norm, final_state):
    """A sequence of one token: in place on a copy of the states."""
    at = _Shapes(q, v, None)
    if initial_state is None:
        states = torch.zeros(at.states, dtype=torch.float32, device=v.device)
    else:
        states = initial_state.clone(memory_format=torch.contiguous_format)
    o = torch.empty((at.B, 1, at.HV, at.V), dtype=v.dtype, device=v.device)
    gates = [None if gate is None else gate[:, 0] for gate in (g, beta, lamb)]
    _call.step((q[:, 0], k[:, 0], v[:, 0], *gates, states, None, o[:, 0]), number, scale, qk_l2norm)
    nothing = torch.empty((0,), dtype=torch.float32, device=v.device)
    ht = states if final_state else torch.empty((0,), dtype=torch.float32, device=v.device)
    return o, ht, nothing, torch.empty((0,), dtype=torch.uint8, device=v.device)


def _new_gradients(q, k, v, g, beta, lamb, initial_state):
    """Of each input one of its own type; empty for those that are not given, but g, which the library always writes."""
    rest = [
        torch.empty((0,) if x is None else x.shape, dtype=torch.float32 if x is None else x.dtype, device=q.device)
        for x in (beta, lamb, initial_state)
    ]
    dg = torch.empty(v.shape[:3], dtype=torch.float32 if g is None else g.dtype, device=q.device)
    return (*[torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)], dg, *rest)


def _backward(
    q, k, v, g, beta, lamb, initial_state, cu_seqlens, do, dht, chunk_states, saved, rule, scale, qk_l2norm
):
    gradients = _new_gradients(q, k, v, g, beta, lamb, initial_state)
    if g is None:
        g = _no_decay(v)
    if do is None:
        do = torch.zeros_like(v)
    q, k, v, initial_state, do, dht = map(_call.rows_contiguous, (q, k, v, initial_state, do, dht))
    offsets = _call.host_offsets(cu_seqlens)
    states = chunk_states if offsets is None else chunk_states[: _chunk_count(offsets)]
    inputs = (q, k, v, g, beta, lamb, initial_state, offsets)
    d_in = tuple(
        None if given is None else gradient
        for given, gradient in zip((q, k, v, g, beta, lamb, initial_state), gradients, strict=True)
    )
    _call.backward(inputs, (do, dht, states), d_in, saved, _call.rule_number(rule), scale, qk_l2norm)
    return gradients


for _device in ("CPU", "CUDA"):
    _library.impl("recurrence", _forward, _device)
    _library.impl("recurrence_backward", _backward, _device)


@torch.library.register_fake(f"{_NAMESPACE}::recurrence", lib=_library)
def _(q, k, v, g, beta, lamb, initial_state, cu_seqlens, rule, scale, qk_l2norm, final_state, save):
    return _new_outputs(q, k, v, cu_seqlens, rule, qk_l2norm, final_state, save)


@torch.library.register_fake(f"{_NAMESPACE}::recurrence_backward", lib=_library)
def _(q, k, v, g, beta, lamb, initial_state, cu_seqlens, do, dht, chunk_states, saved, rule, scale, qk_l2norm):
    return _new_gradients(q, k, v, g, beta, lamb, initial_state)


def _keep(ctx, inputs, output):
    tensors, (rule, scale, qk_l2norm, final_state, save) = inputs[:8], inputs[8:]
    if not save:
        raise RuntimeError("a backward needs what the forward saves: call recurrence with save=True")
    ctx.save_for_backward(*tensors, output[2], output[3])
    ctx.options = (rule, scale, qk_l2norm)
    ctx.final_state = final_state
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dht, d_chunk_states, d_saved):
    *tensors, chunk_states, saved = ctx.saved_tensors
    if not ctx.final_state:
        dht = None
    found = torch.ops.qdelta.recurrence_backward(*tensors, do, dht, chunk_states, saved, *ctx.options)
    return (*_needed(ctx.needs_input_grad, tensors, found), None, None, None, None, None, None)


def _needed(needs_grad, given, found) -> list:
    """Of seven gradients those that are asked for."""
    return [
        gradient if needed and tensor is not None else None
        for needed, tensor, gradient in zip(needs_grad, given[:7], found, strict=False)
    ]


def _no_second_derivative(ctx, *gradients):
    raise NotImplementedError("qdelta has no second derivatives: the backward of the recurrence has no backward")


torch.library.register_autograd(
    f"{_NAMESPACE}::recurrence", _differentiate, setup_context=_keep, lib=_library
)
torch.library.register_autograd(f"{_NAMESPACE}::recurrence_backward", _no_second_derivative, lib=_library)



class QDeltaRecurrence(torch.autograd.Function):
    """The same without the dispatcher, which takes longer than a small kernel."""

    @staticmethod
    def forward(ctx, *inputs):
        outputs = _forward(*inputs)
        ctx.save_for_backward(*inputs[:8], outputs[2], outputs[3])
        ctx.options = inputs[8:11]
        ctx.final_state = inputs[11]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs[2], outputs[3])
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dht, d_chunk_states, d_saved):
        *tensors, chunk_states, saved = ctx.saved_tensors
        dht = dht if ctx.final_state else None
        found = _backward(*tensors, do, dht, chunk_states, saved, *ctx.options)
        return (*_needed(ctx.needs_input_grad, tensors, found), None, None, None, None, None, None)


def _is_plain(tensors) -> bool:
    """Whether nothing has to see the call but autograd: no tracing, no subclass of tensors, no mode, no transform."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_torch_function_mode_enabled():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(t is None or type(t) is Tensor or type(t) is torch.nn.Parameter for t in tensors)


def recurrence(*arguments):
    """The operator: directly where nobody looks, else through the dispatcher."""
    if not _is_plain(arguments[:8]):
        return torch.ops.qdelta.recurrence.default(*arguments)
    return QDeltaRecurrence.apply(*arguments) if arguments[12] else _forward(*arguments)
