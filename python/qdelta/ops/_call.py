"""Calls of the recurrence in libqdelta on PyTorch's tensors, where they lie.

To describe fifteen tensors to C takes longer than a small kernel runs. So a description is made once for every geometry
(shapes, strides, types, options) and kept by the thread; a call then only stores the addresses.
"""

from __future__ import annotations

import threading
import weakref
from ctypes import byref, c_int64, c_uint64, pointer

import torch

from .. import _library
from .._library import CPU, CUDA, RULES, DLDataType, DLDevice, DLTensor, check, library

CHUNK = 64  # tokens of a chunk
_AUTO = 3
_TYPES = {
    torch.float32: DLDataType(2, 32, 1),
    torch.bfloat16: DLDataType(4, 16, 1),
    torch.float64: DLDataType(2, 64, 1),
    torch.float16: DLDataType(2, 16, 1),
    torch.int32: DLDataType(0, 32, 1),
    torch.int64: DLDataType(0, 64, 1),
    torch.uint8: DLDataType(1, 8, 1),
}
_MOST_PLANS = 256  # of a thread; then it starts anew

Tensor = torch.Tensor


def _device_of(tensor: Tensor) -> DLDevice:
    if tensor.device.type == "cpu":
        return DLDevice(CPU, 0)
    if tensor.device.type == "cuda":
        return DLDevice(CUDA, tensor.device.index)
    raise _library.UnsupportedError(f"qdelta computes on cpu and cuda tensors, not on {tensor.device}")


class _Described:
    """A DLTensor of the geometry of `tensor`, and the memory that it points to."""

    def __init__(self, name: str, tensor: Tensor):
        if tensor.dtype not in _TYPES:
            raise _library.UnsupportedError(f"{name} is {tensor.dtype}, expected torch.float32 or torch.bfloat16")
        rank = tensor.dim()
        self._shape = (c_int64 * rank)(*tensor.shape)
        self._strides = (c_int64 * rank)(*tensor.stride())
        self.dl = DLTensor(None, _device_of(tensor), rank, _TYPES[tensor.dtype], self._shape, self._strides, 0)


class Plan:
    """One geometry of a call: structs for C, whose addresses are filled in at every call."""

    def __init__(self, names: tuple[str, ...], tensors: tuple[Tensor | None, ...], options: _library.Options):
        self.options = options
        self.options_ref = byref(options)
        self.refs: list = []  # to the structs that a call takes after the options
        self.workspace: int | None = None  # bytes, once they are known
        self._described = [None if t is None else _Described(n, t) for n, t in zip(names, tensors, strict=True)]
        self._present = [d.dl for d in self._described if d is not None]

    def pointers(self, begin: int, end: int) -> list:
        return [None if d is None else pointer(d.dl) for d in self._described[begin:end]]

    def bind(self, tensors: tuple[Tensor | None, ...]) -> None:
        present = iter(self._present)
        for tensor in tensors:
            if tensor is not None:
                next(present).data = tensor.data_ptr()


_thread = threading.local()


def _plans() -> dict:
    try:
        plans = _thread.plans
    except AttributeError:
        plans = _thread.plans = {}
    if len(plans) > _MOST_PLANS:
        plans.clear()
    return plans


def _geometry(tensor):
    return (tensor.shape, tensor.stride(), tensor.dtype) if isinstance(tensor, Tensor) else tensor


def _new_options(device: torch.device, rule: int, scale: float, qk_l2norm: bool) -> _library.Options:
    options = _library.new_options()
    options.rule = rule
    options.form = _AUTO
    options.scale = scale
    options.qk_l2norm = int(qk_l2norm)
    options.threads = torch.get_num_threads() if device.type == "cpu" else 0
    options.device = DLDevice(CUDA, device.index) if device.type == "cuda" else DLDevice(CPU, 0)
    return options


class _HostOffsets:
    """cu_seqlens in the memory of the CPU. The last one that came from a GPU is kept: layers share it, and to fetch it
    makes the CPU wait."""

    def __init__(self):
        self._of = None
        self._version = -1
        self._host: Tensor | None = None

    def __call__(self, cu_seqlens: Tensor | None) -> Tensor | None:
        if cu_seqlens is None or cu_seqlens.device.type == "cpu":
            return cu_seqlens
        if self._of is None or self._of() is not cu_seqlens or self._version != cu_seqlens._version:
            self._host = cu_seqlens.cpu()
            self._of = weakref.ref(cu_seqlens)
            self._version = cu_seqlens._version
        return self._host


def host_offsets(cu_seqlens: Tensor | None) -> Tensor | None:
    try:
        fetch = _thread.host_offsets
    except AttributeError:
        fetch = _thread.host_offsets = _HostOffsets()
    return fetch(cu_seqlens)


def rows_contiguous(tensor: Tensor | None) -> Tensor | None:
    """As the kernels of the GPU want it."""
    if tensor is None or tensor.device.type == "cpu" or tensor.dim() < 4 or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


def _workspace(plan: Plan, device: torch.device, keep: bool, query, *arguments) -> Tensor | None:
    """Scratch memory of a call; None: none is needed. Its size is asked for once where `keep` says that it depends on
    the geometry alone."""
    if plan.workspace is None or not keep:
        bytes_ = c_uint64()
        check(query(plan.options_ref, *arguments, byref(bytes_)))
        plan.workspace = bytes_.value
    if plan.workspace == 0:
        plan.options.workspace = None
        plan.options.workspace_size = 0
        return None
    memory = torch.empty(plan.workspace, dtype=torch.uint8, device=device)
    plan.options.workspace = memory.data_ptr()
    plan.options.workspace_size = plan.workspace
    return memory


_INPUTS = ("q", "k", "v", "g", "beta", "lamb", "initial_state", "cu_seqlens")
_OUTPUTS = ("o", "final_state", "chunk_states")
_OUTPUT_GRADIENTS = ("do", "dht", "chunk_states")
_INPUT_GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dlamb", "dh0")
_STEP = ("q", "k", "v", "g", "beta", "lamb", "states", "index", "o")


def _prepared(kind: str, names, tensors, keyed, device, rule, scale, qk_l2norm, structs) -> Plan:
    """The thread's plan for this geometry, with the addresses of these tensors. `keyed` are those of the tensors, or extents,
    that the others' geometry follows from."""
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    key = (kind, device, rule, scale, qk_l2norm, threads, *[_geometry(t) for t in keyed])
    plans = _plans()
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = Plan(names, tensors, _new_options(device, rule, scale, qk_l2norm))
        begin = 0
        for struct in structs:
            end = begin + len(struct._fields_)
            plan.refs.append(byref(struct(*plan.pointers(begin, end))))
            begin = end
    plan.bind(tensors)
    if device.type == "cuda":
        plan.options.stream = torch._C._cuda_getCurrentRawStream(device.index)
    return plan


def _set_saved(plan: Plan, saved: Tensor | None) -> None:
    if saved is None or saved.numel() == 0:
        plan.options.saved = None
        plan.options.saved_size = 0
    else:
        plan.options.saved = saved.data_ptr()
        plan.options.saved_size = saved.numel()


def forward(inputs, outputs, saved: Tensor | None, rule: int, scale: float, qk_l2norm: bool) -> None:
    """`inputs` and `outputs` in the order of the names above."""
    device = inputs[0].device
    structs = (_library.Inputs, _library.Outputs)
    chunks = None if outputs[2] is None else outputs[2].shape[0]
    keyed = (*inputs, outputs[1] is None, chunks)
    plan = _prepared("forward", _INPUTS + _OUTPUTS, inputs + outputs, keyed, device, rule, scale, qk_l2norm, structs)
    _set_saved(plan, saved)
    memory = _workspace(plan, device, inputs[7] is None, library.qdelta_forward_workspace, *plan.refs)
    check(library.qdelta_forward(plan.options_ref, *plan.refs))
    del memory  # on a GPU its bytes are handed out again in the order of the stream


def backward(inputs, d_out, d_in, saved: Tensor | None, rule: int, scale: float, qk_l2norm: bool) -> None:
    device = inputs[0].device
    structs = (_library.Inputs, _library.OutputGradients, _library.InputGradients)
    names = _INPUTS + _OUTPUT_GRADIENTS + _INPUT_GRADIENTS
    keyed = (*inputs, *d_out)
    plan = _prepared("backward", names, inputs + d_out + d_in, keyed, device, rule, scale, qk_l2norm, structs)
    _set_saved(plan, saved)
    memory = _workspace(plan, device, inputs[7] is None, library.qdelta_backward_workspace, *plan.refs)
    check(library.qdelta_backward(plan.options_ref, *plan.refs))
    del memory


def step(arguments, rule: int, scale: float, qk_l2norm: bool) -> None:
    """One token for each row, in place on the states. `arguments` in the order of _STEP."""
    device = arguments[0].device
    plan = _prepared("step", _STEP, arguments, arguments, device, rule, scale, qk_l2norm, (_library.StepArguments,))
    check(library.qdelta_step(plan.options_ref, *plan.refs))


_saved_bytes: dict = {}


def saved_bytes(device: torch.device, rule: int) -> int:
    """What a forward saves for its backward beside the chunk states, in bytes for every chunk and value head."""
    if device.type == "cpu":
        return 0
    if rule not in _saved_bytes:
        # Tensors of one chunk and head whose memory nobody looks at: also where PyTorch only traces.
        def described(*shape: int) -> DLTensor:
            extents = (c_int64 * len(shape))(*shape)
            return DLTensor(CHUNK, DLDevice(CUDA, device.index or 0), len(shape), _TYPES[torch.float32], extents, None, 0)

        values, gates = described(1, CHUNK, 1, 16), described(1, CHUNK, 1)
        inputs = _library.Inputs(*[pointer(values)] * 3, *[pointer(gates)] * 3, None, None)
        options = _new_options(torch.device("cuda", device.index or 0), rule, 1.0, True)
        bytes_ = c_uint64()
        check(library.qdelta_saved_size(byref(options), byref(inputs), byref(bytes_)))
        _saved_bytes[rule] = bytes_.value
    return _saved_bytes[rule]


def rule_number(rule: str) -> int:
    try:
        return RULES.index(rule)
    except ValueError:
        raise ValueError(f"rule is {rule!r}, expected one of {', '.join(RULES)}") from None


__all__ = ["CHUNK", "backward", "forward", "host_offsets", "rows_contiguous", "rule_number", "saved_bytes", "step"]
