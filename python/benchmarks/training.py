"""Times training steps of the 340M model in PyTorch on a GPU, with our operators and with flash-linear-attention's.

    python training.py [--shapes 16x2048,2x16384] [--of qdelta,fla] [--modes compiled,eager] [--steps 10]

A shape is batch x tokens. AdamW, bfloat16 by autocast with float32 parameters. Compiled: every block and the head with its loss
through torch.compile, as torchtitan does it; eager: nothing. Both
runs are the same model in the same code; only the function that computes the recurrence differs. Q-Delta has no counterpart in
flash-linear-attention, so Gated DeltaNet is compared.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from qdelta.layers import CausalLM, ModelConfig
from qdelta.layers import delta_net


def fla_recurrence(rule, q, k, v, g, beta, lamb, **options):
    import fla.ops.common.chunk_o as chunk_o
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    if hasattr(chunk_o, "TRITON_ABOVE_3_7_1"):  # refused on some Triton as wrong: timed, its values are not trusted
        chunk_o.TRITON_ABOVE_3_7_1 = True
    if rule != "gated_delta":
        raise ValueError(f"{rule} is not timed with flash-linear-attention")
    options.pop("initial_state"), options.pop("output_final_state")
    return chunk_gated_delta_rule(q, k, v, g, beta.to(q.dtype), **options)


def time_training(name: str, rule: str, shape: str, steps: int, compiled: bool) -> None:
    batch, tokens = map(int, shape.split("x"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = CausalLM(ModelConfig(rule=rule)).cuda()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if compiled:  # blocks are alike: one is compiled, and its code serves all
        for block in model.model.layers:
            block.compile()
        model.loss = torch.compile(model.loss)
    ids = torch.randint(0, 32000, (batch, tokens + 1), device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    begin = time.perf_counter()
    for _ in range(3):
        loss = step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    rate = batch * tokens / statistics.median(times)
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{name:20s} {shape:10s} {'compiled' if compiled else 'eager':9s} {rate:9.0f} tokens/s  {memory:6.1f} GiB  "
        f"first three steps {first:6.1f} s  loss {loss.item():.3f}  {parameters:,} parameters",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="16x2048")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--of", default="qdelta", help="whose operators: qdelta, fla, or both with a comma")
    parser.add_argument("--modes", default="compiled,eager")
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("training.py: this machine has no GPU that PyTorch can use")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    ours = delta_net.recurrence
    rows = []
    if "qdelta" in flags.of:
        rows += [("qdelta gated_delta", "gated_delta", ours), ("qdelta q_delta", "q_delta", ours)]
    if "fla" in flags.of:  # last: its first calls autotune, for minutes
        rows.append(("fla gated_delta", "gated_delta", fla_recurrence))
    for shape in flags.shapes.split(","):
        for name, rule, function in rows:
            for mode in flags.modes.split(","):
                delta_net.recurrence = function
                try:
                    time_training(name, rule, shape, flags.steps, mode == "compiled")
                except Exception as error:
                    print(f"{name:20s} {shape:10s} {mode}: {type(error).__name__}: {error}"[:2000], flush=True)
                finally:
                    delta_net.recurrence = ours


if __name__ == "__main__":
    main()
