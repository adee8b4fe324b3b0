"""config.json of the engine as a configuration of transformers."""

from __future__ import annotations

from dataclasses import fields

from transformers import PretrainedConfig

from ..layers.model import ModelConfig

_KEYS = {field.name: field.default for field in fields(ModelConfig)}
_COMMON = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
# Options of FLA's models, and the values with which they are the models here: the engine refuses others too.
_FIXED = {
    "hidden_act": ("swish", "silu"), "attn": (None,), "attnres_block_size": (None,), "conv_bias": (False,), "use_beta": (True,),
    "use_output_norm": (True,), "qk_norm": ("l2",), "qk_activation": ("silu",),
    # Of its older versions.
    "use_rope": (False, None), "norm_first": (False, None), "share_conv_kernel": (False, None), "use_elu": (False, None),
    "clamp_min": (None,), "clamp_max": (None,),
}  # fmt: skip


class QDeltaConfig(PretrainedConfig):
    """Every key of qdelta.layers.ModelConfig, with its default. `rule` names the mixer of all layers, `layer_types` that of
    each."""

    model_type = "qdelta"
    default_rule = "q_delta"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, **kwargs):
        for key, allowed in _FIXED.items():
            if kwargs.get(key, allowed[0]) not in allowed:
                raise ValueError(f"{key} is {kwargs[key]!r}, which these models do not have; only {' or '.join(map(repr, allowed))}")
        # transformers has names of its own for layer_types, and refuses others: here they are `mixers`, in files not.
        mixers = kwargs.pop("layer_types", None) or kwargs.pop("mixers", None)
        if mixers and kwargs.get("rule"):
            raise ValueError("rule and layer_types exclude each other")
        self.mixers = list(mixers) if mixers else None
        self.rule = kwargs.pop("rule", None) or self.default_rule
        for key, default in _KEYS.items():
            if key not in (*_COMMON, "layer_types", "rule"):
                setattr(self, key, kwargs.pop(key, default))
        if self.mixers and len(self.mixers) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names the mixers of {len(self.mixers)} layers, but num_hidden_layers is "
                f"{self.num_hidden_layers}"
            )
        kwargs.setdefault("tie_word_embeddings", False)
        kwargs.setdefault("bos_token_id", 1)
        kwargs.setdefault("eos_token_id", 2)
        super().__init__(**kwargs)

    def to_dict(self) -> dict:
        """What both the engine and transformers read."""
        output = super().to_dict()
        mixers = output.pop("mixers", None)
        if mixers:
            output["layer_types"] = mixers
        if mixers or output.get("rule") == self.default_rule:
            output.pop("rule", None)
        return output


class GatedDeltaNetConfig(QDeltaConfig):
    """Folders of Gated DeltaNet have a type of their own."""

    model_type = "gated_deltanet"
    default_rule = "gated_delta"

    def __init__(self, **kwargs):  # or transformers makes one that sets nothing
        super().__init__(**kwargs)
