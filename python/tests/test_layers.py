"""Token mixers and the model in plain PyTorch, without transformers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from qdelta import layers  # noqa: E402
from recurrence_cases import DEVICES, relative  # noqa: E402

devices = pytest.mark.parametrize("device", DEVICES)
MIXERS = [*layers.MIXERS.values(), layers.Mamba]


def make(kind, device, **options):
    torch.manual_seed(0)
    shape = {} if kind is layers.Mamba else {"num_heads": 2, "head_dim": 16}
    return kind(hidden_size=32, **shape, **options).to(device)


@devices
@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_mixers_in_pieces_and_packed(kind, device):
    """From a state, and with sequences packed into one row: as each sequence in one piece."""
    mixer = make(kind, device)
    hidden = torch.randn(2, 90, 32, device=device)
    state = {}
    with torch.no_grad():
        whole = mixer(hidden)
        pieces = [mixer(hidden[:, begin:end], state) for begin, end in ((0, 40), (40, 41), (41, 90))]
        packed = mixer(hidden.reshape(1, 180, 32), cu_seqlens=torch.tensor([0, 90, 180], device=device))
    assert whole.shape == hidden.shape
    assert relative(torch.cat(pieces, 1), whole) < 3e-5
    assert relative(packed.reshape(whole.shape), whole) < 3e-5


@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_mixers_refuse_wrong_offsets(kind):
    mixer = make(kind, "cpu")
    wrong = ([0, 7], [0, 17], [1, 10], [0, 7, 3, 10], [0, -1, 10], [0.0, 10.0], [[0, 10]], [0], [])
    for rows, offsets in ((2, [0, 10]), *[(1, offsets) for offsets in wrong]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            mixer(torch.randn(rows, 10, 32), cu_seqlens=torch.tensor(offsets))
    for state in ({}, {"conv" if kind is layers.Mamba else "q": None}):  # what it left could not be gone on from
        with pytest.raises(ValueError, match="^state is given beside cu_seqlens"):
            mixer(torch.randn(1, 10, 32), state, torch.tensor([0, 3, 10]))
        assert "recurrent" not in state and "h" not in state
    with pytest.raises(TypeError, match="^cu_seqlens is list"):
        mixer(torch.randn(1, 10, 32), cu_seqlens=[0, 10])
    with pytest.raises(ValueError, match="^cu_seqlens is on meta"):
        mixer(torch.randn(1, 10, 32), cu_seqlens=torch.tensor([0, 10], device="meta"))


@devices
def test_packed_sequences_go_on_from_states_where_there_is_no_convolution(device):
    mixer, hidden = make(layers.QDeltaNet, device, use_short_conv=False), torch.randn(1, 100, 32, device=device)
    state = {}
    with torch.no_grad():
        whole = mixer(hidden, cu_seqlens=torch.tensor([0, 40, 100]))
        first = mixer(torch.cat([hidden[:, :30], hidden[:, 40:50]], 1), state, torch.tensor([0, 30, 40]))
        second = mixer(torch.cat([hidden[:, 30:40], hidden[:, 50:]], 1), state, torch.tensor([0, 10, 60]))
    got = torch.cat([first[:, :30], second[:, :10], first[:, 30:], second[:, 10:]], 1)
    assert relative(got, whole) < 3e-5


@devices
@pytest.mark.parametrize("short_conv", [True, False])
@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_mixers_on_nothing(kind, short_conv, device):
    """No sequences, or none of their tokens: empty outputs, and a state as it was."""
    if kind is layers.Mamba and not short_conv:
        pytest.skip("Mamba has one always")
    mixer = make(kind, device, **({} if short_conv else {"use_short_conv": False}))
    for B, T in ((2, 0), (0, 5), (0, 0), (0, 1)):
        hidden = torch.randn(B, T, 32, device=device, requires_grad=True)
        out = mixer(hidden, mask=torch.ones(B, T, device=device))
        assert out.shape == (B, T, 32)
        out.sum().backward()
        assert hidden.grad.shape == hidden.shape
        state = {}
        with torch.no_grad():
            assert mixer(hidden, state).shape == (B, T, 32)
            assert mixer(torch.randn(B, 3, 32, device=device), state).shape == (B, 3, 32)
    hidden = torch.randn(2, 20, 32, device=device)
    state = {}
    with torch.no_grad():
        pieces = [mixer(hidden[:, begin:end], state) for begin, end in ((0, 0), (0, 9), (9, 9), (9, 20), (20, 20))]
        assert relative(torch.cat(pieces, 1), mixer(hidden)) < 3e-5
        assert mixer(hidden[:1, :0], cu_seqlens=torch.tensor([0, 0], device=device)).shape == (1, 0, 32)


@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_mixers_name_wrong_arguments(kind):
    mixer, hidden, state = make(kind, "cpu"), torch.randn(2, 10, 32), {}
    mixer(hidden, state)
    of_other = {"h": torch.zeros(2, 3)} if kind is not layers.Mamba else {"recurrent": torch.zeros(2, 2, 16, 32)}
    for call, named in (
        (lambda: mixer([1.0]), "hidden is list"),
        (lambda: mixer(hidden[0]), "hidden has shape"),
        (lambda: mixer(hidden[..., :31]), "hidden has shape"),
        (lambda: mixer(hidden, mask=torch.ones(2, 9)), "mask has shape"),
        (lambda: mixer(hidden, mask=torch.ones(1, 10)), "mask has shape"),
        (lambda: mixer(hidden[:1], state), "state\\["),
        (lambda: mixer(torch.randn(3, 10, 32), state), "state\\["),
        (lambda: mixer(hidden, []), "state is list"),
        (lambda: mixer(hidden, of_other), "state has"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{named}"):
            call()
    extents = ("state_size", "dt_rank") if kind is layers.Mamba else ("num_heads", "head_dim", "num_v_heads")
    for name in ("hidden_size", "conv_size", *extents):
        for wrong in (-1, 1.5, *([] if name in ("dt_rank", "num_v_heads") else [0])):
            with pytest.raises((ValueError, TypeError), match=f"^{name} is {wrong}"):
                kind(**{"hidden_size": 32, name: wrong})


def test_a_fixed_lambda_is_float32_whatever_the_default_type():
    mixer, hidden = make(layers.QDeltaNet, "cpu", fixed_lambda=0.5), torch.randn(2, 10, 32)
    wanted = mixer(hidden)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(mixer(hidden), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


def test_models_name_wrong_arguments():
    options = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16}
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "head_dim"):
        with pytest.raises(ValueError, match=f"^{name} is 0"):
            layers.CausalLM(layers.ModelConfig(**{**options, name: 0}))
    for no_width in ({"hidden_ratio": 0}, {"hidden_ratio": -1}, {"intermediate_size": -5}):
        with pytest.raises(ValueError, match="^intermediate_size or hidden_ratio"):
            layers.CausalLM(layers.ModelConfig(**options, **no_width))
    model = layers.CausalLM(layers.ModelConfig(**options))
    for B, T in ((2, 0), (0, 5)):
        assert model(torch.zeros(B, T, dtype=torch.long)).shape == (B, T, 23)
    with pytest.raises(ValueError, match="^input_ids has shape"):
        model(torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="^states are 1, expected 2"):
        model.model(torch.zeros(1, 5, dtype=torch.long), states=[{}])


@devices
@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_mixers_have_gradients_for_all_parameters(kind, device):
    mixer = make(kind, device)
    mixer(torch.randn(2, 70, 32, device=device)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@devices
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_transformers_learns(tied, device):
    torch.manual_seed(0)
    config = layers.ModelConfig(
        vocab_size=23, hidden_size=32, num_hidden_layers=2, num_heads=2, head_dim=16, intermediate_size=48,
        tie_word_embeddings=tied, initializer_range=0.1,
    )  # fmt: skip
    model = layers.CausalLM(config).to(device)
    assert (model.lm_head.weight is model.model.embeddings.weight) == tied
    ids = torch.arange(66, device=device).remainder(23).reshape(2, 33)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = model(ids[:, :-1], targets=ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
