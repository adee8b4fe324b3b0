"""flash-linear-attention's own functions on qdelta's kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("fla")

import qdelta  # noqa: E402
from qdelta import ops  # noqa: E402
from recurrence_cases import DEVICES, gradient_errors, make_inputs, relative  # noqa: E402


@pytest.fixture(scope="module")
def registered():
    try:
        return qdelta.register_fla_backend()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("device", DEVICES)
def test_functions_of_fla_run_on_our_kernels(registered, device):
    assert registered == ["chunk_gated_delta_rule", "fused_recurrent_simple_gla", "fused_chunk_simple_gla"]
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    i = {name: x.requires_grad_() for name, x in make_inputs(device, V=48).items()}
    arguments = [i[name] for name in ("q", "k", "v", "g", "beta")]
    options = {"initial_state": i["initial_state"], "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    o, ht = chunk_gated_delta_rule(*arguments, **options)
    wanted, states = ops.chunk_gated_delta_rule(*arguments, **options)
    assert torch.equal(o, wanted) and torch.equal(ht, states)
    assert "qdelta" in repr(type(o.grad_fn)).lower()  # not FLA's own, which needs a GPU besides
    o.sum().backward()
    assert i["q"].grad is not None


def test_functions_with_a_registry_of_their_own(registered):
    from fla.ops.simple_gla import fused_chunk_simple_gla, fused_recurrent_simple_gla

    i = make_inputs(H=4)
    o, _ = fused_recurrent_simple_gla(i["q"], i["k"], i["v"], i["g"])
    assert torch.equal(o, ops.fused_recurrent_simple_gla(i["q"], i["k"], i["v"], i["g"])[0])
    o, ht = fused_chunk_simple_gla(i["q"], i["k"], i["v"], i["g"], output_final_state=True)
    for got, wanted in zip((o, ht), ops.chunk_simple_gla(i["q"], i["k"], i["v"], i["g"], output_final_state=True), strict=True):
        assert torch.equal(got, wanted)


def test_what_is_not_taken(registered):
    from qdelta.fla_backend import _verifier

    verify = _verifier("chunk_gated_delta_rule")
    i = make_inputs()
    arguments = [i[name] for name in ("q", "k", "v", "g", "beta")]
    assert verify(*arguments) == (True, None)
    assert not verify(*[x.half() for x in arguments])[0]
    assert not verify(*arguments, cp_context=object())[0]
    assert not verify(arguments[0])[0]


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here: the rest of FLA's models is Triton")
def test_a_model_of_fla_unchanged(registered, monkeypatch):
    """FLA's own Gated DeltaNet, heads of V = 2K, with the recurrence computed here: logits and gradients of our model."""
    theirs = pytest.importorskip("fla.models")
    pytest.importorskip("transformers")
    from qdelta.models import GatedDeltaNetConfig, QDeltaForCausalLM
    from qdelta.ops import _rules

    calls = []
    recurrence = _rules.recurrence
    monkeypatch.setattr(_rules, "recurrence", lambda *a, **k: calls.append(a[0]) or recurrence(*a, **k))
    shape = {
        "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 32, "expand_v": 2,
        "initializer_range": 0.1,
    }  # fmt: skip
    torch.manual_seed(0)
    model = theirs.GatedDeltaNetForCausalLM(theirs.GatedDeltaNetConfig(**shape, fuse_cross_entropy=False)).cuda()
    ids = torch.randint(0, 97, (2, 100), device="cuda")
    logits = model(ids, use_cache=False).logits
    assert calls == ["gated_delta"] * 2
    ours = QDeltaForCausalLM(GatedDeltaNetConfig(**shape)).cuda()
    ours.load_state_dict(model.state_dict())
    wanted = ours(ids, use_cache=False).logits
    assert relative(logits, wanted) < 1e-3
    do = torch.randn_like(logits)
    logits.backward(do)
    wanted.backward(do)
    errors = gradient_errors(*({name: p.grad for name, p in m.named_parameters()} for m in (model, ours)))
    assert max(errors.values()) < 1e-2, errors


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here: FLA's models are Triton")
def test_a_delta_net_of_fla_in_the_engine(tmp_path):
    """FLA's own DeltaNet, saved by it, read natively: its logits."""
    theirs = pytest.importorskip("fla.models")
    for options in ({}, {"use_gate": True, "qk_norm": "l2", "qk_activation": "silu"}):
        shape = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "initializer_range": 0.1}
        torch.manual_seed(0)
        model = theirs.DeltaNetForCausalLM(theirs.DeltaNetConfig(**shape, fuse_cross_entropy=False, **options)).cuda().eval()
        ids = torch.randint(0, 97, (2, 50), device="cuda")
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits
        folder = tmp_path / str(len(options))
        model.save_pretrained(folder)
        for device in ("cpu", "cuda"):
            native = qdelta.LanguageModel.load(folder, device=device, dtype="f32").logits(ids.cpu().numpy())
            assert relative(torch.from_numpy(native), logits) < 1e-3, (device, options)
