"""Every rule against the recurrence in float64: outputs, states, gradients; and against other implementations of it."""

from __future__ import annotations

import importlib
import inspect

import pytest

torch = pytest.importorskip("torch")

from qdelta import ops  # noqa: E402
from recurrence_cases import DEVICES, RULES, gates_of, make_inputs, reference, relative  # noqa: E402

devices = pytest.mark.parametrize("device", DEVICES)
rules = pytest.mark.parametrize("rule", RULES)
# Of float32 the rounding of sums; of bfloat16 that of operands and of outputs (2^-9).
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def run(rule, inputs, l2norm=True, cu_seqlens=None, final=True, **options):
    values = {name: inputs[name] for name in ("q", "k", "v", "initial_state")}
    return ops.recurrence(
        rule,
        **values,
        **gates_of(rule, inputs),
        output_final_state=final,
        use_qk_l2norm_in_kernel=l2norm,
        cu_seqlens=cu_seqlens,
        **options,
    )


def expected(rule, inputs, **options):
    values = {name: inputs[name] for name in ("q", "k", "v", "initial_state")}
    return reference(rule, **values, **gates_of(rule, inputs), **options)


def leaves(inputs):
    return {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}


@devices
@rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients(rule, dtype, device):
    inputs = leaves(make_inputs(device, dtype))
    o, ht = run(rule, inputs)
    do, dht = torch.randn_like(o), torch.randn_like(ht)
    ((o * do).sum() + (ht * dht).sum()).backward()
    exact = leaves(inputs)
    o_exact, ht_exact = expected(rule, exact)
    ((o_exact * do.double()).sum() + (ht_exact * dht.double()).sum()).backward()
    assert o.dtype == dtype and ht.dtype == torch.float32
    assert relative(o, o_exact) < TOLERANCE[dtype]
    assert relative(ht, ht_exact) < TOLERANCE[dtype]
    for name, given in inputs.items():
        if exact[name].grad is None:
            assert given.grad is None, name
            continue
        assert given.grad.dtype == given.dtype
        assert relative(given.grad, exact[name].grad) < TOLERANCE[dtype], name


@devices
@rules
def test_no_l2norm_scale_and_no_states(rule, device):
    inputs = make_inputs(device, T=70)
    inputs["k"] = inputs["k"] / 8
    inputs["initial_state"] = None
    with torch.no_grad():
        o, ht = run(rule, inputs, l2norm=False, final=False, scale=0.3)
        o_exact, _ = expected(rule, inputs, l2norm=False, scale=0.3)
    assert ht is None
    assert relative(o, o_exact) < 2e-5


@devices
@rules
@pytest.mark.parametrize("offsets", [[0, 100], [0, 1, 64, 64, 100], [0, 63, 100]])
def test_packed_sequences(rule, offsets, device):
    inputs = leaves(make_inputs(device, B=1, N=len(offsets) - 1))
    cu_seqlens = torch.tensor(offsets, device=device)
    o, ht = run(rule, inputs, cu_seqlens=cu_seqlens)
    do, dht = torch.randn_like(o), torch.randn_like(ht)
    ((o * do).sum() + (ht * dht).sum()).backward()
    exact = leaves(inputs)
    o_exact, ht_exact = expected(rule, exact, offsets=offsets)
    ((o_exact * do.double()).sum() + (ht_exact * dht.double()).sum()).backward()
    assert relative(o, o_exact) < 2e-5
    assert relative(ht, ht_exact) < 2e-5
    for name, given in inputs.items():
        if given.grad is not None:
            assert relative(given.grad, exact[name].grad) < 3e-5, name


@devices
def test_packed_sequences_that_are_cut_elsewhere(device):
    """Calls of one shape, but with other numbers of chunks, forward and backward."""
    for offsets in ([0, 10, 100], [0, 64, 100], [0, 10, 100], [0, 100, 100]):
        inputs = leaves(make_inputs(device, B=1, N=2))
        o, _ = run("q_delta", inputs, cu_seqlens=torch.tensor(offsets))
        exact = leaves(inputs)
        o_exact, _ = expected("q_delta", exact, offsets=offsets)
        assert relative(o, o_exact) < 2e-5
        do = torch.randn_like(o)
        o.backward(do)
        o_exact.backward(do.double())
        for name, given in inputs.items():
            assert relative(given.grad, exact[name].grad) < 3e-5, (name, offsets)


@devices
def test_offsets_on_the_cpu_beside_those_on_the_device(device):
    i = make_inputs(device, B=1, N=2)
    arguments = [i[name] for name in ("q", "k", "v", "g", "beta")]
    offsets = torch.tensor([0, 30, 100])
    key = {"use_qk_l2norm_in_kernel": True, "cu_seqlens": offsets.to(device)}
    wanted, _ = ops.chunk_gated_delta_rule(*arguments, **key)
    got, _ = ops.chunk_gated_delta_rule(*arguments, **key, cu_seqlens_cpu=offsets, chunk_size=32)  # FLA's; here it is 64
    assert torch.equal(got, wanted)


@devices
@rules
def test_token_by_token_is_the_whole(rule, device):
    inputs = make_inputs(device, T=20)
    with torch.no_grad():
        whole, ht = run(rule, inputs)
        state = inputs["initial_state"]
        before = state.clone()
        for t in range(20):
            part = {name: x[:, t : t + 1] for name, x in inputs.items() if name != "initial_state"}
            o, state = run(rule, {**part, "initial_state": state})
            assert relative(o, whole[:, t : t + 1]) < 2e-5
    assert relative(state, ht) < 2e-5
    assert torch.equal(inputs["initial_state"], before)  # inputs are left alone


@devices
def test_any_strides(device):
    inputs = make_inputs(device)
    strided = {}
    for name, x in inputs.items():
        wide = torch.zeros(*x.shape, 2, device=device)
        wide[..., 0] = x
        strided[name] = wide[..., 0].transpose(0, 1).contiguous().transpose(0, 1) if name == "q" else wide[..., 0]
    with torch.no_grad():
        for got, wanted in zip(run("q_delta", strided), run("q_delta", inputs), strict=True):
            assert torch.equal(got, wanted)


@devices
def test_gradient_of_an_expanded_output(device):
    """o.sum() has a gradient without memory of its own."""
    inputs = leaves(make_inputs(device))
    run("q_delta", inputs)[0].sum().backward()
    exact = leaves(inputs)
    expected("q_delta", exact)[0].sum().backward()
    assert relative(inputs["q"].grad, exact["q"].grad) < 2e-5


@devices
def test_empty_tensors(device):
    inputs = make_inputs(device, T=0)
    o, ht = run("q_delta", inputs)
    assert o.shape == (2, 0, 4, 40)
    assert torch.equal(ht, inputs["initial_state"])
    assert run("q_delta", make_inputs(device, B=0))[0].shape == (0, 100, 4, 40)


@devices
def test_wide_values_and_the_shape_of_the_340m_model(device):
    inputs = make_inputs(device, torch.bfloat16, B=1, T=130, H=2, HV=2, K=128, V=256)
    with torch.no_grad():
        o, ht = run("q_delta", inputs)
        o_exact, ht_exact = expected("q_delta", inputs)
    assert relative(o, o_exact) < 1e-2
    assert relative(ht, ht_exact) < 1e-2


# The names and signatures of FLA -------------------------------------------------------------------------------------


@devices
def test_names_of_fla(device):
    i = make_inputs(device, T=70)
    q, k, v, g, beta, lamb = (i[name] for name in ("q", "k", "v", "g", "beta", "lamb"))
    key = {"use_qk_l2norm_in_kernel": True}
    calls = {
        "q_delta": [
            (ops.chunk_q_delta_rule, (q, k, v, g, beta, lamb), key),
            (ops.fused_recurrent_q_delta_rule, (q, k, v, g, beta, lamb), key),
            (ops.chunk_qdelta_rule, (q, k, v, g, beta, lamb), key),
        ],
        "gated_delta": [
            (ops.chunk_gated_delta_rule, (q, k, v, g, beta), key),
            (ops.fused_recurrent_gated_delta_rule, (q, k, v, g, None, None, beta), key),
        ],
        "delta": [(ops.chunk_delta_rule, (q, k, v, beta), key), (ops.fused_recurrent_delta_rule, (q, k, v, beta), key)],
        "longhorn": [(ops.chunk_longhorn, (q, k, v, beta), key), (ops.fused_recurrent_longhorn, (q, k, v, beta), key)],
        "retnet": [(ops.chunk_simple_gla, (q, k, v, g), {}), (ops.fused_recurrent_simple_gla, (q, k, v, g), {})],
        "linear": [
            (ops.chunk_linear_attn, (q, k, v), {"normalize": False}),
            (ops.fused_recurrent_linear_attn, (q, k, v), {}),
        ],
    }
    with torch.no_grad():
        for rule, functions in calls.items():
            l2norm = rule not in ("retnet", "linear")
            wanted, states = expected(rule, i, l2norm=l2norm)
            for function, arguments, options in functions:
                got, ht = function(
                    *arguments, initial_state=i["initial_state"], output_final_state=True, **options
                )
                assert relative(got, wanted) < 2e-5, function
                assert relative(ht, states) < 2e-5, function
                assert function(*arguments, **options)[1] is None


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("gated_delta_rule", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"]),
        ("delta_rule", ["chunk_delta_rule", "fused_recurrent_delta_rule"]),
        ("simple_gla", ["chunk_simple_gla", "fused_recurrent_simple_gla", "fused_chunk_simple_gla"]),
        ("retention", ["chunk_retention", "fused_recurrent_retention"]),
        ("linear_attn", ["chunk_linear_attn", "fused_recurrent_linear_attn"]),
    ],
)
def test_signatures_of_fla(folder, names):
    """Ours begin with FLA's parameters, in their order and with their defaults."""
    pytest.importorskip("fla")
    try:
        module = importlib.import_module(f"fla.ops.{folder}")
    except Exception as error:  # Triton without a GPU
        pytest.skip(f"flash-linear-attention cannot be imported here: {error}")

    def parameters(function):
        found = inspect.signature(inspect.unwrap(function)).parameters.values()
        return [(p.name, p.default, p.kind) for p in found if p.kind != inspect.Parameter.VAR_KEYWORD]

    for name in names:
        theirs, ours = parameters(getattr(module, name)), parameters(getattr(ops, name))
        assert ours[: len(theirs)] == theirs, name


@pytest.mark.parametrize("name", ops.__all__)
def test_help_says_what_each_argument_is(name):
    function = getattr(ops, name)
    for argument in inspect.signature(function).parameters:
        assert argument == "rule" or f"    {argument}: " in function.__doc__


def test_retention_is_a_fixed_decay():
    i = make_inputs()
    gamma = torch.log(1 - 2.0 ** (-5 - torch.arange(4.0)))
    i["g"] = gamma.expand(2, 100, 4)
    wanted, _ = expected("retnet", {**i, "initial_state": None}, l2norm=False)
    assert relative(ops.chunk_retention(i["q"], i["k"], i["v"])[0], wanted) < 2e-5
    assert relative(ops.fused_recurrent_retention(i["q"], i["k"], i["v"])[0], wanted) < 2e-5
    assert relative(ops.chunk_simple_gla(i["q"], i["k"], i["v"], g_gamma=gamma)[0], wanted) < 2e-5


def test_normalized_linear_attention_goes_on_from_its_states():
    i = make_inputs(H=4)
    q, k, v = i["q"].abs(), i["k"].abs(), i["v"]
    o, (ht, z) = ops.chunk_linear_attn(q, k, v, output_final_state=True)
    mask = torch.ones(100, 100).tril()
    scores = torch.einsum("bthk,bshk->bhts", q.double(), k.double()) * mask
    wanted = torch.einsum("bhts,bshv->bthv", scores / scores.sum(-1, keepdim=True), v.double())
    assert relative(o, wanted) < 2e-5
    first = ops.chunk_linear_attn(q[:, :40], k[:, :40], v[:, :40], output_final_state=True)
    second = ops.chunk_linear_attn(q[:, 40:], k[:, 40:], v[:, 40:], initial_state=first[1], output_final_state=True)
    assert relative(torch.cat([first[0], second[0]], 1), wanted) < 2e-5
    assert relative(second[1][0], ht) < 2e-5
    assert relative(second[1][1], z) < 2e-5
    flat = [x.reshape(1, 200, *x.shape[2:]) for x in (q, k, v)]
    packed, (states, z_packed) = ops.chunk_linear_attn(
        *flat, cu_seqlens=torch.tensor([0, 100, 200]), output_final_state=True
    )
    assert relative(packed.reshape(v.shape), wanted) < 2e-5
    assert relative(z_packed, z) < 2e-5
    assert relative(states, ht) < 2e-5


@devices
def test_normalized_linear_attention_of_nothing(device):
    """Sums of keys that are those before."""
    i = make_inputs(device, T=0, H=4)
    q, k, v, z = i["q"], i["k"], i["v"], torch.rand(2, 1, 4, 24, device=device)
    for before in (None, z):
        state = None if before is None else (i["initial_state"], before)
        o, (ht, after) = ops.chunk_linear_attn(q, k, v, initial_state=state, output_final_state=True)
        assert o.shape == v.shape
        assert torch.equal(after, torch.zeros_like(z) if before is None else z)


@devices
def test_normalized_linear_attention_of_many_packed_sequences(device):
    """The last one's sums of keys have nothing of those before it, not even their rounding."""
    i = make_inputs(device, B=1, T=40_000, H=1, HV=1, K=4, V=4)
    q, k, v = i["q"].abs(), i["k"].abs(), i["v"]
    packed, _ = ops.chunk_linear_attn(q, k, v, cu_seqlens=torch.tensor([0, 39_990, 40_000]))
    alone, _ = ops.chunk_linear_attn(q[:, -10:], k[:, -10:], v[:, -10:])
    assert relative(packed[:, -10:], alone) < 2e-6


def test_gates_in_the_kernel_and_states_with_values_first():
    i = make_inputs()
    A_log, dt_bias, raw, logits = torch.randn(4), torch.randn(4), torch.randn(2, 100, 4), torch.randn(2, 100, 4)
    o, ht = ops.chunk_gated_delta_rule(
        i["q"], i["k"], i["v"], raw, logits, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=A_log,
        dt_bias=dt_bias, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, state_v_first=True,
        initial_state=i["initial_state"].transpose(-1, -2), output_final_state=True,
    )  # fmt: skip
    i["g"] = -A_log.exp() * torch.nn.functional.softplus(raw + dt_bias)
    i["beta"] = 2 * logits.sigmoid()
    wanted, states = expected("gated_delta", i)
    assert relative(o, wanted) < 5e-5
    assert relative(ht.transpose(-1, -2), states) < 5e-5


# Other implementations -----------------------------------------------------------------------------------------------


def test_naive_recurrences_of_fla():
    pytest.importorskip("fla")
    try:
        from fla.ops.delta_rule.naive import delta_rule_recurrence
        from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
        from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
        from fla.ops.retention.naive import naive_retention
        from fla.ops.simple_gla.naive import naive_chunk_simple_gla
    except Exception as error:  # Triton without a GPU
        pytest.skip(f"flash-linear-attention cannot be imported here: {error}")
    i = make_inputs(H=4)
    i["q"], i["k"] = (torch.nn.functional.normalize(i[name], dim=-1) for name in ("q", "k"))
    q, k, v, g, beta, h0 = (i[name] for name in ("q", "k", "v", "g", "beta", "initial_state"))
    state = {"initial_state": h0, "output_final_state": True}
    o, ht = naive_recurrent_gated_delta_rule(q, k, v, beta, g, **state)
    got, states = ops.chunk_gated_delta_rule(q, k, v, g, beta, **state)
    assert relative(got, o) < 2e-5 and relative(states, ht) < 2e-5
    o, ht = delta_rule_recurrence(*[x.transpose(1, 2) for x in (q, k, v, beta)], **state)
    got, states = ops.chunk_delta_rule(q, k, v, beta, **state)
    assert relative(got, o.transpose(1, 2)) < 2e-5 and relative(states, ht) < 2e-5
    o, ht = naive_chunk_simple_gla(q, k, v, g, **state)
    got, states = ops.chunk_simple_gla(q, k, v, g, **state)
    # Where it pads the last chunk with zeros it decays no further.
    assert relative(got, o) < 2e-5 and relative(states, ht) < 2e-5
    o = naive_retention(*[x.transpose(1, 2) for x in (q, k, v)])
    assert relative(ops.chunk_retention(q, k, v)[0], o.transpose(1, 2)) < 2e-5
    o, ht = naive_recurrent_linear_attn(q, k, v, **state)
    got, states = ops.chunk_linear_attn(q, k, v, normalize=False, **state)
    assert relative(got, o) < 2e-5 and relative(states, ht) < 2e-5
    z = k.abs().sum(1, keepdim=True)
    state["initial_state"] = (h0, z)
    o, pair = naive_recurrent_linear_attn(q.abs(), k.abs(), v, normalize=True, **state)
    got, ours = ops.chunk_linear_attn(q.abs(), k.abs(), v, **state)
    for x, y in zip((got, *ours), (o, *pair), strict=True):
        assert relative(x, y) < 2e-5


@pytest.mark.parametrize("l2norm", [True, False])
def test_transformers_gated_delta_rule(l2norm):
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    i = make_inputs(H=4)
    unit = [torch.nn.functional.normalize(i[name], dim=-1) for name in ("q", "k")]
    v, g, beta, h0 = (i[name] for name in ("v", "g", "beta", "initial_state"))
    options = {"initial_state": h0, "output_final_state": True}
    # Its own code, where it would call flash-linear-attention if that is installed.
    function = inspect.unwrap(modeling.torch_chunk_gated_delta_rule)
    o, ht = function(*unit, v, g=g, beta=beta, **options)
    q, k = (i["q"], i["k"]) if l2norm else unit
    got, states = ops.chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=l2norm, **options)
    assert relative(got, o) < 2e-5 and relative(states, ht) < 2e-5
