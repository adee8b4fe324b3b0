"""What generation keeps between tokens: the recurrent state of every layer, of a size that does not grow."""

from __future__ import annotations

import torch


class RecurrentCache:
    """One dictionary of tensors for each layer; empty until the first tokens are read."""

    is_compileable = False

    def __init__(self, layers: int):
        self.states: list[dict[str, torch.Tensor]] = [{} for _ in range(layers)]
        self.seen_tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def get_max_cache_shape(self) -> int:
        return -1

    def _map(self, change) -> None:
        self.states = [{name: change(x) for name, x in state.items()} for state in self.states]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Of each row the state of row beam_idx, for beam search."""
        self._map(lambda x: x.index_select(0, beam_idx.to(x.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def clone(self) -> RecurrentCache:
        copy = RecurrentCache(len(self.states))
        copy.states = [{name: x.clone() for name, x in state.items()} for state in self.states]
        copy.seen_tokens = self.seen_tokens
        return copy

    def crop(self, max_length: int) -> None:
        raise NotImplementedError("a recurrent state cannot be cut back: clone the cache before, and go on from there")
