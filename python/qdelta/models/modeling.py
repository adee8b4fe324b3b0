"""Models of transformers for the folders that the engine writes."""

from __future__ import annotations

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..layers.model import DeltaModel, initialize_module
from ..ops._arguments import check_kind
from .cache import RecurrentCache
from .configuration import GatedDeltaNetConfig, QDeltaConfig

Tensor = torch.Tensor


class _LayerTypes:
    """The configuration with `layer_types` as the layers of PyTorch ask for it."""

    def __init__(self, config: QDeltaConfig):
        self._config = config
        self.layer_types = config.mixers

    def __getattr__(self, name: str):
        return getattr(self._config, name)


class QDeltaPreTrainedModel(PreTrainedModel):
    config_class = QDeltaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _is_stateful = True

    def _init_weights(self, module: nn.Module) -> None:
        initialize_module(module, self.config.initializer_range)

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs) -> None:
        """Each block is computed again in the backward."""
        for module in self.modules():
            if isinstance(module, DeltaModel):
                module.gradient_checkpointing = enable

    @property
    def is_gradient_checkpointing(self) -> bool:
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


class QDeltaForCausalLM(QDeltaPreTrainedModel, GenerationMixin):
    """The language model. Beside the usual arguments `cu_seqlens` packs sequences into one row."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: QDeltaConfig):
        super().__init__(config)
        self.model = DeltaModel(_LayerTypes(config))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.embeddings = value

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None, use_cache=True, **kwargs
    ):
        if kwargs.get("cu_seqlens") is not None:
            raise ValueError("cu_seqlens is for forward: generate goes on from the end of each row, pad them on the left")
        inputs = {"past_key_values": past_key_values, "use_cache": use_cache}
        inputs |= {name: kwargs[name] for name in ("logits_to_keep", "output_hidden_states") if name in kwargs}
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        if inputs_embeds is not None and seen < inputs_embeds.shape[1]:
            inputs["inputs_embeds"] = inputs_embeds[:, seen:]
            new = inputs_embeds.shape[1] - seen
        else:
            there = input_ids.shape[1]
            new = self._new_tokens(there, seen, attention_mask, kwargs) if past_key_values is not None else there
            if new < 1:
                raise ValueError(f"past_key_values has read {seen} tokens, and of {seen + new} none are new: give all, and at least one more")
            if new > there:
                raise ValueError(f"past_key_values has read {seen} of {seen + new} tokens, but input_ids has only the last {there}")
            inputs["input_ids"] = input_ids[:, there - new :].contiguous()
        inputs["attention_mask"] = None if attention_mask is None else attention_mask[:, -new:]
        return inputs

    @staticmethod
    def _new_tokens(there: int, seen: int, attention_mask: Tensor | None, others: dict) -> int:
        """How many of the ids that are there the cache has not read: transformers gives all of them, or the last ones alone."""
        if attention_mask is not None:  # of everything, read and unread
            return attention_mask.shape[1] - seen
        if others.get("next_sequence_length") is not None:  # from transformers 5 on, which leaves out masks that hide nothing
            return others["next_sequence_length"]
        return there if "is_first_iteration" in others else there - seen

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ):
        """attention_mask [B, T] may be 0 on the left of a sequence, where it is padded. labels are input_ids, or -100. cu_seq_lens_q,
        as collators for FlashAttention have it, is cu_seqlens. position_ids are not needed."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        batch, tokens = self._extents(input_ids, inputs_embeds)
        offsets_of_flash = kwargs.pop("cu_seq_lens_q", None)
        cu_seqlens = offsets_of_flash if cu_seqlens is None else cu_seqlens
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", True) and not self.training and cu_seqlens is None
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if return_dict is None:
            return_dict = self.config.return_dict
        cache = past_key_values
        if cache is None and use_cache and cu_seqlens is None:
            cache = RecurrentCache(self.config.num_hidden_layers)
        if cache is not None and not isinstance(cache, RecurrentCache):
            raise TypeError(f"past_key_values is {type(cache).__name__}, expected qdelta's RecurrentCache")
        if cache is not None:
            if cu_seqlens is not None:
                raise ValueError("past_key_values is given beside cu_seqlens: packed sequences start from nothing, and leave no cache")
            self._check_cache(cache, batch)
        mask = self._padding(attention_mask, batch, tokens, cache)
        if cu_seqlens is None:
            self._check_positions(kwargs.get("position_ids"), mask, tokens)
        inner = [] if output_hidden_states else None
        hidden = self.model(
            input_ids,
            inputs_embeds,
            None if cache is None else cache.states,
            cu_seqlens,
            mask,
            inner,
        )
        if cache is not None:
            cache.seen_tokens += tokens
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        if isinstance(keep, int):
            keep = slice(None)
        logits = self.lm_head(hidden[:, keep])
        loss = None
        if labels is not None:
            check_kind("labels", labels)
            if labels.shape != logits.shape[:2]:
                raise ValueError(f"labels has shape {list(labels.shape)}, expected that of the logits, {list(logits.shape[:2])}")
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        if inner is not None:
            inner.append(hidden)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=cache, hidden_states=None if inner is None else tuple(inner)
        )
        return output if return_dict else output.to_tuple()

    @staticmethod
    def _extents(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> tuple[int, int]:
        name, given, axes = ("input_ids", input_ids, 2) if inputs_embeds is None else ("inputs_embeds", inputs_embeds, 3)
        check_kind(name, given)
        if given.dim() != axes:
            raise ValueError(f"{name} has shape {list(given.shape)}, expected [B, T{', hidden_size' if axes == 3 else ''}]")
        return given.shape[0], given.shape[1]

    def _check_cache(self, cache: RecurrentCache, batch: int) -> None:
        if len(cache.states) != self.config.num_hidden_layers:
            layers = self.config.num_hidden_layers
            raise ValueError(f"past_key_values is of a model with {len(cache.states)} layers, this one has {layers}")
        rows = next((x.shape[0] for state in cache.states for x in state.values() if x is not None), batch)
        if rows != batch:
            raise ValueError(f"past_key_values is of a batch of {rows}, but there are {batch} rows")

    @staticmethod
    def _padding(mask: Tensor | None, batch: int, tokens: int, cache: RecurrentCache | None) -> Tensor | None:
        """The mask where it hides anything. A recurrent state cannot skip tokens that follow others."""
        if mask is None:
            return None
        check_kind("attention_mask", mask)
        if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < tokens:
            raise ValueError(f"attention_mask has shape {list(mask.shape)}, expected [B, T] = {[batch, tokens]} or longer")
        mask = mask[:, mask.shape[1] - tokens :]
        if not _has_values(mask):
            return mask
        if bool((mask != 0).all()):
            return None
        if bool((mask[:, 1:] < mask[:, :-1]).any()):
            raise ValueError("attention_mask hides tokens after others: pad on the left (padding_side='left')")
        states = [] if cache is None else [x for state in cache.states for x in state.values() if x is not None]
        if any(bool(x[mask[:, 0] == 0].any()) for x in states):  # of rows that were padded throughout they are zeros
            raise ValueError("attention_mask hides tokens after those that past_key_values has read: pad on the left of all of them")
        return mask

    @staticmethod
    def _check_positions(position_ids: Tensor | None, mask: Tensor | None, tokens: int) -> None:
        """They say nothing that is not known, unless they tell of several sequences in one row, which would be read as one."""
        if position_ids is None or position_ids.shape[-1] != tokens or not _has_values(position_ids):
            return
        starts = position_ids[..., 1:] == 0
        if bool((starts if mask is None else starts & (mask[:, :-1] != 0)).any()):
            raise ValueError(
                "position_ids begin again within a row, but cu_seqlens is missing: packed sequences need it "
                "(DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives it)"
            )


def _has_values(tensor: Tensor) -> bool:
    """Not where PyTorch only traces, or computes shapes."""
    return not torch.compiler.is_compiling() and type(tensor) is Tensor and not tensor.is_meta


class GatedDeltaNetForCausalLM(QDeltaForCausalLM):
    """Under the name that such folders have."""

    config_class = GatedDeltaNetConfig
