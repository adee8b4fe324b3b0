"""The recurrence as operators of PyTorch: torch.ops.qdelta.recurrence and its backward.

    recurrence(q, k, v, g?, beta?, lamb?, initial_state?, cu_seqlens?, rule, scale, qk_l2norm, final_state, save)
        -> (o, final_state, chunk_states, saved)

The last two are what the backward needs besides, where `save` is set; outputs that are not asked for are empty. Their
extents depend on the shapes of the inputs alone, so that torch.compile can trace a call with cu_seqlens. Calls that nobody
traces go past the dispatcher: see _eager.py.
"""

from __future__ import annotations

import torch
from torch.compiler import is_compiling

from . import _call, _eager
from ._arguments import check_arguments
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


def _nothing(v: Tensor) -> tuple[Tensor, Tensor]:
    """chunk_states and saved where nothing is kept."""
    return v.new_empty((0,), dtype=torch.float32), v.new_empty((0,), dtype=torch.uint8)


def _new_outputs(q, k, v, cu_seqlens, rule, qk_l2norm, final_state, save):
    at = _Shapes(q, v, cu_seqlens)
    o = torch.empty((at.B, at.T, at.HV, at.V), dtype=v.dtype, device=v.device)
    ht = torch.empty(at.states if final_state else (0,), dtype=torch.float32, device=v.device)
    if not save:
        return o, ht, *_nothing(v)
    on_gpu = v.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu and _operands_are_bf16(q, k, v, qk_l2norm) else torch.float32
    chunk_states = torch.empty((at.chunks, at.HV, at.K, at.V), dtype=dtype, device=v.device)
    size = at.chunks * at.HV * _call.saved_bytes(v.device, _call.rule_number(rule), at.V) if on_gpu else 0
    return o, ht, chunk_states, torch.empty((size,), dtype=torch.uint8, device=v.device)


def _with_rows(tensors: tuple) -> tuple:
    """As the kernels of the device want them."""
    return tuple(map(_call.rows_contiguous, tensors)) if tensors[0].is_cuda else tensors


def _no_decay(v: Tensor) -> Tensor:
    """g of rules without one: a zero that all tokens share. Made at every call, because a compiler's graph may own the memory."""
    return torch.zeros((), dtype=torch.float32, device=v.device).expand(v.shape[:3])


def _forward(q, k, v, g, beta, lamb, initial_state, cu_seqlens, rule, scale, qk_l2norm, final_state, save):
    g = _no_decay(v) if g is None else g
    given = _with_rows((q, k, v, g, beta, lamb, initial_state))
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    options = (_call.rule_number(rule), scale, qk_l2norm)
    if geometry.is_one_token and not save:
        o, ht = _eager.step(geometry, given, options, final_state)
        return o, v.new_empty((0,), dtype=torch.float32) if ht is None else ht, *_nothing(v)
    outputs = _new_outputs(q, k, v, cu_seqlens, rule, qk_l2norm, final_state, save)
    o, ht, chunk_states, saved = outputs
    offsets = _call.host_offsets(cu_seqlens)
    count = chunk_states.shape[0]
    if save and offsets is not None:
        count = _call.chunk_count(offsets)
        chunk_states[count:].zero_()  # no result may depend on what memory held before
    kept = (chunk_states.data_ptr(), saved.data_ptr(), count) if save else (0, 0, 0)
    _call.forward(geometry, given, offsets, o, ht if final_state else None, *kept, *options)
    return outputs


def _new_gradients(q, k, v, g, beta, lamb, initial_state) -> tuple:
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
    g = _no_decay(v) if g is None else g
    do = torch.zeros_like(v) if do is None else do
    *given, do, dht = _with_rows((q, k, v, g, beta, lamb, initial_state, do, dht))
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    offsets = _call.host_offsets(cu_seqlens)
    count = chunk_states.shape[0] if offsets is None else _call.chunk_count(offsets)
    kept = (chunk_states.data_ptr(), saved.data_ptr(), count)
    filled = tuple(d if d.numel() > 0 or x is not None else None for x, d in zip(given, gradients, strict=True))
    _call.backward(geometry, given, offsets, do, dht, *kept, filled, _call.rule_number(rule), scale, qk_l2norm)
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
    ctx.saved = save  # PyTorch 2.4 comes here also where no input needs a gradient
    ctx.save_for_backward(*tensors, output[2], output[3])
    ctx.options = (rule, scale, qk_l2norm)
    ctx.final_state = final_state
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dht, d_chunk_states, d_saved):
    if not ctx.saved:
        raise RuntimeError("a backward needs what the forward saves: call recurrence with save=True")
    *tensors, chunk_states, saved = ctx.saved_tensors
    if not ctx.final_state:
        dht = None
    found = torch.ops.qdelta.recurrence_backward(*tensors, do, dht, chunk_states, saved, *ctx.options)
    needed = [
        gradient if wanted and tensor is not None else None
        for wanted, tensor, gradient in zip(ctx.needs_input_grad, tensors[:7], found, strict=False)
    ]
    return (*needed, None, None, None, None, None, None)


def _no_second_derivative(ctx, *gradients):
    raise NotImplementedError("qdelta has no second derivatives: the backward of the recurrence has no backward")


torch.library.register_autograd(
    f"{_NAMESPACE}::recurrence", _differentiate, setup_context=_keep, lib=_library
)
torch.library.register_autograd(f"{_NAMESPACE}::recurrence_backward", _no_second_derivative, lib=_library)


def needs_gradient(given: tuple) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)


def recurrence(
    given: tuple, cu_seqlens: Tensor | None, rule: str, scale: float | None, qk_l2norm: bool, final_state: bool
) -> tuple:
    """o and the states on exit, or None, through the dispatcher."""
    if scale is None:
        scale = given[0].shape[-1] ** -0.5
    save = needs_gradient(given)
    arguments = (*given, cu_seqlens, rule, scale, qk_l2norm, final_state, save)
    in_a_transform = not is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
    o, ht, _, _ = _transformed(arguments) if in_a_transform else torch.ops.qdelta.recurrence.default(*arguments)
    return o, ht if final_state else None


def _transformed(arguments: tuple) -> tuple:
    """Inside torch.func's transforms. vmap makes calls one by one; PyTorch has no others for an operator registered in this way."""
    try:
        return torch.ops.qdelta.recurrence.default(*arguments)
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
    raise NotImplementedError(
        "torch.func's grad, vjp and jacrev are not supported: take derivatives with torch.autograd.grad or backward()"
    )
