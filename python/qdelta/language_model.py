"""A model of the native engine from Python, with nothing but NumPy:

    model = qdelta.LanguageModel.load("run/checkpoints/step-00001000")
    print(model.generate("Once upon a time"))
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int32, c_int64, c_void_p
from numbers import Integral, Real

import numpy as np

from . import _library
from ._library import check, library

_NO_LOGITS, _LAST_LOGITS, _ALL_LOGITS = 0, 1, 2
_SPECIAL = {"bos": 0, "eos": 1, "pad": 2}
# Tokens of one call of the library, by device. It cuts longer sequences at the same places, so bits are the same.
_PIECE = {_library.CPU: 512, _library.CUDA: 8192}


class _Handle:
    """What owns something of the library's, and frees it."""

    def __init__(self, handle: c_void_p, made_by: str):
        if not isinstance(handle, c_void_p):  # anything else would be freed as if it were one
            raise TypeError(f"a {type(self).__name__} is made by {made_by}, not by its name")
        self._handle = handle

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} cannot be pickled: {self._instead}")


class State(_Handle):
    """What a prefix leaves behind: of the same size whatever its length. Made by LanguageModel.state()."""

    _instead = "save() writes it to a file"

    def __init__(self, handle: c_void_p, of: object = None):
        super().__init__(handle, "LanguageModel.state()")
        self._of = of  # what its model is told from others by

    def __del__(self):
        if getattr(self, "_handle", None):
            library.qdelta_state_free(self._handle)
            self._handle = None

    @property
    def tokens(self) -> int:
        """How many tokens it has read."""
        return library.qdelta_state_tokens(self._handle)

    def __repr__(self) -> str:
        return f"<qdelta.State after {self.tokens} tokens>"

    def clone(self) -> State:
        copy = c_void_p()
        check(library.qdelta_state_clone(self._handle, byref(copy)))
        return State(copy, self._of)

    def __copy__(self) -> State:
        return self.clone()

    def __deepcopy__(self, memo) -> State:
        return self.clone()

    def save(self, path: str | os.PathLike) -> None:
        """In the format of `qdelta generate --save-state`."""
        check(library.qdelta_state_save(self._handle, _library.path_named("path", path)))


class LanguageModel(_Handle):
    """An open model folder. Use LanguageModel.load."""

    _instead = "load() opens its folder again"

    def __init__(self, handle: c_void_p, piece: int = _PIECE[_library.CPU]):
        super().__init__(handle, "LanguageModel.load(folder)")
        self._piece = piece
        self._itself = object()

    def __del__(self):
        if getattr(self, "_handle", None):
            library.qdelta_model_free(self._handle)
            self._handle = None

    @classmethod
    def load(
        cls, folder: str | os.PathLike, device: str = "cpu", threads: int = 0, dtype: str | None = None
    ) -> LanguageModel:
        """Opens a folder with config.json, model.safetensors and, to handle text, a tokenizer; of a run its newest
        checkpoint. `device` is "cpu", "cuda" or "cuda:N"; `dtype` of activations "f32", or "bf16" on a GPU, where it is the
        default."""
        options = _library.ModelOptions()
        library.qdelta_model_options_init_sized(byref(options), ctypes.sizeof(options))
        options.device = _library.device_named(device)
        options.threads = _library.whole_number("threads", threads, 0, 4096)
        if dtype not in (None, "f32", "bf16"):
            raise ValueError(f"dtype is {dtype!r}, expected 'f32' or 'bf16'")
        if dtype == "bf16" and options.device.device_type == _library.CPU:
            raise ValueError("activations on the CPU are f32; bf16 needs device='cuda'")
        options.f32_activations = int(dtype == "f32")
        handle = c_void_p()
        path = _model_folder(_library.path_named("folder", folder))
        check(library.qdelta_model_open(os.fsencode(path), byref(options), byref(handle)))
        return cls(handle, _PIECE[options.device.device_type])

    def __copy__(self) -> LanguageModel:
        return self  # nothing in it changes

    def __deepcopy__(self, memo) -> LanguageModel:
        return self

    def __repr__(self) -> str:
        kind = self.config["model_type"]
        return f"<qdelta.LanguageModel {kind}: {self.parameter_count:,} parameters, {self.vocab_size} tokens>"

    @property
    def config(self) -> dict:
        """config.json, as the engine writes it."""
        return json.loads(library.qdelta_model_config(self._handle).decode())

    @property
    def vocab_size(self) -> int:
        return library.qdelta_model_vocab_size(self._handle)

    @property
    def parameter_count(self) -> int:
        return library.qdelta_model_parameter_count(self._handle)

    # States ------------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """A state with nothing read."""
        handle = c_void_p()
        check(library.qdelta_state_new(self._handle, byref(handle)))
        return State(handle, self._itself)

    def load_state(self, path: str | os.PathLike) -> State:
        """What State.save or `qdelta generate --save-state` has written for this very model."""
        handle = c_void_p()
        check(library.qdelta_state_load(self._handle, _library.path_named("path", path), byref(handle)))
        return State(handle, self._itself)

    # Logits ------------------------------------------------------------------------------------------------------------

    def logits(self, ids, state: State | None = None) -> np.ndarray:
        """Logits after every token: [tokens, vocabulary] for one sequence of ids, [batch, tokens, vocabulary] for an array
        of them. A state makes one sequence go on from where it stands, and moves on."""
        array = self._ids("ids", ids, (1, 2))
        if array.ndim == 1:
            return self._read([array], None if state is None else [_checked("state", state)], _ALL_LOGITS)
        if state is not None:
            raise ValueError("state continues one sequence, but ids has two dimensions")
        logits = self._read(list(array), None, _ALL_LOGITS)
        return logits.reshape(*array.shape, self.vocab_size)

    def next_logits(self, sequences: Sequence, states: Sequence[State] | None = None) -> np.ndarray:
        """[sequences, vocabulary]: logits after the last token of each sequence, all read as one batch."""
        arrays = [self._ids(f"sequences[{i}]", ids) for i, ids in enumerate(_as_list("sequences", sequences))]
        if not arrays:
            raise ValueError("sequences is empty, expected at least one")
        if states is not None:
            states = [_checked(f"states[{i}]", state) for i, state in enumerate(_as_list("states", states))]
            if len(states) != len(arrays):
                raise ValueError(f"there are {len(states)} states for {len(arrays)} sequences")
        return self._read(arrays, states, _LAST_LOGITS)

    def read(self, ids, state: State) -> None:
        """Moves a state on over tokens, without logits. Ctrl-C ends a long one; state.tokens says then how far it has come."""
        self._read([self._ids("ids", ids)], [_checked("state", state)], _NO_LOGITS)

    def _ids(self, name: str, ids, axes: tuple[int, ...] = (1,)) -> np.ndarray:
        array = _array(name, ids)
        if array.ndim not in axes or array.size == 0 or array.dtype.kind not in "iu":
            expected = " or ".join(f"{n} dimension{'s' * (n > 1)}" for n in axes)
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, expected integers in {expected}, at least one")
        if array.min() < 0 or array.max() >= self.vocab_size:
            raise ValueError(f"{name} goes from {array.min()} to {array.max()}, but the vocabulary has {self.vocab_size}")
        return np.ascontiguousarray(array, dtype=np.int32)

    def _read(self, sequences: list[np.ndarray], states: list[State] | None, which: int) -> np.ndarray | None:
        """In one call, or where it is long sequence by sequence in pieces: between two of them Ctrl-C is heard."""
        tokens = sum(len(sequence) for sequence in sequences)
        rows = {_NO_LOGITS: 0, _LAST_LOGITS: len(sequences), _ALL_LOGITS: tokens}[which]
        logits = np.empty((rows, self.vocab_size), dtype=np.float32)
        if tokens <= self._piece or not self._has(states):
            self._read_at_once(sequences, states, which, logits)
            return None if which == _NO_LOGITS else logits
        row = 0
        for n, sequence in enumerate(sequences):
            state = self.state() if states is None else states[n]
            for begin in range(0, len(sequence), self._piece):
                part = sequence[begin : begin + self._piece]
                is_last = begin + len(part) == len(sequence)
                wanted = _NO_LOGITS if which == _LAST_LOGITS and not is_last else which
                self._read_at_once([part], [state], wanted, logits[row:])
                row += {_NO_LOGITS: 0, _LAST_LOGITS: 1, _ALL_LOGITS: len(part)}[wanted]
        return None if which == _NO_LOGITS else logits

    def _has(self, states: list[State] | None) -> bool:
        """Whether the library takes these states, so that no piece is read before it refuses one."""
        if states is None:
            return True
        return len(set(map(id, states))) == len(states) and all(state._of is self._itself for state in states)

    def _read_at_once(
        self, sequences: list[np.ndarray], states: list[State] | None, which: int, logits: np.ndarray
    ) -> None:
        ids = np.concatenate(sequences)
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
        handles = None if states is None else (c_void_p * len(states))(*[state._handle.value for state in states])
        check(
            library.qdelta_model_read(
                self._handle, ids.ctypes.data, offsets.ctypes.data, len(sequences), handles, which, logits.ctypes.data
            )
        )

    # Text --------------------------------------------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with what the tokenizer's own files put around one."""
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}, expected str")
        data = text.encode("utf-8", errors="replace")
        count = c_int64()
        capacity = len(data) + 16  # a token is a byte at least, but for what is added
        while True:
            ids = np.empty(capacity, dtype=np.int32)
            check(
                library.qdelta_tokenize(
                    self._handle, data, len(data), int(add_special_tokens), ids.ctypes.data, capacity, byref(count)
                )
            )
            if count.value <= capacity:
                return ids[: count.value].tolist()
            capacity = count.value

    def decode(self, ids, keep_special_tokens: bool = False) -> str:
        array = _array("ids", ids).reshape(-1)
        if array.size > 0 and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= 2**31):
            raise ValueError(f"ids is {array.dtype} {array[:8].tolist()}, expected ids of tokens")
        array = np.ascontiguousarray(array, dtype=np.int32)
        length = c_int64()
        capacity = 16 * array.size + 64
        while True:
            text = ctypes.create_string_buffer(capacity)
            check(
                library.qdelta_detokenize(
                    self._handle, array.ctypes.data, array.size, int(keep_special_tokens), text, capacity, byref(length)
                )
            )
            if length.value <= capacity:
                return text.raw[: length.value].decode("utf-8", errors="replace")
            capacity = length.value

    def special_token(self, which: str) -> int | None:
        """The id of "bos", "eos" or "pad"; None where the tokenizer has none."""
        if not isinstance(which, str) or which not in _SPECIAL:
            raise ValueError(f"which is {which!r}, expected one of {', '.join(_SPECIAL)}")
        token = c_int32()
        check(library.qdelta_special_token(self._handle, _SPECIAL[which], byref(token)))
        return None if token.value < 0 else token.value

    # Generation --------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_at_eos: bool = True,
        state: State | None = None,
    ):
        """Continues a text, or a list of ids, and returns the new text, or the new ids. A temperature of 0 takes the most
        likely token. A state is continued; every token but the last new one has been read into it. A text gets the
        begin-of-text token where its tokenizer puts one, but not behind what a state has read already, and ends before an
        end-of-text token; ids need no tokenizer, and stop nowhere (stream() stops them)."""
        is_text = isinstance(prompt, str)
        begins = state is None or _checked("state", state).tokens == 0
        ids = self._ids("prompt", self.encode(prompt, add_special_tokens=begins) if is_text else prompt)
        new = list(self.stream(ids, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos and is_text, state))
        return self.decode(new) if is_text else new

    def stream(
        self,
        ids: Sequence[int],
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_at_eos: bool = True,
        state: State | None = None,
    ) -> Iterator[int]:
        """New ids, one by one. Nothing is read before the first is asked for."""
        ids = self._ids("ids", ids)
        for name, value in (("max_new_tokens", max_new_tokens), ("top_k", top_k), ("seed", 0 if seed is None else seed)):
            if not isinstance(value, Integral):
                raise TypeError(f"{name} is {value!r}, expected a whole number")
            if value < 0:
                raise ValueError(f"{name} is {value}, expected 0 or more")
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            if not isinstance(value, Real):
                raise TypeError(f"{name} is {value!r}, expected a number")
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature is {temperature}, expected 0 or more")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}, expected more than 0 and at most 1")
        state = self.state() if state is None else _checked("state", state)
        eos = self.special_token("eos") if stop_at_eos else None
        random = np.random.default_rng(seed)
        return self._stream(ids, state, max_new_tokens, eos, lambda logits: sample(logits, temperature, top_k, top_p, random))

    def _stream(self, ids: np.ndarray, state: State, count: int, eos: int | None, choose) -> Iterator[int]:
        logits = self._read([ids], [state], _LAST_LOGITS)[0]
        for number in range(count):
            token = choose(logits)
            if token == eos:
                return
            yield token
            if number + 1 < count:
                logits = self.next_logits([[token]], [state])[0]


def _array(name: str, ids) -> np.ndarray:
    try:
        return np.asarray(ids)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} is no array of integers: {error}") from None


def _as_list(name: str, given) -> list:
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"{name} is {type(given).__name__}, expected a list") from None


def _checked(name: str, state: State) -> State:
    if not isinstance(state, State):
        raise TypeError(f"{name} is {type(state).__name__}, expected a State")
    return state


def _model_folder(path: bytes) -> pathlib.Path:
    """Where the path is that of a run, its newest checkpoint, as the engine's commands take it."""
    path = pathlib.Path(os.fsdecode(path))
    if any((path / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return path
    steps = {folder: folder.name.removeprefix("step-") for folder in path.glob("checkpoints/step-*") if folder.is_dir()}
    steps = {folder: int(number) for folder, number in steps.items() if number.isdecimal()}
    return max(steps, key=steps.get, default=path)


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, random: np.random.Generator) -> int:
    """A token from logits [vocabulary]: of the top_k most likely (0: all), the fewest whose probabilities reach top_p."""
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    below = logits[order].astype(np.float64) - logits[order[0]]
    with np.errstate(over="ignore"):  # of next to no temperature: then all but the first are as good as impossible
        weights = np.exp(below / temperature)
    probabilities = weights / weights.sum()
    kept = int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1
    probabilities = probabilities[:kept] / probabilities[:kept].sum()
    return int(order[: len(probabilities)][random.choice(len(probabilities), p=probabilities)])
