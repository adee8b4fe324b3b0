"""The operators inside PyTorch: opcheck, gradcheck, torch.compile, autocast, CUDA graphs, threads and streams."""

from __future__ import annotations

import functools
import threading

import pytest

torch = pytest.importorskip("torch")

from qdelta import ops  # noqa: E402
from qdelta.ops import _call, _eager  # noqa: E402
from recurrence_cases import DEVICES, RULES, gates_of, make_inputs, relative  # noqa: E402

devices = pytest.mark.parametrize("device", DEVICES)
needs_cuda = pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")


def arguments(rule, device, cu_seqlens=None, requires_grad=True, **shape):
    inputs = make_inputs(device, **shape)
    gates = gates_of(rule, inputs)
    tensors = [inputs["q"], inputs["k"], inputs["v"], *gates.values(), inputs["initial_state"]]
    tensors = [None if t is None else t.detach().requires_grad_(requires_grad) for t in tensors]
    return (*tensors, cu_seqlens, rule, 0.2, True, True, requires_grad)


@devices
@pytest.mark.parametrize("rule", RULES)
def test_opcheck(rule, device):
    op = torch.ops.qdelta.recurrence.default
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    # The last one compares all outputs of two calls: what is saved on a GPU has bytes between that nobody writes.
    tests += ["test_aot_dispatch_dynamic"] if device == "cpu" else []
    torch.library.opcheck(op, arguments(rule, device, T=70), test_utils=tests)
    torch.library.opcheck(op, arguments(rule, device, requires_grad=False, T=70))
    cu_seqlens = torch.tensor([0, 10, 70], device=device)
    torch.library.opcheck(op, arguments(rule, device, cu_seqlens, B=1, N=2, T=70), test_utils=tests)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:Input #")  # gradcheck would rather have float64
def test_gradcheck(rule):
    inputs = make_inputs(B=1, T=3, H=1, HV=2, K=3, V=2)
    gates = gates_of(rule, inputs)
    given = [inputs["q"], inputs["k"], inputs["v"], *gates.values(), inputs["initial_state"]]
    leaves = [x.clone().requires_grad_() for x in given if x is not None]

    def function(*values):
        rest = iter(values)
        q, k, v, g, beta, lamb, h0 = (None if x is None else next(rest) for x in given)
        return ops.recurrence(
            rule, q, k, v, g, beta, lamb, initial_state=h0, output_final_state=True, use_qk_l2norm_in_kernel=True
        )

    assert torch.autograd.gradcheck(function, leaves, eps=1e-2, atol=2e-3, rtol=1e-2, nondet_tol=0.0)


@devices
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_graph_break(backend, device):
    if backend == "inductor" and device == "cpu":
        pytest.importorskip("torch._inductor.cpp_builder")
    inputs = make_inputs(device)

    def function(q, k, v, g, beta, lamb, initial_state):
        o, ht = ops.chunk_q_delta_rule(
            q * 2, k, v, g, beta, lamb, initial_state=initial_state, output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        return (o.sin() + 1).sum() + ht.sum()

    results = []
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for call in (function, compiled):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        loss = call(**leaves)
        loss.backward()
        results.append((loss, leaves))
    assert relative(results[1][0], results[0][0]) < 1e-5
    for name, leaf in results[0][1].items():
        assert relative(results[1][1][name].grad, leaf.grad) < 1e-5, name


@devices
def test_compiled_with_packed_sequences_and_other_lengths(device):
    compiled = torch.compile(
        lambda i, cu: ops.chunk_gated_delta_rule(i["q"], i["k"], i["v"], i["g"], i["beta"], cu_seqlens=cu)[0],
        fullgraph=True, backend="aot_eager", dynamic=True,
    )  # fmt: skip
    for T in (90, 100, 130):
        inputs = make_inputs(device, B=1, T=T)
        inputs["k"] = torch.nn.functional.normalize(inputs["k"], dim=-1)
        inputs["q"] = inputs["q"].requires_grad_()
        cu_seqlens = torch.tensor([0, 7, T], device=device)
        got = compiled(inputs, cu_seqlens)
        wanted = ops.chunk_gated_delta_rule(
            inputs["q"], inputs["k"], inputs["v"], inputs["g"], inputs["beta"], cu_seqlens=cu_seqlens
        )[0]
        assert torch.equal(got, wanted)


@devices
def test_autocast(device):
    inputs = make_inputs(device)
    leaf = inputs["q"].requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        o, ht = ops.chunk_q_delta_rule(
            *[inputs[n] for n in ("q", "k", "v", "g", "beta", "lamb")], output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
    assert o.dtype == torch.bfloat16 and ht.dtype == torch.float32
    o.float().sum().backward()
    assert leaf.grad.dtype == torch.float32 and leaf.grad.isfinite().all()


@devices
def test_same_bits_every_time(device):
    results = []
    for _ in range(2):
        inputs = {name: x.requires_grad_() for name, x in make_inputs(device, torch.bfloat16, K=64, V=64).items()}
        o, _ = ops.chunk_q_delta_rule(
            *[inputs[n] for n in ("q", "k", "v", "g", "beta", "lamb")], use_qk_l2norm_in_kernel=True
        )
        o.float().square().sum().backward()
        results.append([o, *[inputs[n].grad for n in ("q", "k", "v", "g", "beta", "lamb")]])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@devices
def test_threads_at_once(device):
    inputs = [make_inputs(device, T=60 + 10 * i, seed=i) for i in range(4)]

    def call(i):
        return ops.chunk_q_delta_rule(
            *[i[n] for n in ("q", "k", "v", "g", "beta", "lamb")], use_qk_l2norm_in_kernel=True
        )[0]

    wanted = [call(i) for i in inputs]
    failures = []

    def work(n):
        for _ in range(10):
            if not torch.equal(call(inputs[n]), wanted[n]):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@devices
def test_saved_tensors_may_come_back_with_other_strides(device):
    """As from a hook that keeps them in another place."""
    inputs = make_inputs(device)
    names = ("q", "k", "v", "g", "beta", "lamb", "initial_state")
    wide = {n: torch.cat([inputs[n], inputs[n]], -1) for n in names}
    results = []
    for unpack in (lambda x: x, lambda x: x.contiguous()):
        given = [wide[n][..., : inputs[n].shape[-1]].detach().requires_grad_() for n in names]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            o, _ = ops.recurrence("q_delta", *given[:6], None, given[6], use_qk_l2norm_in_kernel=True)
        results.append(torch.autograd.grad(o.square().sum(), given))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_that_a_transform_has_left_behind(requires_grad):
    """torch.func wraps tensors; one that gets out of it still stands for its values."""
    inputs = make_inputs()
    left = []
    torch.func.grad(lambda x: left.append(x * 1) or x.sum())(inputs["q"])
    inputs["k"].requires_grad_(requires_grad)
    rest = (inputs["k"], inputs["v"], inputs["beta"])
    got, wanted = (ops.chunk_delta_rule(q, *rest, use_qk_l2norm_in_kernel=True)[0] for q in (left[0], inputs["q"]))
    assert relative(got, wanted) < 1e-5


@devices
@pytest.mark.parametrize("known", [False, True])
def test_tensors_whose_values_are_not_in_memory(known, device):
    """The negative of what memory holds, as PyTorch keeps the imaginary part of a conjugate; zeros without memory."""
    inputs = {name: x.requires_grad_() for name, x in (learned(device) if known else make_inputs(device)).items()}
    names = ("q", "k", "v", "g", "beta", "lamb", "initial_state")

    def call(given):
        return ops.recurrence("q_delta", *[given[n] for n in names[:6]], None, given["initial_state"], True, True)

    def negative(x):
        other = torch.complex(torch.zeros_like(x), -x.detach()).conj().imag
        assert other.is_neg()
        return other

    o, ht = call(inputs)
    do, dht = torch.randn_like(o), torch.randn_like(ht)
    wanted = torch.autograd.grad((o, ht), [inputs[n] for n in names], (do, dht))
    for name in names:
        others = {**inputs, name: negative(inputs[name])}
        for got, right in zip(call(others), (o, ht), strict=True):
            assert relative(got, right) < 1e-5, name
    o, ht = call(inputs)
    got = torch.autograd.grad((o, ht), [inputs[n] for n in names], (negative(do), negative(dht)))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    zeros = torch._efficientzerotensor(o.shape, device=device)
    gradients = [torch.autograd.grad(call(inputs)[0], inputs["q"], d)[0] for d in (zeros, torch.zeros_like(o))]
    assert torch.equal(*gradients)
    for name in ("v", "g", "initial_state"):
        zeros = torch._efficientzerotensor(inputs[name].shape, device=device)
        with torch.no_grad():
            got, right = (call({**inputs, name: x})[0] for x in (zeros, torch.zeros_like(inputs[name])))
        assert torch.equal(got, right), name


@pytest.mark.parametrize("known", [False, True])
def test_forward_mode_derivatives_are_refused(known):
    from torch.autograd import forward_ad

    inputs = learned() if known else make_inputs()
    for name in NAMES:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))
            with pytest.raises(NotImplementedError, match=f"^{name} has a tangent"):
                q_delta({**inputs, name: dual})
            assert torch.equal(q_delta(inputs), q_delta(inputs))  # without a tangent it is a call like others
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.func.jvp(lambda q: q_delta({**inputs, "q": q}), (inputs["q"],), (inputs["q"],))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("known", [False, True])
def test_transforms_of_torch_func(known):
    inputs = learned() if known else make_inputs()
    names = ("q", "k", "v", "g", "beta", "lamb")

    def loss(q):
        return q_delta({**inputs, "q": q}).sum()

    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian, lambda f: lambda q: torch.func.vjp(f, q)):
        with pytest.raises(NotImplementedError, match=r"^torch\.func's grad, vjp and jacrev"):
            transform(loss)(inputs["q"])
    batch = {name: torch.stack([inputs[name], -inputs[name]]) if name in ("q", "k", "v") else inputs[name] for name in names}
    got = torch.func.vmap(lambda q, k, v: q_delta({**inputs, "q": q, "k": k, "v": v}))(batch["q"], batch["k"], batch["v"])
    for row in range(2):
        wanted = q_delta({**inputs, **{name: batch[name][row] for name in ("q", "k", "v")}})
        assert relative(got[row], wanted) < 1e-5
    with pytest.raises(ValueError, match="^k has shape"):  # errors of ours stay as they are
        torch.func.vmap(lambda q: q_delta({**inputs, "k": inputs["k"][:, 1:], "q": q}))(batch["q"])
    assert q_delta(inputs).shape == inputs["v"].shape


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("loss", [lambda o: o.square().sum(), lambda o: o.sum()], ids=["squares", "sum"])
def test_second_derivatives_are_refused(loss, registered):
    if registered:
        q, *rest = arguments("delta", "cpu")
        o, *_ = torch.ops.qdelta.recurrence(q, *rest)
    else:
        inputs = make_inputs()
        q = inputs["q"].requires_grad_()
        o, _ = ops.chunk_delta_rule(q, inputs["k"], inputs["v"], inputs["beta"], use_qk_l2norm_in_kernel=True)
    (plain,) = torch.autograd.grad(loss(o), q, retain_graph=True)
    (gradient,) = torch.autograd.grad(loss(o), q, create_graph=True)
    assert torch.equal(plain, gradient)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        (gradient.square().sum() + q.sum()).backward()  # nor is their part left out


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("name", ["hessian", "hvp", "vhp", "jvp"])
def test_second_derivatives_of_autograd_functional_are_refused(name, registered):
    """Which takes what nothing leads to for zero."""
    inputs = make_inputs(T=5)

    def o(q):
        if registered:
            return torch.ops.qdelta.recurrence(q, *arguments("delta", "cpu", T=5)[1:])[0]
        return ops.chunk_delta_rule(q, inputs["k"], inputs["v"], inputs["beta"], use_qk_l2norm_in_kernel=True)[0]

    function = o if name == "jvp" else lambda q: o(q).square().sum()
    vector = () if name == "hessian" else (inputs["q"],)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        getattr(torch.autograd.functional, name)(function, inputs["q"], *vector)
    leaf = inputs["q"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(o(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), leaf, allow_unused=True)


@devices
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_many_outputs_at_once(packed, device):
    """is_grads_batched, and with it vectorized Jacobians."""
    inputs = {name: x.requires_grad_() for name, x in make_inputs(device, **({"B": 1, "N": 2} if packed else {})).items()}
    names = ("q", "k", "v", "g", "beta", "lamb", "initial_state")
    leaves = [inputs[name] for name in names]
    options = {"cu_seqlens": torch.tensor([0, 30, 100])} if packed else {}
    both = ops.recurrence("q_delta", *leaves[:6], None, leaves[6], True, use_qk_l2norm_in_kernel=True, **options)
    for outputs in (both, both[:1], both[1:]):
        many = [torch.randn(3, *x.shape, device=device) for x in outputs]
        got = torch.autograd.grad(outputs, leaves, many, is_grads_batched=True, retain_graph=True)
        for row in range(3):
            wanted = torch.autograd.grad(outputs, leaves, [x[row] for x in many], retain_graph=True)
            assert all(torch.equal(x[row], y) for x, y in zip(got, wanted, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("options", [{"create_graph": True}, {"is_grads_batched": True}])
def test_gradients_of_a_call_that_is_computed_again(options):
    """torch.utils.checkpoint gives what was saved a single time."""
    inputs = make_inputs()
    q, do = inputs["q"].requires_grad_(), torch.randn_like(inputs["v"])
    (wanted,) = torch.autograd.grad(q_delta(inputs), q, do)
    o = torch.utils.checkpoint.checkpoint(lambda q: q_delta({**inputs, "q": q}), q, use_reentrant=False)
    (got,) = torch.autograd.grad(o, q, do[None] if "is_grads_batched" in options else do, **options)
    assert torch.equal(got.reshape(wanted.shape), wanted)


@pytest.mark.filterwarnings("ignore")  # that torch.jit is old, and what of Python is not traced
@pytest.mark.parametrize("known", [False, True])
def test_traced_by_torch_jit(known):
    inputs, other = (learned() if known else make_inputs()), make_inputs(seed=1)
    traced = torch.jit.trace(lambda q: q_delta({**inputs, "q": q}), (inputs["q"],))
    assert relative(traced(other["q"]), q_delta({**inputs, "q": other["q"]})) < 1e-5


@pytest.mark.parametrize("registered", [False, True])
def test_the_default_type_does_not_matter(registered):
    """float64 is what gradcheck wants."""
    given = arguments("delta", "cpu", T=71)  # a shape of its own, of which nothing is known yet
    leaves = [x for x in given[:7] if x is not None]
    results = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            if registered:
                o = torch.ops.qdelta.recurrence(*given)[0]
            else:
                o = ops.recurrence("delta", *given[:6], initial_state=given[6], use_qk_l2norm_in_kernel=True)[0]
            results.append([o, *torch.autograd.grad(o.square().sum(), leaves)])
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_backward_without_what_the_forward_saves_is_refused():
    tensors = arguments("q_delta", "cpu")
    o, *_ = torch.ops.qdelta.recurrence(*tensors[:-1], False)
    with pytest.raises(RuntimeError, match="save=True"):
        o.sum().backward()


@devices
def test_offsets_made_in_inference_mode(device):
    """Such a tensor does not say whether it has been changed: each call must look at it."""

    class OnGpu(torch.Tensor):  # stands for one of a GPU where there is none
        is_cpu, is_cuda = False, True

    with torch.inference_mode():
        offsets = torch.tensor([0, 30, 100], device=device)
        offsets = offsets if device == "cuda" else offsets.as_subclass(OnGpu)
        for middle in (30, 40):
            offsets[1] = middle
            assert _call.host_offsets(offsets).tolist() == [0, middle, 100]


# Calls like the one before, which are not looked at again ---------------------------------------------------------------


NAMES = ("q", "k", "v", "g", "beta", "lamb")


def q_delta(inputs):
    return ops.chunk_q_delta_rule(*[inputs[n] for n in NAMES], use_qk_l2norm_in_kernel=True)[0]


def learned(device="cpu", dtype=torch.float32, **shape) -> dict:
    """Inputs that were called with often enough to be known."""
    inputs = make_inputs(device, dtype, **shape)
    for _ in range(3):
        q_delta(inputs)
    assert _eager.like_the_last("q_delta", *[inputs[n] for n in NAMES], None, None) is not None
    return inputs


@devices
def test_a_known_call_gives_the_same_bits(device):
    inputs = make_inputs(device)
    wanted = q_delta(inputs)
    learned(device)
    assert torch.equal(q_delta(inputs), wanted)
    # Gradients are recorded though nobody asked for any so far.
    for name in NAMES:
        leaf = inputs[name].clone().requires_grad_()
        o = q_delta({**inputs, name: leaf})
        o.sum().backward()
        assert relative(o, wanted) < 1e-5 and leaf.grad is not None  # on the CPU in another form
        with torch.no_grad():
            assert not q_delta({**inputs, name: leaf}).requires_grad


@devices
@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_differ_from_those_of_a_known_call(name, device):
    inputs = learned(device)
    wanted = q_delta(inputs)
    wide = torch.stack([inputs[name], torch.full_like(inputs[name], torch.nan)], -1)[..., 0]
    assert torch.equal(q_delta({**inputs, name: wide}), wanted)
    rounded = q_delta({**inputs, name: inputs[name].bfloat16()})
    assert 0 < relative(rounded, wanted) < 2e-2
    for change in (lambda x: x[:, :-1], lambda x: x.double(), lambda x: x.to("meta"), lambda x: x.tolist()):
        with pytest.raises((ValueError, TypeError)):
            q_delta({**learned(device), name: change(inputs[name])})
    left = []  # a tensor that a transform has left behind
    torch.func.grad(lambda x: left.append(x * 1) or x.sum())(learned(device)[name])
    assert relative(q_delta({**inputs, name: left[0]}), wanted) < 1e-5


@devices
def test_modes_around_a_known_call(device):
    inputs = learned(device)
    with torch.autocast(device, torch.bfloat16):
        assert q_delta(inputs).dtype == torch.bfloat16
        half = {**inputs, **{n: inputs[n].bfloat16() for n in ("q", "k", "v")}}
        for _ in range(3):
            assert q_delta(half).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="autocast"), torch.autocast(device, torch.float16):
        q_delta(half)
    assert q_delta(learned(device)).dtype == torch.float32

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **(kwargs or {}))

    class Dispatch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **(kwargs or {}))

    for mode in (Functions, Dispatch):
        called = []
        with mode():
            q_delta(inputs)
        assert any("qdelta.recurrence" in name or "qdelta::recurrence" in name for name in called), mode


@devices
def test_selective_checkpointing_of_every_other_call(device):
    """The policy is asked for the operator whether the call is known or not, and what is computed again is what was computed."""
    from torch.utils import checkpoint

    asked = []

    def keep(context, function, *args, **kwargs):
        asked.append((context.is_recompute, str(function)))
        is_ours = function is torch.ops.qdelta.recurrence.default
        return checkpoint.CheckpointPolicy.MUST_SAVE if is_ours else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    context_fn = functools.partial(checkpoint.create_selective_checkpoint_contexts, keep)
    results = []
    for selective in (False, True):
        leaves = {name: x.requires_grad_() for name, x in make_inputs(device, T=77, V=24).items()}
        v = leaves["v"]
        for layer in range(6):
            call = lambda v: q_delta({**leaves, "v": v})  # noqa: B023, E731
            if selective and layer % 2 == 0:
                v = checkpoint.checkpoint(call, v, use_reentrant=False, context_fn=context_fn)
            else:
                v = call(v)
        v.sum().backward()
        results.append([leaves[name].grad for name in NAMES])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert {name for _, name in asked} == {"qdelta.recurrence.default"}


@devices
def test_known_calls_of_two_shapes_in_turn(device):
    """As of a model in training that is evaluated on other lengths in between."""
    cases = [make_inputs(device, T=T, seed=T) for T in (60, 70)]
    wanted = [q_delta(inputs) for inputs in cases]
    for n in (0, 0, 0, 1, 0, 1, 1, 1, 0):
        assert torch.equal(q_delta(cases[n]), wanted[n])


# On a GPU ------------------------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("packed", [False, True])
def test_captured_in_a_cuda_graph(packed):
    inputs = make_inputs("cuda", torch.bfloat16, B=1, T=200, K=64, V=64)
    names = ("q", "k", "v", "g", "beta", "lamb")
    leaves = [inputs[n].requires_grad_() for n in names]
    cu_seqlens = torch.tensor([0, 70, 200]) if packed else None
    do = torch.randn_like(inputs["v"])

    def both():
        o, _ = ops.chunk_q_delta_rule(*leaves, use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seqlens)
        return [o, *torch.autograd.grad(o, leaves, do)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for seed in (1, 2):
        fresh = make_inputs("cuda", torch.bfloat16, B=1, T=200, K=64, V=64, seed=seed)
        with torch.no_grad():
            for leaf, name in zip(leaves, names, strict=True):
                leaf.copy_(fresh[name])
        graph.replay()
        torch.cuda.synchronize()
        for got, wanted in zip(captured, both(), strict=True):
            assert torch.equal(got, wanted)


@needs_cuda
@pytest.mark.parametrize("rule", ["q_delta", "linear"])
def test_compiled_into_cuda_graphs(rule):
    """torch.compile(mode="reduce-overhead"): the compiler's own graphs, whose memory it hands out again."""

    def function(q, k, v, g, beta, lamb):
        gates = gates_of(rule, {"g": g, "beta": beta, "lamb": lamb})
        return ops.recurrence(rule, q, k, v, **gates, use_qk_l2norm_in_kernel=True)[0].sin()

    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    names = ("q", "k", "v", "g", "beta", "lamb")
    for seed in range(5):
        inputs = make_inputs("cuda", torch.bfloat16, K=64, V=64, seed=seed)
        leaves = [inputs[n].requires_grad_() for n in names]
        results = []
        for call in (function, compiled):
            torch.compiler.cudagraph_mark_step_begin()
            o = call(*leaves)
            gradients = torch.autograd.grad(o.float().square().sum(), leaves[:3])
            results.append([x.clone() for x in (o, *gradients)])
        for got, wanted in zip(*results, strict=True):
            assert relative(got, wanted) < 1e-2


@needs_cuda
def test_streams_at_once():
    inputs = [make_inputs("cuda", torch.bfloat16, T=500, K=64, V=64, seed=i) for i in range(4)]
    call = lambda i: ops.chunk_q_delta_rule(  # noqa: E731
        *[i[n] for n in ("q", "k", "v", "g", "beta", "lamb")], use_qk_l2norm_in_kernel=True
    )[0]
    wanted = [call(i) for i in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    results = [None] * 4
    for _ in range(5):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[n] = call(inputs[n])
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


@needs_cuda
def test_a_call_does_not_wait():
    """While the stream sleeps, calls return."""
    inputs = make_inputs("cuda", torch.bfloat16, K=64, V=64)
    names = ("q", "k", "v", "g", "beta", "lamb")
    call = lambda: ops.chunk_q_delta_rule(*[inputs[n] for n in names], use_qk_l2norm_in_kernel=True)  # noqa: E731
    call()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    call()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
