"""Wrong arguments: an exception that names the argument, never a crash."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from qdelta import ops  # noqa: E402
from recurrence_cases import DEVICES, make_inputs  # noqa: E402

NAMES = ("q", "k", "v", "g", "beta", "lamb")
devices = pytest.mark.parametrize("device", DEVICES)


def call(inputs, **options):
    given = {name: inputs[name] for name in (*NAMES, "initial_state")}
    return ops.chunk_q_delta_rule(**given, **options)


@devices
@pytest.mark.parametrize("name", (*NAMES, "initial_state"))
def test_shapes(name, device):
    for change in (lambda x: x[..., :-1], lambda x: x[:1], lambda x: x[None], lambda x: x[0]):
        inputs = make_inputs(device)
        inputs[name] = change(inputs[name])
        with pytest.raises(ValueError) as raised:
            call(inputs)
        # A wrong q or v makes the others wrong: then one of them is named.
        named = str(raised.value).split()[0]
        assert named == name or name in ("q", "v"), raised.value


@devices
@pytest.mark.parametrize("name", (*NAMES, "initial_state"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.complex64])
def test_types(name, dtype, device):
    inputs = make_inputs(device)
    inputs[name] = inputs[name].to(dtype)
    with pytest.raises(TypeError, match=f"^{name} is torch"):
        call(inputs)


@pytest.mark.filterwarnings("ignore")  # that PyTorch's nested and CSR tensors are prototypes
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", (*NAMES, "initial_state"))
def test_layouts(name, known):
    inputs = make_inputs()
    for _ in range(3 if known else 0):
        call(inputs)
    x = inputs[name]
    dense = torch.strided
    jagged = torch.nested.nested_tensor([*x], layout=torch.jagged)
    for other in (x.to_sparse(), x.reshape(-1, x.shape[-1]).to_sparse_csr(), torch.nested.nested_tensor([*x], layout=dense), jagged):
        with pytest.raises(TypeError, match=f"^{name} is .* dense"):
            call({**inputs, name: other})


@pytest.mark.parametrize("name", (*NAMES, "initial_state"))
def test_devices(name):
    inputs = make_inputs()
    inputs[name] = inputs[name].to("meta")
    with pytest.raises(ValueError, match=f"^{name} is on" if name != "q" else "meta"):
        call(inputs)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
@pytest.mark.parametrize("name", (*NAMES, "initial_state"))
def test_tensors_on_the_cpu_and_on_a_gpu(name):
    inputs = make_inputs("cuda")
    inputs[name] = inputs[name].cpu()
    with pytest.raises(ValueError, match=" is on cpu" if name != "q" else " is on cuda"):
        call(inputs)


@devices
def test_offsets(device):
    inputs = make_inputs(device, B=1)
    inputs["initial_state"] = None
    for offsets, message in (
        ([0, 50], "100 tokens"),
        ([1, 100], "starts with 1"),
        ([0, 60, 50, 100], "decreases"),
        ([0, -1, 100], "decreases"),
    ):
        with pytest.raises(ValueError, match="cu_seqlens.*" + message):
            call(inputs, cu_seqlens=torch.tensor(offsets, device=device))
    with pytest.raises(ValueError, match="cu_seqlens"):
        call(inputs, cu_seqlens=torch.tensor([0.0, 100.0], device=device))
    with pytest.raises(ValueError, match="cu_seqlens"):
        call(inputs, cu_seqlens=torch.tensor([[0, 100]], device=device))
    with pytest.raises(ValueError, match="batch 2"):
        call(make_inputs(device), cu_seqlens=torch.tensor([0, 100], device=device))
    for needs_gradient in (False, True):
        inputs["q"].requires_grad_(needs_gradient)
        with pytest.raises(ValueError, match="^cu_seqlens is on meta"):
            call(inputs, cu_seqlens=torch.tensor([0, 100], device="meta"))
    offsets = torch.tensor([0, 100], device=device)
    for other in ("text", [0, 100], torch.tensor([0, 50, 100]), torch.tensor([0, 100], device="meta"), torch.tensor([[0, 100]])):
        with pytest.raises((ValueError, TypeError), match="^cu_seqlens_cpu "):
            call(inputs, cu_seqlens=offsets, cu_seqlens_cpu=other)
    with pytest.raises(ValueError, match="^cu_seqlens_cpu "):  # or the sequences would be one
        call(inputs, cu_seqlens_cpu=torch.tensor([0, 50, 100]))


def test_heads_and_widths():
    with pytest.raises(ValueError, match="3 heads"):
        call(make_inputs(HV=3))
    with pytest.raises(ValueError, match="empty"):
        call(make_inputs(K=0))
    assert call(make_inputs(V=0))[0].shape == (2, 100, 4, 0)


def test_options():
    inputs = make_inputs()
    with pytest.raises(TypeError, match="head_first"):
        call(inputs, head_first=True)
    with pytest.raises(TypeError, match="nonsense"):
        call(inputs, nonsense=1)
    for scale in (0, 1e-60, -1e-60, 1e39, float("inf"), -float("inf"), float("nan")):  # 1e-60 is 0 in float32
        with pytest.raises(ValueError, match="^scale is "):
            call(inputs, scale=scale)
    for other in ("text", [0.5], torch.ones(2)):
        with pytest.raises(TypeError, match="^scale is "):
            call(inputs, scale=other)
    learned = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(TypeError, match="^scale needs a gradient"):
        call(inputs, scale=learned)
    with torch.no_grad():
        assert torch.equal(call(inputs, scale=learned)[0], call(inputs, scale=0.5)[0])
    with pytest.raises(ValueError, match="rule"):
        ops.recurrence("nonsense", inputs["q"], inputs["k"], inputs["v"])
    for name in ("beta", "lamb"):
        with pytest.raises(ValueError, match=f"^{name} is missing"):
            call({**inputs, name: None})
    for rule in ("mamba2", "longhorn", "delta", "gated_delta"):
        with pytest.raises(ValueError, match="^beta is missing"):
            ops.recurrence(rule, inputs["q"], inputs["k"], inputs["v"])
    with pytest.raises(TypeError, match="q is list"):
        ops.chunk_delta_rule([1.0], inputs["k"], inputs["v"], inputs["beta"])
    with pytest.raises(NotImplementedError, match="gk"):
        ops.fused_recurrent_gated_delta_rule(inputs["q"], inputs["k"], inputs["v"], gk=inputs["q"])
    with pytest.raises(NotImplementedError, match="beta"):
        ops.chunk_delta_rule(inputs["q"], inputs["k"], inputs["v"], inputs["v"])
    with pytest.raises(NotImplementedError, match="reverse"):
        ops.fused_recurrent_simple_gla(inputs["q"], inputs["k"], inputs["v"], reverse=True)
    with pytest.raises(TypeError, match="autocast"), torch.autocast("cpu", torch.float16):
        call(inputs)


def test_pairs_of_states_and_sums_of_keys():
    i = make_inputs(H=4)
    q, k, v, states = (i[name] for name in ("q", "k", "v", "initial_state"))
    z = torch.ones(2, 1, 4, 24)
    for pair, message in (
        ((states,), "initial_state has 1 parts"),
        ((states, z, z), "initial_state has 3 parts"),
        ((states, "text"), r"initial_state\[1\] is str"),
        ((states, z.expand(2, 2, 4, 24)), r"initial_state\[1\] has shape"),
        ((states, z.double()), r"initial_state\[1\] is torch.float64"),
        ((states, z.to("meta")), r"initial_state\[1\] is on meta"),
        ((states[:, :1], z), "initial_state has shape"),
        ([states, z], "initial_state is list"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            ops.chunk_linear_attn(q, k, v, initial_state=pair)
    with pytest.raises(ValueError, match="^initial_state is a pair"):
        ops.fused_recurrent_linear_attn(q, k, v, initial_state=(states, z))


@pytest.mark.parametrize("function", ops.__all__)
def test_every_function_names_what_is_no_tensor_of_the_right_shape(function):
    call = getattr(ops, function)
    inputs = {"rule": "q_delta", **make_inputs(B=1, T=10, H=4), "g_gamma": torch.zeros(4), "A_log": torch.zeros(4)}
    inputs |= {"dt_bias": torch.zeros(4), "cu_seqlens": torch.tensor([0, 10]), "use_gate_in_kernel": True}
    known = inspect.signature(call).parameters
    given = {name: x for name, x in inputs.items() if name in known}
    if "g_gamma" in given:
        del given["g"]
    call(**given)
    for name, right in given.items():
        if isinstance(right, torch.Tensor):
            for wrong in ("text", right.numpy(), right[..., :0], right[None, None]):
                with pytest.raises((TypeError, ValueError)) as raised:
                    call(**{**given, name: wrong})
                # Of an empty or longer q or v, as in test_shapes.
                assert str(raised.value).split()[0] == name or name in ("q", "v"), (name, wrong, raised.value)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
def test_keys_wider_than_the_gpu_has_kernels_for():
    with pytest.raises(ValueError, match="K is 300"):
        call(make_inputs("cuda", K=300))
