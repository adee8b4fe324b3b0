"""Token mixers for PyTorch: QDeltaNet and its siblings, and Mamba."""

from .delta_net import (
    MIXERS,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba2Rule,
    QDeltaNet,
    RecurrentMixer,
    RetNet,
)
from .mamba import Mamba
from .model import Block, CausalLM, DeltaModel, ModelConfig

__all__ = [
    "MIXERS",
    "Block",
    "CausalLM",
    "DeltaModel",
    "DeltaNet",
    "GatedDeltaNet",
    "LinearAttention",
    "Longhorn",
    "Mamba",
    "Mamba2Rule",
    "ModelConfig",
    "QDeltaNet",
    "RecurrentMixer",
    "RetNet",
]
