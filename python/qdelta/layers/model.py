"""The language model in plain PyTorch: embedding, blocks (norm, mixer, norm, MLP), final norm. `config` is anything with the
attributes of config.json: a QDeltaConfig, or ModelConfig below, which needs no transformers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ._parts import RMSNorm, check_extents, is_loaded
from .delta_net import MIXERS, RecurrentMixer
from .mamba import Mamba

Tensor = torch.Tensor
States = list[dict]


@dataclass
class ModelConfig:
    """Keys and defaults of the engine's config.json."""

    vocab_size: int = 32000
    hidden_size: int = 1024
    num_hidden_layers: int = 21
    num_heads: int = 6
    num_v_heads: int | None = None
    head_dim: int = 128
    expand_v: float = 2
    conv_size: int = 4
    use_short_conv: bool = True
    use_gate: bool = True
    output_gate_activation: str = "swish"
    allow_neg_eigval: bool = False
    hidden_ratio: float = 4
    intermediate_size: int | None = None
    use_mlp: bool = True
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    rule: str = "q_delta"
    layer_types: list[str] | None = None
    lamb_bias: float | None = None
    initial_lamb_bias: float = 0.8
    fixed_lambda: float | None = None
    use_decay: bool = True
    expand: float = 2
    state_size: int = 16
    time_step_rank: int | str = "auto"


def mixer_of_layer(config, layer: int) -> str:
    types = getattr(config, "layer_types", None)
    return types[layer] if types else config.rule


def mlp_width(config) -> int:
    if not config.use_mlp:
        return 0
    width = config.intermediate_size or -(-int(config.hidden_size * config.hidden_ratio * 2 / 3) // 256) * 256
    if width < 1:
        raise ValueError(f"intermediate_size or hidden_ratio give an MLP of width {width}: use_mlp=False leaves it out")
    return width


def make_mixer(config, layer: int) -> nn.Module:
    name = mixer_of_layer(config, layer)
    if name == "mamba":
        rank = None if config.time_step_rank in ("auto", None, 0) else config.time_step_rank
        return Mamba(config.hidden_size, config.expand, config.state_size, rank, config.conv_size, layer)
    if name not in MIXERS:
        raise ValueError(f"layer {layer} is to be {name!r}; there are {', '.join(MIXERS)} and mamba")
    keys = (
        "hidden_size", "num_heads", "head_dim", "num_v_heads", "expand_v", "conv_size", "use_short_conv", "use_gate",
        "output_gate_activation", "use_decay", "allow_neg_eigval", "lamb_bias", "initial_lamb_bias", "fixed_lambda",
        "norm_eps",
    )  # fmt: skip
    return MIXERS[name](**{key: getattr(config, key) for key in keys}, layer_idx=layer)


class MLP(nn.Module):
    """down( silu(gate(x)) . up(x) )"""

    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, width, bias=False)
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config, layer: int):
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        mixer = make_mixer(config, layer)
        # Under the name that its parameters have in checkpoints.
        self.mixer_name = "attn" if isinstance(mixer, RecurrentMixer) else "mixer"
        setattr(self, self.mixer_name, mixer)
        width = mlp_width(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps) if width else None
        self.mlp = MLP(config.hidden_size, width) if width else None

    def forward(
        self, x: Tensor, state: dict | None = None, cu_seqlens: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x = x + getattr(self, self.mixer_name)(self.attn_norm(x), state, cu_seqlens, mask)
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))


class DeltaModel(nn.Module):
    """Token ids [B, T], or embeddings, to the normalised output of the last block [B, T, hidden]."""

    def __init__(self, config):
        super().__init__()
        check_extents(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers
        )
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        states: States | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        hidden_states: list | None = None,
    ) -> Tensor:
        """`states`, one dictionary for each layer, are updated. Inputs of the blocks are appended to `hidden_states`."""
        if inputs_embeds is None and (input_ids is None or input_ids.dim() != 2):
            shape = None if input_ids is None else list(input_ids.shape)
            raise ValueError(f"input_ids has shape {shape}, expected [B, T]")
        if states is not None and len(states) != len(self.layers):
            raise ValueError(f"states are {len(states)}, expected {len(self.layers)}, one for each layer")
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        for i, layer in enumerate(self.layers):
            if hidden_states is not None:
                hidden_states.append(x)
            state = None if states is None else states[i]
            if self.gradient_checkpointing and self.training and state is None:
                x = checkpoint(layer, x, None, cu_seqlens, mask, use_reentrant=False)
            else:
                x = layer(x, state, cu_seqlens, mask)
        return self.norm(x)


class CausalLM(nn.Module):
    """The model with its head, and the loss of the next token, without transformers."""

    def __init__(self, config):
        super().__init__()
        self.model = DeltaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embeddings.weight
        initialize(self, config.initializer_range)

    def forward(self, input_ids: Tensor, targets: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocabulary]; with targets (-100: none) the mean loss."""
        x = self.model(input_ids, cu_seqlens=cu_seqlens)
        return self.lm_head(x) if targets is None else self.loss(x, targets)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Of the next token, from the model's outputs."""
        return F.cross_entropy(self.lm_head(x).flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


def initialize(model: nn.Module, deviation: float) -> None:
    """Initial values as the engine has them."""
    for module in model.modules():
        initialize_module(module, deviation)


def initialize_module(module: nn.Module, deviation: float) -> None:
    with torch.no_grad():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d)):
            if not is_loaded(module.weight):
                module.weight.normal_(0, deviation)
            bias = getattr(module, "bias", None)
            if bias is not None and not is_loaded(bias):
                bias.zero_()
        elif isinstance(module, RecurrentMixer):
            module.reset_gates()
        elif isinstance(module, Mamba):
            module.reset_scan()
        elif isinstance(module, RMSNorm) and not is_loaded(module.weight):
            module.weight.fill_(1)
