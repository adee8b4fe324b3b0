"""Records what PyTorch makes of a Gated DeltaNet whose output gate is a sigmoid (output_gate_activation of
flash-linear-attention 0.6), in float64 and token by token: model/gated_deltanet_sigmoid. Needs torch and safetensors; run
from this folder. Nothing else needs them.

norm_eps is large, since heads this small now and then put out next to nothing, which the norm behind them divides by its own
size: with 1e-6 a single token makes most of a gradient, and rounding the matrices to bfloat16 moves one by half of itself, in
exact arithmetic. Nothing that computes in bfloat16 could be checked against that. `moved_by_rounding` measures it.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(21)
f64 = torch.float64
CONFIG = {"model_type": "gated_deltanet", "architectures": ["GatedDeltaNetForCausalLM"], "vocab_size": 47, "hidden_size": 24,
          "num_hidden_layers": 2, "num_heads": 2, "num_v_heads": 4, "head_dim": 8, "expand_v": 1.5, "conv_size": 4,
          "use_gate": True, "output_gate_activation": "sigmoid", "use_short_conv": True, "allow_neg_eigval": False,
          "hidden_ratio": 4, "intermediate_size": 32, "hidden_act": "swish", "norm_eps": 1e-2, "attn": None,
          "tie_word_embeddings": False, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2}
D, VOCAB, H, HV, K = (CONFIG[k] for k in ("hidden_size", "vocab_size", "num_heads", "num_v_heads", "head_dim"))
V, W, MLP = int(K * CONFIG["expand_v"]), CONFIG["conv_size"], CONFIG["intermediate_size"]


def parameters():
    p = {"model.embeddings.weight": torch.randn(VOCAB, D)}
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        p |= {f"{at}{norm}.weight": 1 + 0.1 * torch.randn(D) for norm in ("attn_norm", "mlp_norm")}
        widths = {"q": H * K, "k": H * K, "v": HV * V, "g": HV * V, "a": HV, "b": HV}
        p |= {f"{at}attn.{name}_proj.weight": torch.randn(width, D) / D**0.5 for name, width in widths.items()}
        p |= {f"{at}attn.{name}_conv1d.weight": torch.randn(widths[name], 1, W) / W**0.5 for name in "qkv"}
        p |= {
            f"{at}attn.A_log": torch.log(16 * torch.rand(HV)),
            f"{at}attn.dt_bias": torch.rand(HV) * 3 - 4,
            f"{at}attn.o_norm.weight": 1 + 0.1 * torch.randn(V),
            f"{at}attn.o_proj.weight": torch.randn(D, HV * V) / (HV * V)**0.5,
            f"{at}mlp.gate_proj.weight": torch.randn(MLP, D) / D**0.5,
            f"{at}mlp.up_proj.weight": torch.randn(MLP, D) / D**0.5,
            f"{at}mlp.down_proj.weight": torch.randn(D, MLP) / MLP**0.5,
        }
    p |= {"model.norm.weight": 1 + 0.1 * torch.randn(D), "lm_head.weight": 0.3 * torch.randn(VOCAB, D)}
    # Exact in float32, so that both sides start from the same numbers.
    return {name: value.to(torch.float32).to(f64).requires_grad_() for name, value in p.items()}


def rms(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + CONFIG["norm_eps"]) * weight


def convolved(x, weight):
    return F.silu(F.conv1d(F.pad(x.T[None], (W - 1, 0)), weight, groups=x.shape[1])[0].T)


def mixer(h, p):
    q, k, v = (convolved(h @ p(f"{name}_proj.weight").T, p(f"{name}_conv1d.weight")) for name in "qkv")
    q, k = (x.view(-1, H, K).repeat_interleave(HV // H, dim=1) for x in (q, k))
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    v = v.view(-1, HV, V)
    beta = torch.sigmoid(h @ p("b_proj.weight").T)
    decay = torch.exp(-torch.exp(p("A_log")) * F.softplus(h @ p("a_proj.weight").T + p("dt_bias")))
    state, outputs = torch.zeros(HV, K, V, dtype=f64), []
    for t in range(h.shape[0]):
        state = state * decay[t][:, None, None]
        written = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * written[:, None, :]
        outputs.append(torch.einsum("hkv,hk->hv", state, q[t]) / K**0.5)
    gate = torch.sigmoid(h @ p("g_proj.weight").T).view(-1, HV, V)
    return (rms(torch.stack(outputs), p("o_norm.weight")) * gate).reshape(-1, HV * V) @ p("o_proj.weight").T


def logits_of(ids, p):
    x = p["model.embeddings.weight"][ids]
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        x = x + mixer(rms(x, p[at + "attn_norm.weight"]), lambda name: p[at + "attn." + name])
        h = rms(x, p[at + "mlp_norm.weight"])
        gate, up = (h @ p[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ p[at + "mlp.down_proj.weight"].T
    return rms(x, p["model.norm.weight"]) @ p["lm_head.weight"].T


def gradients(ids, p):
    logits = torch.stack([logits_of(row, p) for row in ids])
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    return logits, loss, dict(zip(p, torch.autograd.grad(loss, list(p.values()))))


def moved_by_rounding(ids, p, exact):
    """How far the matrices rounded to bfloat16, and nothing else, move a gradient: the most of any tensor."""
    rounded = {n: (x.detach().bfloat16().to(f64) if n.endswith("proj.weight") or n == "lm_head.weight" else x.detach())
               for n, x in p.items()}
    _, _, moved = gradients(ids, {name: value.requires_grad_() for name, value in rounded.items()})
    return max(((moved[name] - exact[name]).norm() / exact[name].norm()).item() for name in p)


p = parameters()
ids = torch.randint(0, VOCAB, (2, 70))
logits, loss, exact = gradients(ids, p)
moved = moved_by_rounding(ids, p, exact)
print(f"matrices in bfloat16 move a gradient by at most {moved:.1e}")
assert moved < 2e-2, "too sensitive to be compared with what bfloat16 gives"
folder = "model/gated_deltanet_sigmoid"
os.makedirs(folder, exist_ok=True)
narrow = lambda tensor: tensor.detach().to(torch.float32).contiguous()  # noqa: E731
save_file({name: narrow(value) for name, value in p.items()}, f"{folder}/model.safetensors")
expected = {"grad." + name: narrow(value) for name, value in exact.items()}
expected |= {"input_ids": ids, "logits": narrow(logits), "loss": narrow(loss)[None]}
save_file(expected, f"{folder}/expected.safetensors")
with open(f"{folder}/config.json", "w") as out:
    out.write(json.dumps(CONFIG, indent=1) + "\n")
