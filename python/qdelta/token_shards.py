"""Token shards of the engine (`qdelta tokenize`), read by memory map with NumPy.

A shard is a header of 64 bytes, the tokens (2 bytes each, or 4 where the vocabulary is larger than 65536), zeros up to a
multiple of 8 bytes, and the ends of the documents, 8 bytes each; all little-endian. A folder has a shards.json that lists them.
"""

from __future__ import annotations

import json
import os

import numpy as np

from ._library import whole_number

_MAGIC = b"QDTOKENS"
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("width", "<u4"),
        ("tokens", "<u8"),
        ("documents", "<u8"),
        ("fingerprint", "<u8"),
        ("vocab_size", "<u4"),
        ("reserved", "<u4"),
        ("checksum", "<u8"),
        ("token_checksum", "<u8"),
    ]
)
assert _HEADER.itemsize == 64


class TokenShards:
    """All shards of a folder as one sequence of tokens. Nothing is read before it is asked for."""

    def __init__(self, folder: str | os.PathLike):
        index = os.path.join(folder, "shards.json")
        try:
            with open(index, encoding="utf-8") as file:
                paths = [os.path.join(folder, shard["file"]) for shard in json.load(file)["shards"]]
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} has no shards.json: make shards with qdelta tokenize") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{index} is no list of shards: {error}") from None
        self._paths = [os.path.abspath(path) for path in paths]
        self.vocab_size = 0
        self._shards = [self._open(path) for path in self._paths]
        self._last_order: tuple = (None, None)
        self._starts = np.cumsum([0, *[len(shard) for shard in self._shards]])

    def _open(self, path: str) -> np.ndarray:
        size = os.path.getsize(path)
        if size < _HEADER.itemsize:
            raise ValueError(f"{path} is no token shard: it has {size} bytes")
        header = np.fromfile(path, dtype=_HEADER, count=1)[0]
        if header["magic"] != _MAGIC or header["version"] not in (1, 2) or header["width"] not in (2, 4):
            raise ValueError(f"{path} is no token shard of version 1 or 2")
        tokens, width = int(header["tokens"]), int(header["width"])
        if _HEADER.itemsize + tokens * width > size:
            raise ValueError(f"{path} is cut off: {tokens} tokens do not fit into {size} bytes")
        self.vocab_size = int(header["vocab_size"])
        return np.memmap(path, dtype=f"<u{width}", mode="r", offset=_HEADER.itemsize, shape=(tokens,))

    def __getstate__(self) -> dict:
        """For other processes, which open the files themselves: they may be larger than memory."""
        return {**self.__dict__, "_shards": None, "_last_order": (None, None)}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._shards = [self._open(path) for path in self._paths]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, begin: int, count: int) -> np.ndarray:
        """Tokens [begin, begin + count) as int64, over the ends of shards."""
        if begin < 0 or count < 0 or begin + count > len(self):
            raise IndexError(f"tokens {begin} to {begin + count} of {len(self)}")
        parts = []
        while count > 0:
            shard = int(np.searchsorted(self._starts, begin, side="right")) - 1
            at = begin - int(self._starts[shard])
            part = self._shards[shard][at : at + count]
            parts.append(part.astype(np.int64))
            begin += len(part)
            count -= len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def batch(self, step: int, batch: int, tokens: int, rank: int = 0, ranks: int = 1, seed: int = 0) -> np.ndarray:
        """[batch, tokens + 1]: the rows of one process at one step. Rows are consecutive pieces of `tokens` tokens, in an order
        that the seed shuffles anew for every pass; no two processes get the same."""
        most = 2**63 - 1
        for name, value in (("batch", batch), ("tokens", tokens), ("ranks", ranks)):
            whole_number(name, value, 1, most)
        for name, value, last in (("step", step, most), ("rank", rank, ranks - 1), ("seed", seed, most)):
            whole_number(name, value, 0, last)
        pieces = (len(self) - 1) // tokens
        if pieces < 1:
            raise ValueError(f"{len(self)} tokens are too few for a sequence of {tokens}")
        rows = []
        for row in range(batch):
            number = (step * ranks + rank) * batch + row
            order = self._order(number // pieces, pieces, seed)
            rows.append(self.read(int(order[number % pieces]) * tokens, tokens + 1))
        return np.stack(rows)

    def _order(self, pass_: int, pieces: int, seed: int) -> np.ndarray:
        key = (pass_, pieces, seed)
        last, order = self._last_order  # one assignment: other threads may look
        if last != key:
            order = np.random.default_rng([seed, pass_]).permutation(pieces)
            self._last_order = (key, order)
        return order
