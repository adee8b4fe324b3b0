"""qdelta.LanguageModel, which needs NumPy alone."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import qdelta


def read_safetensors(path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    types = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}
    found = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] in types:
            begin, end = about["data_offsets"]
            values = np.frombuffer(data[8 + size + begin : 8 + size + end], dtype=types[about["dtype"]])
            found[name] = values.reshape(about["shape"])
    return found


MODELS = ["qdelta_tiny", "qdelta_gva_tied", "gated_deltanet_tiny", "mamba_tiny", "mamba_published"]


@pytest.fixture(params=[(name, device) for device in ("cpu", "cuda") for name in MODELS], ids="-".join)
def case(request, golden):
    name, device = request.param
    folder = golden / "model" / name
    expected = read_safetensors(folder / "expected.safetensors")
    try:
        model = qdelta.LanguageModel.load(folder, device=device, dtype="f32")
    except qdelta.UnsupportedError as error:
        if device == "cpu":
            raise
        pytest.skip(str(error))
    return model, expected["input_ids"], expected["logits"]


@pytest.fixture
def with_bytes(tmp_path, golden):
    """A model of 97 tokens cannot read all bytes, but those below 97."""
    folder = tmp_path / "model"
    shutil.copytree(golden / "model" / "qdelta_tiny", folder)
    (folder / "qdelta_tokenizer.json").write_text('{"tokenizer": "bytes"}')
    return folder


def close(got, expected) -> bool:
    return np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


def test_logits_are_the_recorded_ones(case):
    model, ids, logits = case
    assert close(model.logits(ids), logits)
    assert close(model.logits(ids[0]), logits[0])
    assert close(model.next_logits(list(ids)), logits[:, -1])
    assert model.vocab_size == logits.shape[-1]
    assert model.config["hidden_size"] > 0 and model.parameter_count > 0


def test_states(case, tmp_path):
    model, ids, logits = case
    state = model.state()
    assert close(model.logits(ids[0][:5], state), logits[0, :5])
    assert state.tokens == 5
    copy = state.clone()
    state.save(tmp_path / "state")
    loaded = model.load_state(tmp_path / "state")
    for token in ids[0][5:]:
        last = model.next_logits([[token]], [state])[0]
    assert close(last, logits[0, -1])
    for other in (copy, loaded):
        assert other.tokens == 5
        assert close(model.logits(ids[0][5:], other), logits[0, 5:])
    fresh = model.state()
    model.read(ids[0][:-1], fresh)
    del model  # a state keeps what it needs
    assert fresh.tokens == ids.shape[1] - 1


def test_long_sequences_are_read_in_pieces_with_the_same_bits(case):
    """As the library itself reads them, which is what a model with larger pieces leaves to it."""
    model, ids, _ = case
    long = np.tile(ids[0], 1 + 1200 // ids.shape[1])[:1200]
    results = []
    pieces = model._piece
    for piece in (512, 1 << 30) if pieces == 512 else (pieces,):
        model._piece = piece
        one, other = model.state(), model.state()
        got = [model.logits(long[:700], one), model.next_logits([long, long[:3]], [one, other])]
        got.append(model.next_logits([[1], [2]], [one, other]))
        got.append(model.logits(np.stack([long[:400], long[400:800]])))
        model.read(long, other)
        assert (one.tokens, other.tokens) == (1901, 1204)
        results.append([*got, model.next_logits([[1]], [other])])
    for got in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(got, results[0], strict=True))
    for wrong, message in (([one, one], "twice"), ([one, None], "NoneType")):
        with pytest.raises((ValueError, TypeError), match=message):
            model.next_logits([long, long], wrong)
    assert one.tokens == 1901


def test_ctrl_c_ends_a_long_call(golden):
    """Within moments, and the state says how far it has come."""
    model = qdelta.LanguageModel.load(golden / "model" / "qdelta_tiny", threads=1)
    state, ids = model.state(), np.ones(50_000_000, dtype=np.int32)
    interrupt = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        model.read(ids, state)
    interrupt.join()
    assert 0 < state.tokens < len(ids) and state.tokens % 512 == 0
    assert np.isfinite(model.next_logits([[1]], [state])).all()


def test_states_of_another_model_are_refused_before_anything_is_read(golden):
    model, other = (qdelta.LanguageModel.load(golden / "model" / name) for name in ("qdelta_tiny", "mamba_tiny"))
    state, long = model.state(), [1] * 600
    with pytest.raises(ValueError, match="another model"):
        model.next_logits([long, long], [state, other.state()])
    assert state.tokens == 0


def test_greedy_generation_takes_the_most_likely_token(case):
    model, ids, _ = case
    prompt = ids[0][:6].tolist()
    new = model.generate(prompt, max_new_tokens=5, temperature=0)
    for n in range(5):
        assert new[n] == int(model.logits(prompt + new[:n])[-1].argmax())
    assert model.generate(prompt, 5, seed=1) == model.generate(prompt, 5, seed=1)
    assert model.generate(prompt, 5, top_k=1) == new
    assert model.generate(prompt, 5, top_p=1e-9) == new
    assert model.generate(prompt, 0) == []


def test_text(with_bytes):
    model = qdelta.LanguageModel.load(with_bytes)
    assert model.encode("A b") == [256, 65, 32, 98]
    assert model.encode("é", add_special_tokens=False) == [0xC3, 0xA9]
    assert model.decode([65, 32, 257]) == "A "
    assert model.decode([65, 257], keep_special_tokens=True) == "A<eos>"
    assert model.special_token("bos") == 256 and model.special_token("pad") is None
    assert len(model.decode([0xC3, 0xA9] * 1000)) == 1000


def test_a_run_is_its_newest_checkpoint(golden, tmp_path):
    for step, name in ((9, "mamba_tiny"), (10, "qdelta_tiny")):
        shutil.copytree(golden / "model" / name, tmp_path / "checkpoints" / f"step-{step:08d}")
    (tmp_path / "checkpoints" / "step-00000011.unfinished").mkdir()
    (tmp_path / "config.json").write_text("{}")
    named = qdelta.LanguageModel.load(golden / "model" / "qdelta_tiny")
    assert qdelta.LanguageModel.load(str(tmp_path)).logits([1, 2]).tolist() == named.logits([1, 2]).tolist()


def test_errors(golden, with_bytes, tmp_path):
    folder = golden / "model" / "qdelta_tiny"
    with pytest.raises(OSError, match="nowhere"):
        qdelta.LanguageModel.load("/nowhere")
    with pytest.raises(ValueError, match="device"):
        qdelta.LanguageModel.load(folder, device="tpu")
    with pytest.raises(ValueError, match="bf16"):
        qdelta.LanguageModel.load(folder, dtype="bf16")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(qdelta.CorruptFileError, match="JSON"):
        qdelta.LanguageModel.load(tmp_path)
    model = qdelta.LanguageModel.load(folder)
    with pytest.raises(ValueError, match="vocabulary"):
        model.logits([97])
    with pytest.raises(ValueError, match="ids"):
        model.logits([])
    with pytest.raises(ValueError, match="ids"):
        model.logits([0.5])
    with pytest.raises(ValueError, match="no tokenizer"):
        model.encode("text")
    with pytest.raises(ValueError, match="states"):
        model.next_logits([[1], [2]], [model.state()])
    with pytest.raises(ValueError, match="temperature"):
        model.generate([1], temperature=-1)
    with pytest.raises(ValueError, match="another model"):
        model.next_logits([[1]], [qdelta.LanguageModel.load(golden / "model" / "mamba_tiny").state()])


def test_wrong_arguments_are_named(golden, with_bytes):
    model = qdelta.LanguageModel.load(golden / "model" / "qdelta_tiny")
    state = model.state()
    for call, named in (
        (lambda: model.next_logits([]), "sequences is empty"),
        (lambda: model.next_logits(3), "sequences is int"),
        (lambda: model.next_logits([[1], []]), r"sequences\[1\] is"),
        (lambda: model.next_logits([[[1, 2], [3, 4]]]), r"sequences\[0\] is"),
        (lambda: model.next_logits([[1], [97]]), r"sequences\[1\] goes from 97 to 97"),
        (lambda: model.next_logits([[1]], state), "states is State"),
        (lambda: model.next_logits([[1]], [{}]), r"states\[0\] is dict"),
        (lambda: model.logits([1], {}), "state is dict"),
        (lambda: model.logits([[1], [1, 2]]), "ids is no array"),
        (lambda: model.read([[1], [2]], state), "ids is int64"),
        (lambda: model.read([1], None), "state is NoneType"),
        (lambda: model.generate(5), "prompt is int64"),
        (lambda: model.generate([1.5]), "prompt is float64"),
        (lambda: model.generate([1], -1), "max_new_tokens is -1"),
        (lambda: model.generate([1], temperature=float("nan")), "temperature is nan"),
        (lambda: model.generate([1], temperature=float("inf")), "temperature is inf"),
        (lambda: model.generate([1], temperature="1"), "temperature is '1'"),
        (lambda: model.generate([1], top_k=-1), "top_k is -1"),
        (lambda: model.generate([1], top_k=1.5), "top_k is 1.5"),
        (lambda: model.generate([1], top_p=float("nan")), "top_p is nan"),
        (lambda: model.generate([1], seed=-1), "seed is -1"),
        (lambda: model.generate([1], state={}), "state is dict"),
        (lambda: model.stream([1], temperature=-1), "temperature is -1"),  # before anything is asked of it
        (lambda: model.encode(5), "text is int"),
        (lambda: model.load(with_bytes, device=5), "device is 5"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{named}"):
            call()
    assert state.tokens == 0
    named = qdelta.LanguageModel.load(with_bytes)
    for wrong in ([1.5], [-1], np.array([2**32 + 65])):
        with pytest.raises(ValueError, match="^ids is "):
            named.decode(wrong)
    assert named.decode([]) == ""
    assert named.generate([1], np.int64(3), np.float32(0), np.int32(1)) == named.generate(np.array([1]), 3, 0)


def test_what_would_be_cut_down_to_something_else_is_refused(golden, tmp_path):
    folder = golden / "model" / "qdelta_tiny"
    model = qdelta.LanguageModel.load(folder)
    state = model.state()
    for call, named in (
        (lambda: model.load(f"{folder}\0x"), "folder is"),
        (lambda: model.load(5), "folder is int, expected a path"),
        (lambda: state.save(f"{tmp_path}/state\0x"), "path is"),
        (lambda: state.save(None), "path is NoneType, expected a path"),
        (lambda: model.load_state(f"{tmp_path}/state\0x"), "path is"),
        (lambda: model.load(folder, threads=2**32 + 1), "threads is 4294967297, expected 0 to 4096"),
        (lambda: model.load(folder, threads=-1), "threads is -1"),
        (lambda: model.load(folder, device=f"cuda:{2**32}"), "device is 'cuda:4294967296'"),
        (lambda: model.load(folder, device="cuda:\u00b2"), "device is"),
        (lambda: model.load(folder, device="cuda:"), "device is"),
        (lambda: model.decode([[1], [1, 2]]), "ids is no array of integers"),
        (lambda: model.special_token(["eos"]), "which is"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{named}"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-30])
def test_next_to_no_temperature_is_none(golden, temperature):
    model = qdelta.LanguageModel.load(golden / "model" / "qdelta_tiny")
    assert model.generate([1, 2], 5, temperature=temperature, seed=1) == model.generate([1, 2], 5, temperature=0)


def test_what_notebooks_show(golden):
    model = qdelta.LanguageModel.load(golden / "model" / "qdelta_tiny")
    assert repr(model).startswith("<qdelta.LanguageModel qdelta: ") and repr(model).endswith(" parameters, 97 tokens>")
    state = model.state()
    model.read([1, 2], state)
    assert repr(state) == "<qdelta.State after 2 tokens>"
    assert {"LanguageModel", "ops", "layers", "models", "register_fla_backend"} <= set(dir(qdelta))


def test_copies_are_states_of_their_own_and_what_is_no_handle_is_refused(golden):
    """Each frees what it has: two with one handle, or with something else, would end the program."""
    folder = golden / "model" / "qdelta_tiny"
    with pytest.raises(TypeError, match=r"^a LanguageModel is made by LanguageModel.load\(folder\)"):
        qdelta.LanguageModel(str(folder))
    with pytest.raises(TypeError, match=r"^a State is made by LanguageModel.state\(\)"):
        qdelta.State(None)
    model = qdelta.LanguageModel.load(folder)
    state = model.state()
    model.read([1, 2], state)
    for copied in (copy.copy(state), copy.deepcopy(state), copy.deepcopy({"state": state})["state"]):
        model.read([3], copied)
        assert (copied.tokens, state.tokens) == (3, 2)
    assert copy.copy(model) is model and copy.deepcopy(model) is model
    for one, instead in ((state, "save"), (model, "load")):
        with pytest.raises(TypeError, match=f"cannot be pickled: {instead}"):
            pickle.dumps(one)
    with pytest.raises(TypeError, match="^threads is '2'"):
        qdelta.LanguageModel.load(folder, threads="2")


def test_a_text_behind_a_state_has_no_begin_of_text_token(with_bytes, monkeypatch):
    """As `qdelta generate --load-state` and the server read it."""
    model = qdelta.LanguageModel.load(with_bytes)
    # No recorded model has a vocabulary that the byte tokenizer's own token is in.
    bytes_of = functools.partial(model.encode, add_special_tokens=False)
    monkeypatch.setattr(model, "encode", lambda text, add_special_tokens=True: [1] * add_special_tokens + bytes_of(text))
    parts, whole = model.state(), model.state()
    for text in ("12 ", "+ 3"):
        model.generate(text, max_new_tokens=0, state=parts)
    model.read(model.encode("12 + 3"), whole)
    assert parts.tokens == whole.tokens == 7
    assert close(*model.next_logits([[5], [5]], [parts, whole]))


@pytest.mark.parametrize(
    "missing, advice",
    [
        ("libcublasLt.so.13", "pip install 'nvidia-cublas==13.*'"),
        ("libcublasLt.so.12", "pip install nvidia-cublas-cu12"),
        ("libqdelta.so.0", "QDELTA_LIBRARY"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_named_at_its_first_use(missing, advice, tmp_path):
    code = f"""
import ctypes, sys
class Missing(ctypes.CDLL):
    def __init__(self, path, *rest, **options):
        raise OSError("{missing}: cannot open shared object file: No such file or directory")
import qdelta
tokens = qdelta.TokenShards  # need no library
ctypes.CDLL = Missing
for use in (lambda: qdelta.__version__, lambda: qdelta.LanguageModel.load("{tmp_path}")) * 2:
    try:
        use()
        sys.exit("no error")
    except ImportError as error:
        assert "{missing}" in str(error), error
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(advice) == 4, done.stdout


def test_type_checkers_read_the_annotations():
    assert (pathlib.Path(qdelta.__file__).parent / "py.typed").is_file()


def test_importing_the_package_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import qdelta; qdelta.LanguageModel; qdelta.ops"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "qdelta.ops needs torch" in done.stderr
