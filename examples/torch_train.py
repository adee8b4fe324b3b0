"""Trains a model in PyTorch on the engine's token shards, on one process or many (FSDP2), and leaves a folder that both
`qdelta` and transformers load.

    qdelta tokenize book.txt --tokenizer bytes --out shards
    python examples/torch_train.py --data shards --out run --steps 200
    torchrun --nproc-per-node 8 examples/torch_train.py --data shards --out run --batch 16 --tokens 2048
    qdelta generate --model run --prompt "The"

Every process holds a part of the parameters, gradients and optimizer states; a block's parameters are gathered when it is
computed. On GPUs activations are bfloat16, parameters float32.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import qdelta
from qdelta.models import GatedDeltaNetConfig, QDeltaConfig
from transformers import AutoModelForCausalLM

TOKENIZER_FILES = (
    "qdelta_tokenizer.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json", "merges.txt",
)  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with token shards, from qdelta tokenize")
    parser.add_argument("--out", required=True, help="folder for the model")
    parser.add_argument("--config", help="a config.json; else a small model of --rule")
    parser.add_argument("--rule", default="q_delta", help="q_delta, gated_delta, delta, retnet, mamba2, longhorn, linear")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a process at every step")
    parser.add_argument("--tokens", type=int, default=256, help="of a sequence")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps until the learning rate is reached")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true", help="compute blocks again in the backward, to save memory")
    parser.add_argument("--losses", help="write the loss of every step to this file")
    return parser.parse_args()


def make_config(flags: argparse.Namespace, vocab_size: int) -> QDeltaConfig:
    if flags.config:
        with open(flags.config, encoding="utf-8") as file:
            options = json.load(file)
        kind = GatedDeltaNetConfig if options.get("model_type") == "gated_deltanet" else QDeltaConfig
        return kind(**options)
    kind = GatedDeltaNetConfig if flags.rule == "gated_delta" else QDeltaConfig
    return kind(
        rule=flags.rule, vocab_size=vocab_size, hidden_size=flags.hidden, num_hidden_layers=flags.layers,
        num_heads=flags.heads, head_dim=flags.hidden // flags.heads, expand_v=1,
    )  # fmt: skip


def shard(model: torch.nn.Module, device: torch.device) -> None:
    """FSDP2: each block by itself, then what is left."""
    policy = MixedPrecisionPolicy()
    if device.type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def learning_rate(flags: argparse.Namespace, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < flags.warmup:
        return flags.lr * (step + 1) / flags.warmup
    done = (step - flags.warmup) / max(1, flags.steps - flags.warmup)
    return flags.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def save(model: torch.nn.Module, flags: argparse.Namespace, rank: int) -> None:
    """The whole model, put together on the first process, and the tokenizer of the shards beside it."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        whole = AutoModelForCausalLM.from_config(model.config)
        whole.load_state_dict(state)
        whole.save_pretrained(flags.out)
        for name in TOKENIZER_FILES:
            if os.path.exists(os.path.join(flags.data, name)):
                shutil.copy(os.path.join(flags.data, name), flags.out)
    dist.barrier()


def train(flags: argparse.Namespace, device: torch.device, rank: int, ranks: int) -> None:
    data = qdelta.TokenShards(flags.data)
    torch.manual_seed(flags.seed)  # the same initial values everywhere
    model = AutoModelForCausalLM.from_config(make_config(flags, data.vocab_size)).to(device).train()
    if model.config.vocab_size < data.vocab_size:
        raise SystemExit(f"the model has {model.config.vocab_size} tokens, the shards {data.vocab_size}")
    if flags.checkpointing:
        model.gradient_checkpointing_enable()
    shard(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(flags.steps):
        ids = torch.from_numpy(data.batch(step, flags.batch, flags.tokens, rank, ranks, flags.seed)).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(flags, step)
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
        if rank == 0 and (step % 10 == 0 or step + 1 == flags.steps):
            print(f"step {step:6d}  loss {losses[-1]:.4f}", flush=True)
    save(model, flags, rank)
    if rank == 0 and flags.losses:
        with open(flags.losses, "w") as file:
            json.dump(losses, file)


def main() -> None:
    flags = parse()
    gpu = torch.cuda.is_available()
    if "RANK" not in os.environ:  # not started by torchrun
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_RANK="0")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        train(flags, device, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
        if not gpu:
            time.sleep(0.1)  # gloo's threads let go of their last tensors: while Python ends they cannot, and abort the process


if __name__ == "__main__":
    main()
