"""Models of transformers beside the native engine: the same folders, the same logits."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import qdelta  # noqa: E402
from qdelta.models import GatedDeltaNetConfig, QDeltaConfig, QDeltaForCausalLM, RecurrentCache  # noqa: E402
from recurrence_cases import DEVICES, RULES, gradient_errors, relative  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

devices = pytest.mark.parametrize("device", DEVICES)
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 8, "expand_v": 2,
    "intermediate_size": 48, "initializer_range": 0.3,
}  # fmt: skip
# Every mixer, and every option that changes what a model computes.
VARIANTS = {
    **{rule: {"rule": rule} for rule in RULES},
    "mamba": {"rule": "mamba", "state_size": 8},
    "mixed": {"layer_types": ["q_delta", "mamba"], "state_size": 8},
    "grouped_tied": {"num_v_heads": 4, "tie_word_embeddings": True},
    "no_conv_no_gate": {"use_short_conv": False, "use_gate": False},
    "sigmoid_gate": {"output_gate_activation": "sigmoid"},
    "negative_eigenvalues": {"allow_neg_eigval": True},
    "constant_bias": {"lamb_bias": 0.8},
    "fixed_lambda_no_decay": {"fixed_lambda": 0.5, "use_decay": False},
    "no_mlp": {"use_mlp": False},
}


def make(**options) -> QDeltaForCausalLM:
    torch.manual_seed(0)
    rule = options.get("rule")
    config = GatedDeltaNetConfig if rule == "gated_delta" else QDeltaConfig
    return AutoModelForCausalLM.from_config(config(**SMALL, **options)).eval()


def ids(batch=2, tokens=70, seed=0):
    return torch.randint(0, 61, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@devices
@pytest.mark.parametrize("name", ["qdelta_tiny", "qdelta_gva_tied", "gated_deltanet_tiny", "gated_deltanet_sigmoid", "mamba_tiny"])
def test_recorded_folders(golden, name, device):
    folder = golden / "model" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    expected = load_file(folder / "expected.safetensors")
    given = expected["input_ids"].long().to(device)
    with torch.no_grad():
        logits = model(given).logits
    assert relative(logits, expected["logits"]) < 1e-5
    loss = model(given, labels=given, use_cache=False).loss
    assert abs(loss.item() - expected["loss"].item()) < 1e-5 * expected["loss"].item()
    loss.backward()
    gradients = {key[5:]: value for key, value in expected.items() if key.startswith("grad.")}
    assert gradients
    found = {key: parameter.grad for key, parameter in model.named_parameters() if key in gradients}
    errors = gradient_errors(found, gradients)
    assert max(errors.values()) < 1e-4, errors


@devices
@pytest.mark.parametrize("name", VARIANTS)
def test_saved_folders_load_natively_and_again(name, device, tmp_path):
    model = make(**VARIANTS[name]).to(device)
    with torch.no_grad():
        logits = model(ids().to(device)).logits
    model.save_pretrained(tmp_path)
    native = qdelta.LanguageModel.load(tmp_path, device=device, dtype="f32")
    assert relative(torch.from_numpy(native.logits(ids().numpy())), logits) < 1e-5
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).to(device).eval()
    with torch.no_grad():
        assert torch.equal(again(ids().to(device)).logits, logits)
    # What the engine makes of the config.json is the same model once more.
    (tmp_path / "config.json").write_text(json.dumps(native.config))
    third = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).to(device).eval()
    with torch.no_grad():
        assert relative(third(ids().to(device)).logits, logits) < 1e-6


@pytest.mark.parametrize("rule", [*RULES, "mamba", "q_delta,mamba"])
def test_natively_trained_runs(rule, binary, tmp_path):
    """A run of the engine's own: its checkpoint, as transformers and as the engine itself read it."""
    text, run = tmp_path / "text", tmp_path / "run"
    text.write_text("The river runs past the mill. " * 100)
    flags = ["--threads", 1, "--steps", 2, "--rows", 1, "--seq-len", 64]
    flags += ["--hidden-size", 32, "--layers", 2, "--heads", 2, "--head-dim", 8]
    command = [binary, "train", "--text", text, "--out", run, "--rule", rule, *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = (run / "checkpoints").glob("step-*")
    native = qdelta.LanguageModel.load(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = AutoTokenizer.from_pretrained(folder)("past the mill", return_tensors="pt").input_ids
    assert prompt[0].tolist() == native.encode("past the mill")
    with torch.no_grad():
        logits = model(prompt).logits
    assert relative(torch.from_numpy(native.logits(prompt.numpy())), logits) < 1e-5
    new = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert new[0, prompt.shape[1] :].tolist() == native.generate(prompt[0].tolist(), 5, temperature=0)


# Options of FLA's older versions that make other models.
OLDER = {"use_rope": True, "norm_first": True, "share_conv_kernel": True, "use_elu": True, "clamp_min": -32.0, "clamp_max": 32.0}


@pytest.mark.parametrize("use_gate", [False, True])
def test_delta_net_folders_load_natively(use_gate, tmp_path):
    """With the keys of FLA's own config.json. Its code runs only on a GPU: see test_fla_backend.py."""
    model = make(rule="delta", use_gate=use_gate)
    with torch.no_grad():
        logits = model(ids()).logits
    model.save_pretrained(tmp_path)
    config = {
        "model_type": "delta_net", "architectures": ["DeltaNetForCausalLM"], "vocab_size": 61, "hidden_size": 32,
        "num_hidden_layers": 2, "num_heads": 2, "expand_k": 0.5, "expand_v": 1, "use_gate": use_gate, "use_short_conv": True,
        "conv_size": 4, "use_beta": True, "use_output_norm": True, "qk_norm": "l2", "qk_activation": "silu", "hidden_ratio": 4,
        "intermediate_size": 48, "hidden_act": "swish", "norm_eps": 1e-6, "tie_word_embeddings": False, "attn": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert relative(torch.from_numpy(qdelta.LanguageModel.load(tmp_path).logits(ids().numpy())), logits) < 1e-5
    for key, value in {"qk_norm": "sum", **OLDER}.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(qdelta.UnsupportedError, match=key):
            qdelta.LanguageModel.load(tmp_path)


@devices
@pytest.mark.parametrize("name", [*RULES, "mamba", "mixed", "no_conv_no_gate"])
def test_cache_and_generation(name, device, tmp_path):
    model = make(**VARIANTS[name]).to(device)
    prompt = ids(tokens=20).to(device)
    with torch.no_grad():
        whole = model(prompt).logits
        first = model(prompt[:, :7], use_cache=True)
        cache = first.past_key_values
        assert isinstance(cache, RecurrentCache)
        logits = [first.logits]
        for t in range(7, 20):
            step = model(prompt[:, t : t + 1], past_key_values=cache, use_cache=True)
            logits.append(step.logits)
    assert relative(torch.cat(logits, 1), whole) < 1e-5
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    new = model.generate(prompt, max_new_tokens=6, **options)
    slow = model.generate(prompt, max_new_tokens=6, use_cache=False, **options)
    assert torch.equal(new, slow)
    model.save_pretrained(tmp_path)
    native = qdelta.LanguageModel.load(tmp_path, device=device, dtype="f32").generate(prompt[0].tolist(), 6, temperature=0)
    assert new[0, 20:].tolist() == native
    beams = model.generate(prompt, max_new_tokens=4, num_beams=3, **options)
    assert beams.shape == (2, 24)


GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 5}


def read(model, *pieces, **options) -> RecurrentCache:
    cache = RecurrentCache(2)
    with torch.no_grad():
        for piece in pieces:
            model(piece, past_key_values=cache, **options)
    return cache


@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_generation_goes_on_from_a_cache(name):
    model = make(**VARIANTS[name])
    prompt = ids(tokens=25).clamp(min=1)  # 0 would be taken for padding
    wanted = model.generate(prompt, **GREEDY)
    after = lambda tokens: {"past_key_values": read(model, prompt[:, :tokens])}  # noqa: E731
    assert torch.equal(model.generate(prompt, **after(20), **GREEDY), wanted)
    assert torch.equal(model.generate(prompt, **after(24), **GREEDY), wanted)
    # The new tokens alone, where the mask says how many there are in all.
    rest = model.generate(prompt[:, 20:], attention_mask=torch.ones_like(prompt), **after(20), **GREEDY)
    assert torch.equal(rest[:, 5:], wanted[:, 25:])
    vectors = model.get_input_embeddings()(prompt)
    assert torch.equal(model.generate(inputs_embeds=vectors, **after(20), **GREEDY), wanted[:, 25:])
    for given, tokens in ((prompt, 25), (prompt[:, :10], 25), (prompt[:, 20:], 20)):
        with pytest.raises(ValueError, match=f"^past_key_values has read {tokens} tokens"):
            model.generate(given, **after(tokens), **GREEDY)
    mask = torch.ones_like(prompt)
    mask[1, 0] = 0  # or transformers leaves it out
    with pytest.raises(ValueError, match="^past_key_values has read 10 of 25 tokens"):
        model.generate(prompt[:, 20:], attention_mask=mask, **after(10), **GREEDY)
    with pytest.raises(ValueError, match="cu_seqlens"):
        model.generate(prompt[:1], cu_seqlens=torch.tensor([0, 10, 25]), **GREEDY)


@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_a_prompt_is_read_in_chunks(name):
    model = make(**VARIANTS[name])
    prompt = ids(tokens=25).clamp(min=1)  # 0 would be taken for padding
    mask = torch.ones_like(prompt)
    mask[1, :9] = 0
    for given in ({}, {"attention_mask": mask}):
        new = model.generate(prompt, past_key_values=RecurrentCache(2), prefill_chunk_size=4, **given, **GREEDY)
        assert torch.equal(new, model.generate(prompt, **given, **GREEDY))


def test_what_generation_returns_beside_the_tokens():
    options = {"return_dict_in_generate": True, "output_hidden_states": True, "output_logits": True}
    found = make(rule="q_delta").generate(ids().clamp(min=1), **options, **GREEDY)
    assert [len(found.logits), len(found.hidden_states)] == [5, 5]
    assert [x.shape for x in found.hidden_states[0]] == 3 * [(2, 70, 32)]
    assert [x.shape for x in found.hidden_states[4]] == 3 * [(2, 1, 32)]


@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_padding_behind_tokens_that_were_read_is_refused(name):
    model = make(**VARIANTS[name])
    mask = torch.ones(2, 70, dtype=torch.long)
    mask[1, :30] = 0
    with torch.no_grad():
        # Padding in several pieces is padding still.
        cache = read(model, ids()[:, :20], attention_mask=mask[:, :20])
        pieces = [model(ids()[:, b:e], attention_mask=mask[:, b:e], past_key_values=cache).logits for b, e in ((20, 40), (40, 70))]
        whole = model(ids(), attention_mask=mask).logits
        assert relative(torch.cat(pieces, 1)[1, 10:], whole[1, 30:]) < 1e-5
        for given in (mask, torch.cat([torch.ones(2, 20, dtype=torch.long), mask], 1)):
            with pytest.raises(ValueError, match="^attention_mask hides tokens after those that past_key_values"):
                model(ids(), attention_mask=given, past_key_values=read(model, ids(tokens=20)))


def test_rows_of_collators_that_pack():
    """transformers' own, as its Trainer uses it: position_ids that begin again, and offsets where it is asked for them."""
    model = make(rule="q_delta")
    rows = [ids(1, tokens, seed=tokens)[0].tolist() for tokens in (16, 17, 30)]
    losses = [model(torch.tensor([row]), labels=torch.tensor([row])).loss * (len(row) - 1) for row in rows]
    wanted = sum(losses) / sum(len(row) - 1 for row in rows)
    features = [{"input_ids": row} for row in rows]
    batch = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")(features)
    assert abs(model(**batch).loss - wanted) < 1e-5 * wanted
    with pytest.raises(ValueError, match="^position_ids begin again"):
        model(**transformers.DataCollatorWithFlattening(return_tensors="pt")(features))
    # Those of one sequence in a row say nothing new, padded or not.
    mask = torch.ones(2, 70, dtype=torch.long)
    mask[1, :30] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    assert torch.equal(model(ids(), attention_mask=mask, position_ids=positions).logits, model(ids(), attention_mask=mask).logits)


@devices
@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_left_padding_and_packing(name, device):
    model = make(**VARIANTS[name]).to(device)
    long, short = ids(1, 70)[0].to(device), ids(1, 40, seed=1)[0].to(device)
    with torch.no_grad():
        alone = model(short[None]).logits[0]
        padded = torch.stack([long, torch.cat([torch.zeros_like(long[:30]), short])])
        mask = torch.ones_like(padded)
        mask[1, :30] = 0
        assert relative(model(padded, attention_mask=mask).logits[1, 30:], alone) < 1e-5
        packed = torch.cat([long, short])[None]
        together = model(packed, cu_seqlens=torch.tensor([0, 70, 110], device=device)).logits[0]
        assert relative(together[70:], alone) < 1e-5
        assert relative(together[:70], model(long[None]).logits[0]) < 1e-5
    with pytest.raises(ValueError, match="left"):
        model(padded, attention_mask=mask.flip(1))


def errors_on_packed_sequences(model, device) -> tuple[float, dict[str, float]]:
    """Of a loss on packed sequences and of its gradients, beside those of the sequences one by one."""
    parameters = dict(model.named_parameters())
    parts = [ids(1, tokens, seed=tokens).to(device) for tokens in (70, 1, 40)]
    total = 0
    for part in parts:
        total = total + model(part, use_cache=False).logits.square().sum()
    offsets = torch.tensor([0, 70, 71, 111], device=device)
    packed = model(torch.cat(parts, 1), cu_seqlens=offsets).logits.square().sum()
    found, wanted = (dict(zip(parameters, torch.autograd.grad(x, parameters.values()), strict=True)) for x in (packed, total))
    return relative(packed, total), gradient_errors(found, wanted)


@devices
@pytest.mark.parametrize("name", ["q_delta", "grouped_tied", "mamba"])
def test_training_on_packed_sequences(name, device):
    """Gradients are those of the sequences one by one."""
    error, errors = errors_on_packed_sequences(make(**VARIANTS[name]).to(device).train(), device)
    assert error < 1e-5
    assert max(errors.values()) < 1e-4, errors


# Each gate's projection, by the argument of the recurrence that it makes.
GATES = {"g": "a_proj", "beta": "b_proj", "lamb": "lamb_proj"}


@pytest.mark.parametrize("gate", GATES)
def test_gradients_that_mix_packed_sequences_are_noticed(gate, monkeypatch):
    """The test above on a recurrence whose results are right, but one gate's gradient is that of one long sequence."""
    from qdelta.layers import delta_net

    right = delta_net.recurrence

    def wrong(rule, q, k, v, g, beta, lamb, cu_seqlens=None, **options):
        gates = {"g": g, "beta": beta, "lamb": lamb}
        if cu_seqlens is None:
            return right(rule, q, k, v, **gates, **options)
        o, after = right(rule, q, k, v, **{**gates, gate: gates[gate].detach()}, cu_seqlens=cu_seqlens, **options)
        fixed = {name: x.detach() for name, x in gates.items() if name != gate}
        mixed, _ = right(rule, q.detach(), k.detach(), v.detach(), **fixed, **{gate: gates[gate]}, **options)
        return o + (mixed - mixed.detach()), after

    monkeypatch.setattr(delta_net, "recurrence", wrong)
    error, errors = errors_on_packed_sequences(make(rule="q_delta").train(), "cpu")
    assert error < 1e-5
    for layer in range(2):
        assert errors[f"model.layers.{layer}.attn.{GATES[gate]}.weight"] > 1e-2, errors


@devices
def test_gradient_checkpointing_gives_the_same_gradients(device):
    model = make(rule="q_delta").to(device).train()
    results = []
    for enable in (False, True):
        (model.gradient_checkpointing_enable if enable else model.gradient_checkpointing_disable)()
        assert model.is_gradient_checkpointing == enable
        model.zero_grad()
        model(ids().to(device), labels=ids().to(device)).loss.backward()
        results.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_nothing_to_read(name):
    """No sequences, or none of their tokens."""
    model = make(**VARIANTS[name])
    cache = RecurrentCache(2)
    with torch.no_grad():
        for B, T in ((2, 0), (0, 5)):
            given = torch.zeros(B, T, dtype=torch.long)
            assert model(given, attention_mask=torch.ones_like(given)).logits.shape == (B, T, 61)
        pieces = [model(ids()[:, begin:end], past_key_values=cache).logits for begin, end in ((0, 0), (0, 40), (40, 40), (40, 70))]
        assert relative(torch.cat(pieces, 1), model(ids()).logits) < 1e-5
        mask = torch.ones(2, 70, dtype=torch.long)
        assert model(ids()[:, :0], past_key_values=cache, attention_mask=mask).logits.shape == (2, 0, 61)


@pytest.mark.parametrize("name", ["q_delta", "mamba"])
def test_wrong_arguments_are_named(name):
    model, cache = make(**VARIANTS[name]), RecurrentCache(2)
    model(ids(), past_key_values=cache)
    offsets = torch.tensor([0, 30, 70])
    for options, named in (
        ({"input_ids": ids()[0]}, "input_ids has shape"),
        ({"inputs_embeds": torch.randn(10, 32)}, "inputs_embeds has shape"),
        ({"input_ids": ids(3), "past_key_values": cache}, "past_key_values is of a batch of 2"),
        ({"input_ids": ids(), "past_key_values": RecurrentCache(3)}, "past_key_values is of a model with 3"),
        ({"input_ids": ids(1), "cu_seqlens": offsets, "past_key_values": RecurrentCache(2)}, "past_key_values is given beside"),
        ({"input_ids": ids(), "labels": ids()[:, 1:]}, "labels has shape"),
        ({"input_ids": ids(), "labels": ids(), "logits_to_keep": 1}, "labels has shape"),
        ({"input_ids": ids(), "attention_mask": torch.ones(1, 70)}, "attention_mask has shape"),
        ({"input_ids": ids(), "attention_mask": torch.ones(2, 69)}, "attention_mask has shape"),
    ):
        with pytest.raises(ValueError, match=f"^{named}"):
            model(**options)


@pytest.mark.parametrize("name", ["input_ids", "inputs_embeds", "attention_mask", "labels"])
def test_what_is_no_tensor_is_named(name):
    given = {} if name == "inputs_embeds" else {"input_ids": ids()}
    with pytest.raises(TypeError, match=f"^{name} is list, expected a tensor"):
        make(rule="q_delta")(**{**given, name: ids().tolist()})


def test_defaults_are_those_of_the_configuration():
    model = make(rule="q_delta")
    assert isinstance(model(ids()).past_key_values, RecurrentCache) and model(ids()).hidden_states is None
    model.config.use_cache, model.config.output_hidden_states = False, True
    found = model(ids())
    assert found.past_key_values is None and len(found.hidden_states) == 3
    assert model(ids(), output_hidden_states=False).hidden_states is None
    model.config.return_dict = False
    assert [type(x) for x in model(ids())] == [torch.Tensor, tuple]
    assert model(ids(), return_dict=True).logits is not None


def test_shapes_without_values():
    """As what estimates memory computes them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        loss = make(rule="q_delta")(torch.zeros(2, 20, dtype=torch.long), torch.ones(2, 20), labels=torch.zeros(2, 20).long()).loss
        loss.backward()
    assert loss.shape == ()


def test_compiled_model_has_no_graph_break():
    model = make(rule="q_delta").train()
    loss = lambda x: model(x, labels=x, use_cache=False).loss  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert relative(compiled(ids()), loss(ids())) < 1e-5


@pytest.mark.parametrize("rule", ["q_delta", "mamba"])
def test_what_a_folder_lacks_gets_initial_values_and_nothing_else_does(rule, tmp_path):
    model = make(rule=rule, state_size=8)
    model.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    mixer = "attn" if rule == "q_delta" else "mixer"
    names = {name.partition(f".{mixer}.")[2] for name in whole if f".{mixer}." in name}
    constants = {"lamb_bias": -0.8, "D": 1, "conv1d.bias": 0, "dt_proj.bias": 0, "o_norm.weight": 1}
    for name in sorted(names):
        missing = {f"model.layers.{layer}.{mixer}.{name}" for layer in range(2)}
        save_file({key: x for key, x in whole.items() if key not in missing}, tmp_path / "model.safetensors", {"format": "pt"})
        found = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
        assert all(torch.equal(found[key], x) for key, x in whole.items() if key not in missing), name
        for key in missing:
            assert found[key].isfinite().all() and found[key].abs().max() < 20, key
            assert name not in constants or (found[key] == constants[name]).all(), key
            assert name != "A_log" or rule != "mamba" or torch.equal(found[key], whole[key])


def test_configuration(tmp_path):
    config = QDeltaConfig(**SMALL, layer_types=["q_delta", "mamba"])
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["layer_types"] == ["q_delta", "mamba"] and "rule" not in written and written["model_type"] == "qdelta"
    assert AutoConfig.from_pretrained(tmp_path).mixers == ["q_delta", "mamba"]
    with pytest.raises(ValueError, match="layer_types"):
        QDeltaConfig(**SMALL, layer_types=["q_delta"])
    with pytest.raises(ValueError, match="nonsense"):
        make(rule="nonsense")
    of_fla = {"attn": {"layers": [1], "num_heads": 2}, "hidden_act": "gelu", "conv_bias": True, **OLDER}
    for other in ({key: value} for key, value in of_fla.items()):
        for kind in (QDeltaConfig, GatedDeltaNetConfig):
            with pytest.raises(ValueError, match=f"^{next(iter(other))} is "):
                kind(**SMALL, **other)
    QDeltaConfig(**SMALL, use_rope=False, norm_first=False, share_conv_kernel=False, clamp_min=None)
    with pytest.raises(ValueError, match="multiple"):
        make(rule="delta", num_v_heads=3)


def test_tokenizers_of_the_engine(golden, tmp_path):
    fixtures = golden.parent / "data" / "fixtures"
    texts = ["Hello, world!", "  two  spaces", "naïve café 🌍 漢字", ""]
    for name in ("gpt2_style.json", "llama3_style.json"):
        folder = tmp_path / name
        shutil.copytree(golden / "model" / "qdelta_tiny", folder)
        shutil.copy(fixtures / name, folder / "tokenizer.json")
        native, ours = qdelta.LanguageModel.load(folder), AutoTokenizer.from_pretrained(folder)
        for text in texts:
            assert ours(text, add_special_tokens=False).input_ids == native.encode(text, add_special_tokens=False), name


@pytest.mark.parametrize("name", ["bpe", "bpe_unknown", "bpe_user", "unigram"])
def test_sentencepiece_in_autotokenizer(name, golden, tmp_path):
    """Ids and texts of the engine, and again from what save_pretrained writes."""
    pytest.importorskip("sentencepiece")
    folder, again = tmp_path / "model", tmp_path / "again"
    for place in (folder, again):
        shutil.copytree(golden / "model" / "qdelta_tiny", place)
    shutil.copy(golden.parent / "data" / "fixtures" / f"{name}.model", folder / "tokenizer.model")
    native, ours = qdelta.LanguageModel.load(folder), AutoTokenizer.from_pretrained(folder)
    ours.save_pretrained(again)
    texts = ("Hello", "", "  two  spaces ", "na\u00efve caf\u00e9 \U0001f30d\n\u6f22\u5b57", "<s>x</s><unk>")
    for tokenizer in (ours, AutoTokenizer.from_pretrained(again), pickle.loads(pickle.dumps(ours))):
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == tuple(map(native.special_token, ("bos", "eos")))
        for text in texts:
            ids = native.encode(text)
            assert tokenizer(text).input_ids == ids, text
            assert tokenizer(text, add_special_tokens=False).input_ids == native.encode(text, add_special_tokens=False), text
            assert tokenizer.decode(ids, skip_special_tokens=True) == native.decode(ids), text
    assert qdelta.LanguageModel.load(again).encode(texts[3]) == native.encode(texts[3])
    assert ours.decode(native.encode("Hello")).startswith("<s>")
    mask = ours(texts[0], return_special_tokens_mask=True).special_tokens_mask
    assert mask == [1] + [0] * (len(mask) - 1)
    ours.add_tokens(["<new>"])
    added = ours("Hello<new>").input_ids
    assert added[-1] == ours.vocab_size and added[:-1] == native.encode("Hello")


def test_bytes_in_autotokenizer(golden, binary, tmp_path):
    """The tokenizer that the engine writes beside shards and checkpoints."""
    (tmp_path / "text").write_text("The river runs past the mill.")
    folder = tmp_path / "model"
    shutil.copytree(golden / "model" / "qdelta_tiny", folder)
    subprocess.run([binary, "tokenize", tmp_path / "text", "--tokenizer", "bytes", "--out", folder], check=True)
    native, ours = qdelta.LanguageModel.load(folder), AutoTokenizer.from_pretrained(folder)
    again = tmp_path / "again"
    shutil.copytree(golden / "model" / "qdelta_tiny", again)
    ours.save_pretrained(again)
    assert qdelta.LanguageModel.load(again).encode("a<eos>") == native.encode("a<eos>")
    for text in ("Hello", "", "  na\u00efve \U0001f30d\n", "a<eos><bos>"):
        assert ours(text).input_ids == native.encode(text)
        assert ours.decode(ours(text).input_ids, skip_special_tokens=True) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (256, 257)
