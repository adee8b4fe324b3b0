"""What the operators take: an exception that names the argument for everything else."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def is_dense(tensor: Tensor) -> bool:
    """Neither sparse nor nested nor of another layout that has no strides."""
    return tensor.layout == torch.strided and not tensor.is_nested


def check_kind(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}, expected a tensor")
    if not is_dense(tensor):
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{name} is {kind}, expected a dense tensor (torch.strided)")


def check(name: str, tensor: Tensor | None, other: Tensor, shape: tuple, axes: str) -> None:
    if tensor is None:
        return
    check_kind(name, tensor)
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device}, but others are on {other.device}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {axes} = {list(shape)}")
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"{name} is {tensor.dtype}, expected torch.float32 or torch.bfloat16")


def check_operand(name: str, tensor: Tensor) -> None:
    """Of q, k and v what has to be right before their extents are looked at."""
    check_kind(name, tensor)
    if tensor.dim() != 4:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [B, T, H, width]")


def check_arguments(q, k, v, g, beta, lamb, initial_state, cu_seqlens) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_operand(name, tensor)
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q is on {q.device}; qdelta computes on cpu and cuda")
    B, T, H, K = q.shape
    HV, V = v.shape[2], v.shape[3]
    if K == 0 or H == 0:
        raise ValueError(f"q has shape {list(q.shape)}: heads and widths must not be empty")
    if HV == 0 or HV % H != 0:
        raise ValueError(f"v has {HV} heads, which is not a multiple of the {H} heads of q and k")
    check("q", q, q, (B, T, H, K), "[B, T, H, K]")
    check("k", k, q, (B, T, H, K), "[B, T, H, K]")
    check("v", v, q, (B, T, HV, V), "[B, T, HV, V]")
    for name, gate in (("g", g), ("beta", beta), ("lamb", lamb)):
        check(name, gate, q, (B, T, HV), "[B, T, HV]")
    N = B
    if cu_seqlens is not None:
        check_kind("cu_seqlens", cu_seqlens)
        if B != 1:
            raise ValueError(f"with cu_seqlens the sequences are packed into one row, but q has batch {B}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, expected N + 1 integers")
        N = cu_seqlens.shape[0] - 1
    check("initial_state", initial_state, q, (N, HV, K, V), "[N, HV, K, V]")
