"""The recurrence on plain tensors, past the dispatcher of PyTorch, which takes longer than a small kernel.

What a forward keeps for its backward, the states on entry to the chunks and on a GPU matrices of the chunks, is one piece of
memory here.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from . import _call
from ._arguments import check_arguments, is_dense
from ._call import Geometry, Kept, Tensor


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_batch = torch._C._functorch.is_legacy_batchedtensor  # of gradients; torch.func's own transforms are refused before
_is_grad_enabled = torch.is_grad_enabled
_is_function_mode_enabled = torch._C._is_torch_function_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing  # by torch.jit.trace, which sees no more than what goes through the dispatcher


def is_plain(tensors: tuple, cu_seqlens: Tensor | None) -> bool:
    """Whether nothing has to see the call but autograd: no tracing, no subclass of tensors, no mode, no transform, not even
    a tensor that a transform has left behind. Whatever is no dense tensor, or has its values elsewhere, is not plain either."""
    if torch.compiler.is_compiling() or _dispatch_modes() > 0 or _is_function_mode_enabled() or _is_traced():
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
        if not is_dense(tensor) or not _is_in_memory(tensor):
            return False
    return cu_seqlens is None or (type(cu_seqlens) is Tensor and is_dense(cu_seqlens))


def _is_in_memory(tensor: Tensor) -> bool:
    """PyTorch keeps some tensors as the negative of what memory holds, as the imaginary part of a conjugate, and zeros without any."""
    return not tensor.is_neg() and not tensor._is_zerotensor()


def _in_memory(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or _is_in_memory(tensor) else tensor.clone()


def _needs_gradient(q, k, v, g, beta, lamb, initial_state) -> bool:
    return _is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
        or (g is not None and g.requires_grad)
        or (beta is not None and beta.requires_grad)
        or (lamb is not None and lamb.requires_grad)
        or (initial_state is not None and initial_state.requires_grad)
    )  # fmt: skip


# Inputs like those of the call before -----------------------------------------------------------------------------------


def _is_unlike(*tensors) -> bool:
    return False


class Last:
    """The last inputs of a rule's calls. `is_like` says of others whether they are like these in everything but their values: in
    all that is_plain looks for, that may be wrong with arguments, and that makes a Geometry. Never changed, for threads share it."""

    __slots__ = ("autocast", "geometry", "is_like", "needs_gradient", "rule")

    def __init__(self, rule: int, geometry: Geometry | None, needs_gradient: bool, autocast: str | None, is_like=_is_unlike):
        self.rule = rule
        self.geometry = geometry
        self.needs_gradient = needs_gradient
        self.autocast = autocast  # of which kind of device, where it was on
        self.is_like = is_like


# In the places of g, beta, lamb, initial_state and cu_seqlens where they are not given.
_NONE = _NO_G, _NO_BETA, _NO_LAMB, _NO_STATE, _NO_OFFSETS = [torch.empty((), device="cpu") for _ in range(5)]


def _guard(given: tuple, cu_seqlens: Tensor | None):
    """What torch.compile asks before it runs compiled code: the same classes, dispatch keys (and so devices, modes, transforms,
    autocast), types, extents, strides and need of gradients, of all tensors in one call. It is PyTorch's own: where it has changed
    we do without."""
    rest = zip((*given[3:], cu_seqlens), _NONE, strict=True)
    tensors = [*given[:3], *[none if tensor is None else tensor for tensor, none in rest]]
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        return torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    except (AttributeError, TypeError, RuntimeError):
        return _is_unlike


# Of every rule; where gradients may be recorded, and where not.
_last_recorded, _last_plain = (
    {rule: Last(number, None, False, None) for number, rule in enumerate(_call.RULES)} for _ in range(2)
)


def _refuse_tangents(tensors: tuple) -> None:
    """PyTorch would drop them without a word."""
    for name, tensor in zip(("q", "k", "v", "g", "beta", "lamb", "initial_state"), tensors, strict=True):
        if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name} has a tangent: qdelta has no forward-mode derivatives, only a backward")


def like_the_last(rule: str, q, k, v, g, beta, lamb, initial_state, cu_seqlens) -> Last | None:
    """The last call of this rule, if it had inputs like these. Not for torch.compile to trace."""
    if forward_ad._current_level >= 0:
        _refuse_tangents((q, k, v, g, beta, lamb, initial_state))
    try:
        last = (_last_recorded if _is_grad_enabled() else _last_plain)[rule]
    except (KeyError, TypeError):
        raise _call.no_rule(rule) from None
    g = _NO_G if g is None else g
    beta = _NO_BETA if beta is None else beta
    lamb = _NO_LAMB if lamb is None else lamb
    initial_state = _NO_STATE if initial_state is None else initial_state
    cu_seqlens = _NO_OFFSETS if cu_seqlens is None else cu_seqlens
    try:
        if (  # PyTorch's guard ends the process where a nested tensor has no extents
            q.is_nested or k.is_nested or v.is_nested or g.is_nested or beta.is_nested or lamb.is_nested
            or initial_state.is_nested or cu_seqlens.is_nested
        ):  # fmt: skip
            return None
    except AttributeError:  # no tensor
        return None
    if not last.is_like(q, k, v, g, beta, lamb, initial_state, cu_seqlens) or _is_function_mode_enabled() or _is_traced():
        return None
    if _dispatch_modes() > 0:  # PyTorch's guard looks past those of selective checkpointing
        return None
    if last.autocast is not None and torch.get_autocast_dtype(last.autocast) != torch.bfloat16:
        return None
    return last


def _remember(rule: str, given: tuple, cu_seqlens: Tensor | None, geometry: Geometry) -> Last:
    """Learns inputs that come twice running: where extents differ from call to call it would be in vain."""
    of_rules = _last_recorded if _is_grad_enabled() else _last_plain
    before = of_rules[rule]
    come_twice = before.geometry is geometry and before.is_like is _is_unlike
    kind = "cuda" if geometry.is_cuda else "cpu"
    autocast = kind if torch.is_autocast_enabled(kind) else None
    is_like = _guard(given, cu_seqlens) if come_twice else _is_unlike
    last = of_rules[rule] = Last(before.rule, geometry, _needs_gradient(*given), autocast, is_like)
    return last


# The recurrence ---------------------------------------------------------------------------------------------------------


def recurrence(
    given: tuple, cu_seqlens: Tensor | None, rule: str, scale: float | None, qk_l2norm: bool, final_state: bool
) -> tuple:
    """o and the states on exit, or None. `given` are q, k, v, g, beta, lamb and initial_state."""
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    if geometry.strided_rows:
        given = tuple(map(_call.rows_contiguous, given))
        geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    return run(_remember(rule, given, cu_seqlens, geometry), given, cu_seqlens, scale, qk_l2norm, final_state)


def run(
    like: Last, given: tuple, cu_seqlens: Tensor | None, scale: float | None, qk_l2norm: bool, final_state: bool
) -> tuple:
    geometry = like.geometry
    options = (like.rule, geometry.scale if scale is None else scale, qk_l2norm)
    if like.needs_gradient:
        results = _record(*given, (geometry, cu_seqlens, options, final_state))
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


def _gradients(ctx, saved: tuple, do: Tensor | None, dht: Tensor | None = None) -> tuple:
    q, k, v, g, beta, lamb, initial_state, cu_seqlens, memory = saved
    given = (q, k, v, g, beta, lamb, initial_state)
    # They may come back otherwise than they went: a hook may have kept them in another place.
    geometry = _call.geometry_of(*given, cu_seqlens, check_arguments)
    offsets = _call.host_offsets(cu_seqlens)
    kept = geometry.kept(ctx.options[0], ctx.options[2], offsets)
    if (do is not None and _is_batch(do)) or (dht is not None and _is_batch(dht)):
        return *_gradients_of_many(ctx, saved, geometry, kept, do, dht), None
    do, dht = torch.zeros_like(v) if do is None else _in_memory(do), _in_memory(dht)
    if geometry.is_cuda:
        do, dht = _call.rows_contiguous(do), _call.rows_contiguous(dht)
    contiguous = torch.contiguous_format
    gradients = (
        torch.empty_like(q, memory_format=contiguous),
        torch.empty_like(k, memory_format=contiguous),
        torch.empty_like(v, memory_format=contiguous),
        # The library always writes this one.
        torch.empty(v.shape[:3], dtype=torch.float32, device=geometry.device)
        if g is None
        else torch.empty_like(g, memory_format=contiguous),
        None if beta is None else torch.empty_like(beta, memory_format=contiguous),
        None if lamb is None else torch.empty_like(lamb, memory_format=contiguous),
        None if initial_state is None else torch.empty_like(initial_state, memory_format=contiguous),
    )
    _call.backward(geometry, given, offsets, do, dht, *_places(memory, kept), gradients, *ctx.options)
    needed = [d if wanted else None for wanted, d in zip(ctx.needs_input_grad, gradients, strict=False)]
    return (*needed, None)


def _gradients_of_many(
    ctx, saved: tuple, geometry: Geometry, kept: Kept, do: Tensor | None, dht: Tensor | None
) -> list:
    """Of several do at once, as is_grads_batched and vectorized Jacobians have them: one by one, through the dispatcher."""
    *tensors, memory = saved
    rule, scale, qk_l2norm = ctx.options
    dtype = geometry.states_dtype(qk_l2norm)
    used = kept.chunks * geometry.HV * geometry.K * geometry.V * dtype.itemsize  # the bytes behind are there for alignment
    states = memory[:used].view(dtype).view(kept.chunks, geometry.HV, geometry.K, geometry.V)
    rest = memory[kept.states : kept.states + kept.rest]
    options = (_call.RULES[rule], scale, qk_l2norm)
    found = torch.ops.qdelta.recurrence_backward(*tensors, do, dht, states, rest, *options)
    return [d if wanted else None for wanted, d in zip(ctx.needs_input_grad, found, strict=False)]


class _Once(torch.autograd.Function):
    """Gradients that have none themselves. PyTorch's once_differentiable refuses only where those of the results have some,
    and would leave out the others silently: a penalty on the gradient of a sum, say. `depends_on` are tensors that they are
    computed from: PyTorch takes the derivatives in others to be zero without asking."""

    @staticmethod
    def forward(ctx, gradients, has_gradient, *depends_on):
        return gradients

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError("qdelta has no second derivatives: the backward of the recurrence has no backward")


def _gradients_once(ctx, saved: tuple, *given) -> tuple:
    with torch.no_grad():
        gradients = _gradients(ctx, saved, *given)
    return _Once.apply(gradients, torch.empty(0, requires_grad=True), *saved[:7], *given)


class QDeltaRecurrence(torch.autograd.Function):
    """(o, states on exit), or o alone."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, lamb, initial_state, call):
        # What is no tensor to differentiate is one argument: PyTorch looks at each.
        geometry, cu_seqlens, options, final_state = call
        given = (q, k, v, g, beta, lamb, initial_state)
        o, ht, memory = _forward(geometry, given, _call.host_offsets(cu_seqlens), options, final_state, save=True)
        ctx.save_for_backward(q, k, v, g, beta, lamb, initial_state, cu_seqlens, memory)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return (o, ht) if final_state else o

    @staticmethod
    def backward(ctx, *gradients):
        # Gradients are recorded only where second derivatives may be asked for; then these must be refused.
        # What was saved is asked for once: gradient checkpointing gives it no second time.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, ctx.saved_tensors, *gradients)


# QDeltaRecurrence.apply, without looking for transforms of functorch in Python: is_plain has.
_record = super(torch.autograd.Function, QDeltaRecurrence).apply
