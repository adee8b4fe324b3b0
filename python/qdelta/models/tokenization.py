"""The tokenizers of the engine's folders for AutoTokenizer."""

from __future__ import annotations

import json
import os
import shutil

from transformers import GPT2TokenizerFast, PreTrainedTokenizer, PreTrainedTokenizerFast


class SentencePieceTokenizer(PreTrainedTokenizer):
    """A SentencePiece model as the engine reads it: its ids are the library's own, behind the id that starts a text. What
    transformers makes of such a file otherwise are other ids, where a text has unknown characters or several spaces, or where
    the model is Unigram."""

    vocab_files_names = {"vocab_file": "tokenizer.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, **kwargs):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise ImportError(f"{vocab_file} is a SentencePiece model: pip install sentencepiece") from error
        self.vocab_file = vocab_file
        self.pieces = SentencePieceProcessor(model_file=vocab_file)
        for name in ("unk", "bos", "eos", "pad"):
            number = getattr(self.pieces, f"{name}_id")()
            kwargs.setdefault(f"{name}_token", self.pieces.id_to_piece(number) if number >= 0 else None)
        super().__init__(**kwargs)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "pieces": self.pieces.serialized_model_proto()}

    def __setstate__(self, state: dict) -> None:
        from sentencepiece import SentencePieceProcessor

        self.__dict__.update(state)
        self.pieces = SentencePieceProcessor(model_proto=state["pieces"])

    @property
    def vocab_size(self) -> int:
        return self.pieces.get_piece_size()

    def get_vocab(self) -> dict[str, int]:
        return {self.pieces.id_to_piece(i): i for i in range(self.vocab_size)} | self.added_tokens_encoder

    def tokenize(self, text: str, **kwargs) -> list[str]:
        if any(number >= self.vocab_size for number in self.added_tokens_decoder):  # somebody has added tokens of their own
            return super().tokenize(text, **kwargs)
        return self._tokenize(text)

    def _tokenize(self, text: str, **kwargs) -> list[str]:
        return self.pieces.encode(text, out_type=str)

    def _convert_token_to_id(self, token: str) -> int:
        return self.pieces.piece_to_id(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.pieces.id_to_piece(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.pieces.decode(tokens)

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, **kwargs) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if any(number >= self.vocab_size for number in ids):
            return super()._decode(ids, skip_special_tokens=skip_special_tokens, **kwargs)
        text, run = "", []
        for number in ids:
            if not self.pieces.is_control(number):
                run.append(number)
            elif not skip_special_tokens:
                text += self.pieces.decode(run) + self.pieces.id_to_piece(number)
                run = []
        return text + self.pieces.decode(run)

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        start = [] if self.bos_token_id is None else [self.bos_token_id]
        return start + token_ids_0 + ([] if token_ids_1 is None else start + token_ids_1)

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if already_has_special_tokens:
            return [int(self.pieces.is_control(number)) for number in token_ids_0]
        start = [] if self.bos_token_id is None else [1]
        return start + [0] * len(token_ids_0) + ([] if token_ids_1 is None else start + [0] * len(token_ids_1))

    def create_token_type_ids_from_sequences(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        return [0] * len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = os.path.join(save_directory, prefix + self.vocab_files_names["vocab_file"])
        if os.path.abspath(path) != os.path.abspath(self.vocab_file):
            shutil.copyfile(self.vocab_file, path)
        return (path,)


class FolderTokenizer(PreTrainedTokenizerFast):
    """Finds which of a folder's files is meant, as the engine does, and loads the class that reads it."""

    slow_tokenizer_class = SentencePieceTokenizer

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
            return SentencePieceTokenizer
        if there("vocab.json"):
            return GPT2TokenizerFast
        return PreTrainedTokenizerFast
