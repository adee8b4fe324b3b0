"""Calls of the recurrence in libqdelta on PyTorch's tensors, where they lie.

To describe fifteen tensors to C takes longer than a small kernel runs. So the inputs' geometry (shapes, strides, types, device)
is looked up once in a call: one that was seen before has been found right, and keeps plans, the structs of earlier calls. A call
takes an idle plan, stores the addresses, and lays it back; so that threads may call at once.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_int64, c_uint64, pointer, sizeof
from typing import NamedTuple

import torch

from .. import _library
from .._library import CPU, CUDA, RULES, DLDataType, DLDevice, DLTensor, check, library

CHUNK = 64  # tokens of a chunk
_AUTO = 3
_TYPES = {
    torch.float32: DLDataType(2, 32, 1),
    torch.bfloat16: DLDataType(4, 16, 1),
    torch.int32: DLDataType(0, 32, 1),
    torch.int64: DLDataType(0, 64, 1),
}
_WORDS = sizeof(DLTensor) // 8
_ALIGNMENT = 256
_MOST_GEOMETRIES = 512  # then all are made anew

Tensor = torch.Tensor


_RULE_NUMBERS = {rule: number for number, rule in enumerate(RULES)}


def rule_number(rule: str) -> int:
    try:
        return _RULE_NUMBERS[rule]
    except (KeyError, TypeError):
        raise no_rule(rule) from None


def no_rule(rule) -> ValueError:
    return ValueError(f"rule is {rule!r}, expected one of {', '.join(RULES)}")


# Plans ---------------------------------------------------------------------------------------------------------------


class Plan:
    """One call's structs for C, whose addresses are filled in at every call. `described` has name, shape, strides (None:
    contiguous) and type of each tensor, or None where there is none, in the order of the fields of `structs`."""

    __slots__ = ("_kept", "_words", "chunks", "options", "references", "shapes", "workspace")

    def __init__(self, described: list[tuple | None], structs: tuple, options: _library.Options):
        memory = bytearray(len(described) * sizeof(DLTensor))
        tensors = (DLTensor * len(described)).from_buffer(memory)
        self._words = memoryview(memory).cast("Q")
        self.shapes: list = []
        for at, about in enumerate(described):
            self.shapes.append(None)
            if about is None:
                continue
            name, shape, strides, dtype = about
            extents = self.shapes[at] = (c_int64 * len(shape))(*shape)
            steps = None if strides is None else (c_int64 * len(strides))(*strides)
            device = DLDevice(CPU, 0) if name == "cu_seqlens" else options.device
            tensors[at] = DLTensor(None, device, len(shape), _TYPES[dtype], extents, steps, 0)
        arguments, begin = [], 0
        for struct in structs:
            end = begin + len(struct._fields_)
            places = range(begin, end)
            arguments.append(struct(*[None if described[at] is None else pointer(tensors[at]) for at in places]))
            begin = end
        self.options = options
        self.references = [byref(options), *[byref(struct) for struct in arguments]]
        self.workspace: int | None = None  # bytes, once they are known
        self.chunks = -1  # whose states and matrices are kept
        self._kept = (tensors, arguments)

    def place(self, at: int, address: int) -> None:
        self._words[at * _WORDS] = address

    def bind(self, tensors: tuple[Tensor | None, ...], at: int = 0) -> None:
        """Addresses of consecutive tensors, from the one at `at` on."""
        words, word = self._words, at * _WORDS
        for tensor in tensors:
            if tensor is not None:
                words[word] = tensor.data_ptr()
            word += _WORDS

    def run(self, geometry: Geometry, function, query=None) -> None:
        """Queues the call. Scratch memory is asked for with `query`, once where it depends on the geometry alone."""
        options = self.options
        if geometry.is_cuda:
            options.stream = torch._C._cuda_getCurrentRawStream(geometry.index)
        memory = None
        if query is not None:
            if self.workspace is None or geometry.packed:
                size = c_uint64()
                check(query(*self.references, byref(size)))
                self.workspace = size.value
            if self.workspace:
                memory = geometry.new_bytes(self.workspace)
                options.workspace = memory.data_ptr()
                options.workspace_size = self.workspace
        status = function(*self.references)
        if status:
            check(status)
        del memory  # on a GPU its bytes are handed out again in the order of the stream


class Kept(NamedTuple):
    """What a forward keeps for its backward: how many chunks, bytes of their states and of the rest."""

    chunks: int
    states: int
    rest: int


class Geometry:
    """Of the inputs of calls that were found right, and the idle plans of such calls."""

    __slots__ = ("B", "HV", "K", "N", "T", "V", "_idle", "_kept", "device", "index", "inputs", "is_cuda", "is_one_token",
                 "new_bytes", "operands_are_bf16", "packed", "scale", "strided_rows")  # fmt: skip

    def __init__(self, q, k, v, g, beta, lamb, initial_state, cu_seqlens):
        self.device = q.device
        self.is_cuda = q.is_cuda
        self.index = self.device.index if self.is_cuda else 0
        self.B, self.T, _, self.K = q.shape
        self.HV, self.V = v.shape[2], v.shape[3]
        self.packed = cu_seqlens is not None
        self.N = cu_seqlens.shape[0] - 1 if self.packed else self.B
        self.is_one_token = self.T == 1 and self.B > 0 and not self.packed
        self.scale = self.K**-0.5  # unless another one is given
        self.operands_are_bf16 = q.dtype == k.dtype == v.dtype == torch.bfloat16
        given = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "lamb": lamb, "initial_state": initial_state}
        self.inputs = [None if t is None else (n, t.shape, t.stride(), t.dtype) for n, t in given.items()]
        if g is None:  # a zero that all tokens share
            self.inputs[3] = ("g", (self.B, self.T, self.HV), (0, 0, 0), torch.float32)
        self.inputs.append(("cu_seqlens", cu_seqlens.shape, None, cu_seqlens.dtype) if self.packed else None)
        # Kernels of the GPU want rows without gaps.
        self.strided_rows = self.is_cuda and any(
            t is not None and t.numel() > 0 and t.stride(-1) != 1 for t in (q, k, v, initial_state)
        )
        self.new_bytes = torch.empty(0, dtype=torch.uint8, device=self.device).new_empty
        self._idle: dict = {}
        self._kept: dict = {}

    @property
    def states(self) -> tuple[int, int, int, int]:
        return (self.N, self.HV, self.K, self.V)

    def states_dtype(self, qk_l2norm: bool) -> torch.dtype:
        """Of the states that a forward keeps for its backward."""
        return torch.bfloat16 if self.is_cuda and qk_l2norm and self.operands_are_bf16 else torch.float32

    def kept(self, rule: int, qk_l2norm: bool, offsets: Tensor | None) -> Kept:
        key = (rule, qk_l2norm)
        kept = self._kept.get(key)
        if kept is None:  # of packed sequences it depends on the offsets
            chunks = self.B * ((self.T + CHUNK - 1) // CHUNK) if offsets is None else chunk_count(offsets)
            states = chunks * self.HV * self.K * self.V * self.states_dtype(qk_l2norm).itemsize
            states += -states % _ALIGNMENT
            kept = Kept(chunks, states, chunks * self.HV * saved_bytes(self.device, rule, self.V))
            if offsets is None:
                self._kept[key] = kept
        return kept

    def idle(self, key) -> list[Plan]:
        """Plans of this kind of call that nobody uses. To take one and to lay it back needs no lock."""
        plans = self._idle.get(key)
        return self._idle.setdefault(key, []) if plans is None else plans

    def new_options(self, rule: int, scale: float, qk_l2norm: bool, threads: int) -> _library.Options:
        options = _library.new_options()
        options.rule = rule
        options.form = _AUTO
        options.scale = scale
        options.qk_l2norm = int(qk_l2norm)
        options.threads = threads
        options.device = DLDevice(CUDA, self.index) if self.is_cuda else DLDevice(CPU, 0)
        return options


_geometries: dict[tuple, Geometry] = {}


def geometry_of(q, k, v, g, beta, lamb, initial_state, cu_seqlens, find_faults) -> Geometry:
    """`find_faults` is called with these arguments where their geometry was not seen before, and raises."""
    key = (
        q.device, q.shape, q.stride(), q.dtype, k.shape, k.stride(), k.dtype, k.device, v.shape, v.stride(), v.dtype, v.device,
        g if g is None else (g.shape, g.stride(), g.dtype, g.device),
        beta if beta is None else (beta.shape, beta.stride(), beta.dtype, beta.device),
        lamb if lamb is None else (lamb.shape, lamb.stride(), lamb.dtype, lamb.device),
        initial_state if initial_state is None
        else (initial_state.shape, initial_state.stride(), initial_state.dtype, initial_state.device),
        cu_seqlens if cu_seqlens is None else (cu_seqlens.shape, cu_seqlens.dtype),
    )  # fmt: skip
    geometry = _geometries.get(key)
    if geometry is None:
        find_faults(q, k, v, g, beta, lamb, initial_state, cu_seqlens)
        if len(_geometries) >= _MOST_GEOMETRIES:
            _geometries.clear()
        geometry = _geometries[key] = Geometry(q, k, v, g, beta, lamb, initial_state, cu_seqlens)
    return geometry


def rows_contiguous(tensor: Tensor | None) -> Tensor | None:
    """As the kernels of the GPU want it."""
    if tensor is None or tensor.dim() < 4 or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


# Offsets of packed sequences, and decays that are not given ----------------------------------------------------------


_fetched: tuple = (None, -1, None)  # a reference to the last cu_seqlens of a GPU, its version, and its copy


def host_offsets(cu_seqlens: Tensor | None) -> Tensor | None:
    """cu_seqlens in the memory of the CPU. The last one that came from a GPU is kept: layers share it, and to fetch it makes
    the CPU wait."""
    global _fetched
    if cu_seqlens is None:
        return None
    if cu_seqlens.is_cpu:
        return cu_seqlens.contiguous()
    if not cu_seqlens.is_cuda:
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}, expected it on the CPU or with the other tensors")
    if cu_seqlens.is_inference():  # which does not say whether it has been changed since
        return cu_seqlens.cpu().contiguous()
    of, version, host = _fetched
    if of is None or of() is not cu_seqlens or version != cu_seqlens._version:
        host = cu_seqlens.cpu().contiguous()
        _fetched = (weakref.ref(cu_seqlens), cu_seqlens._version, host)
    return host


def chunk_count(offsets: Tensor) -> int:
    values = offsets.tolist()
    return sum((end - begin + CHUNK - 1) // CHUNK for begin, end in zip(values[:-1], values[1:], strict=True))


_zeros: dict[torch.device, Tensor] = {}


def zero_on(device: torch.device) -> Tensor:
    """A zero in the device's memory, which stays there."""
    zero = _zeros.get(device)
    if zero is None:
        zero = torch.zeros((), dtype=torch.float32, device=device)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return zero  # the graph's own
            torch.cuda.current_stream(device).synchronize()  # other streams may read it next
        _zeros[device] = zero
    return zero


# The three calls -----------------------------------------------------------------------------------------------------


def _threads(geometry: Geometry) -> int:
    return 0 if geometry.is_cuda else torch.get_num_threads()


def _place_zero(plan: Plan, geometry: Geometry) -> Tensor:
    """In the place of g. Returns what must live until the call is queued."""
    zero = zero_on(geometry.device)
    plan.place(3, zero.data_ptr())
    return zero


def forward(
    geometry: Geometry, tensors: tuple, offsets: Tensor | None, o: Tensor, ht: Tensor | None, states: int, saved: int, count: int,
    rule: int, scale: float, qk_l2norm: bool,
) -> None:  # fmt: skip
    """`tensors` are the seven of Geometry. `states` and `saved` are addresses of memory for what a backward needs of `count`
    chunks, 0 where nothing is kept."""
    threads = _threads(geometry)
    plans = geometry.idle(("forward", rule, scale, qk_l2norm, ht is None, states == 0, threads))
    if plans:
        plan = plans.pop()
    else:
        described = [
            *geometry.inputs,
            ("o", o.shape, None, o.dtype),
            None if ht is None else ("final_state", ht.shape, None, ht.dtype),
            None if states == 0 else ("chunk_states", (count, *geometry.states[1:]), None, geometry.states_dtype(qk_l2norm)),
        ]
        options = geometry.new_options(rule, scale, qk_l2norm, threads)
        plan = Plan(described, (_library.Inputs, _library.Outputs), options)
    plan.bind((*tensors, offsets, o, ht))
    zero = _place_zero(plan, geometry) if tensors[3] is None else None
    if states:
        _place_saved(plan, geometry, states, saved, count, rule)
    plan.run(geometry, library.qdelta_forward, library.qdelta_forward_workspace)
    del zero
    plans.append(plan)


def _place_saved(plan: Plan, geometry: Geometry, states: int, saved: int, count: int, rule: int) -> None:
    plan.place(10, states)
    if saved:
        plan.options.saved = saved
    if plan.chunks != count:
        plan.chunks = plan.shapes[10][0] = count
        plan.options.saved_size = count * geometry.HV * saved_bytes(geometry.device, rule, geometry.V)


def backward(
    geometry: Geometry, tensors: tuple, offsets: Tensor | None, do: Tensor, dht: Tensor | None, states: int, saved: int, count: int,
    gradients: tuple, rule: int, scale: float, qk_l2norm: bool,
) -> None:  # fmt: skip
    """`gradients` of the seven tensors, contiguous and of their types; None for those that are not given, but g."""
    threads = _threads(geometry)
    about_dht = None if dht is None else ("dht", dht.shape, dht.stride(), dht.dtype)
    plans = geometry.idle(("backward", rule, scale, qk_l2norm, do.stride(), do.dtype, about_dht, threads))
    if plans:
        plan = plans.pop()
    else:
        described = [
            *geometry.inputs,
            ("do", do.shape, do.stride(), do.dtype),
            about_dht,
            ("chunk_states", (count, *geometry.states[1:]), None, geometry.states_dtype(qk_l2norm)),
            *[None if x is None else ("d", x.shape, None, x.dtype) for x in gradients],
        ]
        options = geometry.new_options(rule, scale, qk_l2norm, threads)
        plan = Plan(described, (_library.Inputs, _library.OutputGradients, _library.InputGradients), options)
    plan.bind((*tensors, offsets, do, dht))
    zero = _place_zero(plan, geometry) if tensors[3] is None else None
    _place_saved(plan, geometry, states, saved, count, rule)
    plan.bind(gradients, 11)
    plan.run(geometry, library.qdelta_backward, library.qdelta_backward_workspace)
    del zero
    plans.append(plan)


def step(geometry: Geometry, tensors: tuple, states: Tensor, o: Tensor, rule: int, scale: float, qk_l2norm: bool) -> None:
    """Sequences of one token, in place on `states`."""
    threads = _threads(geometry)
    plans = geometry.idle(("step", rule, scale, qk_l2norm, threads))
    if plans:
        plan = plans.pop()
    else:
        without_time = [
            None if about is None else (about[0], (about[1][0], *about[1][2:]), (about[2][0], *about[2][2:]), about[3])
            for about in geometry.inputs[:6]
        ]
        described = [
            *without_time,
            ("states", states.shape, None, states.dtype),
            None,
            ("o", (o.shape[0], *o.shape[2:]), None, o.dtype),
        ]
        plan = Plan(described, (_library.StepArguments,), geometry.new_options(rule, scale, qk_l2norm, threads))
    plan.bind((*tensors[:6], states, None, o))
    zero = _place_zero(plan, geometry) if tensors[3] is None else None
    plan.run(geometry, library.qdelta_step)
    del zero
    plans.append(plan)


_saved_bytes: dict = {}


def saved_bytes(device: torch.device, rule: int, value_dim: int) -> int:
    """What a forward saves for its backward beside the chunk states, in bytes for every chunk and value head."""
    if device.type == "cpu":
        return 0
    value_dim = int(value_dim)  # where shapes are symbols this one is taken to be what it is: it is no length
    key = (rule, value_dim)
    if key not in _saved_bytes:
        # Tensors of one chunk and head whose memory nobody looks at: also where PyTorch only traces.
        where = DLDevice(CUDA, device.index or 0)

        def described(*shape: int) -> DLTensor:
            extents = (c_int64 * len(shape))(*shape)
            return DLTensor(CHUNK, where, len(shape), _TYPES[torch.float32], extents, None, 0)

        keys, values, gates = described(1, CHUNK, 1, 16), described(1, CHUNK, 1, value_dim), described(1, CHUNK, 1)
        inputs = _library.Inputs(pointer(keys), pointer(keys), pointer(values), *[pointer(gates)] * 3, None, None)
        options = _library.new_options()
        options.rule, options.form, options.qk_l2norm, options.device = rule, _AUTO, 1, where
        size = c_uint64()
        check(library.qdelta_saved_size(byref(options), byref(inputs), byref(size)))
        _saved_bytes[key] = size.value
    return _saved_bytes[key]
