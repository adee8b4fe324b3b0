"""The tokenizers of the engine's folders for AutoTokenizer."""

from __future__ import annotations

import json
import os

from transformers import GPT2TokenizerFast, LlamaTokenizerFast, PreTrainedTokenizerFast


class FolderTokenizer(PreTrainedTokenizerFast):
    """Finds which of a folder's files is meant, as the engine does, and loads the class that reads it."""

    @classmethod
    def from_pretrained(cls, folder, *args, **kwargs):
        kind = cls._kind(str(folder))
        return kind.from_pretrained(folder, *args, **kwargs)

    @staticmethod
    def _kind(folder: str) -> type:
        there = lambda name: os.path.exists(os.path.join(folder, name))  # noqa: E731
        named = ""
        if there("qdelta_tokenizer.json"):
            with open(os.path.join(folder, "qdelta_tokenizer.json"), encoding="utf-8") as file:
                named = json.load(file)["tokenizer"]
        if named in ("", "bytes", "tokenizer.json") and there("tokenizer.json"):
            return PreTrainedTokenizerFast
        if named == "bytes":
            raise OSError(f"{folder} was written by qdelta 0.1: it has no tokenizer.json for its tokenizer of bytes")
        if named.endswith(".model") or there("tokenizer.model"):
            return LlamaTokenizerFast
        if there("vocab.json"):
            return GPT2TokenizerFast
        return PreTrainedTokenizerFast
