"""Records what PyTorch makes of Mamba, in float64 and token by token: scan/mamba.safetensors, model/mamba_tiny and
model/mamba_published. Needs torch, numpy and safetensors; run from this folder. Nothing else needs them.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20)
f64 = torch.float64


def rounded(tensor):
    """Exact in float32, so that both sides start from the same numbers."""
    return tensor.to(torch.float32).to(f64)


def scan(x, dt, B, C, z, A_log, D, dt_bias, h):
    """x, dt, z [T, D]; B, C [T, N]; h [N, D]. Gives y [T, D] and the last h."""
    A = -torch.exp(A_log).T
    ys = []
    for t in range(x.shape[0]):
        step = torch.log1p(torch.exp(dt[t] + dt_bias))
        h = torch.exp(step * A) * h + B[t][:, None] * (step * x[t])
        y = (C[t][:, None] * h).sum(0) + D * x[t]
        ys.append(y if z is None else y * z[t] * torch.sigmoid(z[t]))
    return torch.stack(ys), h


def record_scan():
    offsets = [0, 37, 38, 38, 111]
    T, D, N, S = offsets[-1], 21, 16, len(offsets) - 1
    named = {
        "x": torch.randn(T, D), "dt": torch.rand(T, D) * 6 - 5, "B": torch.randn(T, N), "C": torch.randn(T, N),
        "z": torch.randn(T, D), "A_log": torch.log(torch.arange(1, N + 1).repeat(D, 1)) + 0.1 * torch.randn(D, N),
        "skip": torch.randn(D), "dt_bias": 0.3 * torch.randn(D), "h0": torch.randn(S, N, D),
    }
    named = {name: rounded(value).requires_grad_() for name, value in named.items()}
    ys, hts = [], []
    for n in range(S):
        rows = slice(offsets[n], offsets[n + 1])
        wide = [named[k][rows] for k in ("x", "dt", "B", "C", "z")]
        if offsets[n] == offsets[n + 1]:
            hts.append(named["h0"][n])
            continue
        y, h = scan(*wide, named["A_log"], named["skip"], named["dt_bias"], named["h0"][n])
        ys.append(y)
        hts.append(h)
    y, ht = torch.cat(ys), torch.stack(hts)
    dy, d_ht = rounded(torch.randn(T, D)), rounded(torch.randn(S, N, D))
    ((y * dy).sum() + (ht * d_ht).sum()).backward()
    out = {name: value.detach() for name, value in named.items()}
    out |= {"grad." + name: value.grad for name, value in named.items()}
    out |= {"y": y.detach(), "ht": ht.detach(), "dy": dy, "d_ht": d_ht}
    out = {name: value.contiguous() for name, value in out.items()}
    out["offsets"] = torch.tensor(offsets)
    save_file(out, "scan/mamba.safetensors")


class Model:
    """Parameters by their published names, and the forward that they stand for."""

    def __init__(self, config, mlp_width, root, norm, final_norm):
        self.c, self.root, self.norm, self.final_norm = config, root, norm, final_norm
        D, V, N, W = (config[k] for k in ("hidden_size", "vocab_size", "state_size", "conv"))
        inner, rank = config["inner"], config["rank"]
        self.p = {f"{root}embeddings.weight": torch.randn(V, D)}
        for i in range(config["num_hidden_layers"]):
            at = f"{root}layers.{i}."
            self.p |= {
                f"{at}{norm}.weight": 1 + 0.1 * torch.randn(D),
                f"{at}mixer.in_proj.weight": torch.randn(2 * inner, D) / D**0.5,
                f"{at}mixer.conv1d.weight": torch.randn(inner, 1, W) / W**0.5,
                f"{at}mixer.conv1d.bias": 0.2 * torch.randn(inner),
                f"{at}mixer.x_proj.weight": torch.randn(rank + 2 * N, inner) / inner**0.5,
                f"{at}mixer.dt_proj.weight": torch.randn(inner, rank) / rank**0.5,
                f"{at}mixer.dt_proj.bias": torch.rand(inner) * 3 - 4,
                f"{at}mixer.A_log": torch.log(torch.arange(1, N + 1).repeat(inner, 1)),
                f"{at}mixer.D": 1 + 0.2 * torch.randn(inner),
                f"{at}mixer.out_proj.weight": torch.randn(D, inner) / inner**0.5,
            }
            if mlp_width:
                self.p |= {
                    f"{at}mlp_norm.weight": 1 + 0.1 * torch.randn(D),
                    f"{at}mlp.gate_proj.weight": torch.randn(mlp_width, D) / D**0.5,
                    f"{at}mlp.up_proj.weight": torch.randn(mlp_width, D) / D**0.5,
                    f"{at}mlp.down_proj.weight": torch.randn(D, mlp_width) / mlp_width**0.5,
                }
        self.p[f"{root}{final_norm}.weight"] = 1 + 0.1 * torch.randn(D)
        self.p["lm_head.weight"] = 0.3 * torch.randn(V, D)
        self.p = {name: rounded(value).requires_grad_() for name, value in self.p.items()}

    def rms(self, x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.c["norm_eps"]) * self.p[name + ".weight"]

    def mixer(self, h, at):
        p = lambda name: self.p[at + "mixer." + name]
        N, W, rank = self.c["state_size"], self.c["conv"], self.c["rank"]
        x, z = (h @ p("in_proj.weight").T).chunk(2, dim=-1)
        padded = F.pad(x.T[None], (W - 1, 0))
        x = F.silu(F.conv1d(padded, p("conv1d.weight"), p("conv1d.bias"), groups=x.shape[1])[0].T)
        low, B, C = (x @ p("x_proj.weight").T).split([rank, N, N], dim=-1)
        start = torch.zeros(N, x.shape[1], dtype=f64)
        y, _ = scan(x, low @ p("dt_proj.weight").T, B, C, z, p("A_log"), p("D"), p("dt_proj.bias"), start)
        return y @ p("out_proj.weight").T

    def logits(self, ids):
        x = self.p[f"{self.root}embeddings.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            at = f"{self.root}layers.{i}."
            x = x + self.mixer(self.rms(x, at + self.norm), at)
            if at + "mlp_norm.weight" in self.p:
                h = self.rms(x, at + "mlp_norm")
                gate, up = h @ self.p[at + "mlp.gate_proj.weight"].T, h @ self.p[at + "mlp.up_proj.weight"].T
                x = x + (F.silu(gate) * up) @ self.p[at + "mlp.down_proj.weight"].T
        return self.rms(x, self.root + self.final_norm) @ self.p["lm_head.weight"].T


def record_model(folder, config, file, mlp_width, names):
    model = Model(config, mlp_width, *names)
    ids = torch.randint(0, config["vocab_size"], (2, 45))
    logits = torch.stack([model.logits(row) for row in ids])
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, config["vocab_size"]), ids[:, 1:].reshape(-1))
    loss.backward()
    os.makedirs(folder, exist_ok=True)
    narrow = lambda tensor: tensor.detach().to(torch.float32).contiguous()
    save_file({name: narrow(value) for name, value in model.p.items()}, f"{folder}/model.safetensors")
    expected = {"grad." + name: narrow(value.grad) for name, value in model.p.items()}
    expected |= {"input_ids": ids, "logits": narrow(logits), "loss": narrow(loss)[None]}
    save_file(expected, f"{folder}/expected.safetensors")
    with open(f"{folder}/config.json", "w") as out:
        out.write(json.dumps(file, indent=1) + "\n")


record_scan()
base = {"vocab_size": 47, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 8, "norm_eps": 1e-6,
        "tie_word_embeddings": False}
record_model("model/mamba_tiny", base | {"inner": 48, "rank": 3, "conv": 4},
             base | {"model_type": "qdelta", "rule": "mamba", "conv_size": 4, "expand": 2, "time_step_rank": 3,
                     "intermediate_size": 32}, 32, ("model.", "attn_norm", "norm"))
record_model("model/mamba_published", base | {"inner": 48, "rank": 2, "conv": 4},
             base | {"model_type": "mamba", "conv_kernel": 4, "expand": 2, "time_step_rank": "auto",
                     "intermediate_size": 48}, 0, ("backbone.", "norm", "norm_f"))
