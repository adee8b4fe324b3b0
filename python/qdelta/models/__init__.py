"""Models and tokenizers for transformers. To import this makes AutoConfig, AutoModelForCausalLM and AutoTokenizer know them."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from .cache import RecurrentCache
from .configuration import GatedDeltaNetConfig, QDeltaConfig
from .modeling import GatedDeltaNetForCausalLM, QDeltaForCausalLM
from .tokenization import FolderTokenizer, SentencePieceTokenizer


def _register() -> None:
    for config, model in ((QDeltaConfig, QDeltaForCausalLM), (GatedDeltaNetConfig, GatedDeltaNetForCausalLM)):
        try:
            AutoConfig.register(config.model_type, config)
        except ValueError:  # another package has taken the type, as flash-linear-attention does
            continue
        AutoModelForCausalLM.register(config, model)
        AutoTokenizer.register(
            config, slow_tokenizer_class=SentencePieceTokenizer, fast_tokenizer_class=FolderTokenizer, exist_ok=True
        )


_register()

__all__ = [
    "FolderTokenizer",
    "GatedDeltaNetConfig",
    "GatedDeltaNetForCausalLM",
    "QDeltaConfig",
    "QDeltaForCausalLM",
    "RecurrentCache",
    "SentencePieceTokenizer",
]
