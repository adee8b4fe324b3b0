#!/usr/bin/env python3
"""A model of the time of a training step on many GPUs, and what a run costs.

  step         = compute + max(0, reduce - 2/3 compute) + gather
  compute      = tokens of a GPU / its measured rate
  reduce       = 4 P (N - 1) / N / bandwidth + latency      gradients, float32, during the backward (2/3 of compute)
  gather       = 6 P (N - 1) / N / bandwidth + latency      weights, float32 and bfloat16, after the update
  latency      = 20 us (1 + log2 of the machines) for each bucket of 16 MiB
  bandwidth    NVLink within a machine of 8; beyond, InfiniBand's share of a GPU

P parameters, N GPUs. The rates of one GPU are measured (docs/gpu.md); bandwidths are published peaks times 0.8. Nothing here was
measured on more than one GPU: it is an estimate.
"""
import argparse

NVLINK = 0.8 * 450e9  # bytes/s in each direction, of an H200
INFINIBAND = 0.8 * 50e9  # a 400 Gbit/s adapter for each GPU
LATENCY = 20e-6  # of a collective per bucket and machine hop
BUCKET = 16 * 2**20


def step_seconds(parameters, tokens, gpus, rate):
    compute = tokens / gpus / rate
    if gpus == 1:
        return compute
    bandwidth = NVLINK if gpus <= 8 else INFINIBAND
    share = (gpus - 1) / gpus
    machines = max(1, gpus // 8)
    latency = 4 * parameters / BUCKET * LATENCY * (1 + (machines - 1).bit_length())
    reduce = 4 * parameters * share / bandwidth + latency
    gather = 6 * parameters * share / bandwidth + latency
    return compute + max(0.0, reduce - 2 / 3 * compute) + gather


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=float, default=3.5, help="of a GPU hour, for the cost")
    arguments = parser.parse_args()
    runs = [
        ("340M, 15B tokens", 380_017_148, 15e9, 198_600),
        ("1.3B, 100B tokens", 1_387_606_780, 100e9, 53_400),
    ]
    for tokens, what in ((524_288, "as published"), (4_194_304, "eight times the published batch")):
        for name, parameters, total, rate in runs:
            print(f"{name}: {tokens:,} tokens a step ({what}), {rate:,} tokens/s on one GPU")
            show(parameters, tokens, total, rate, arguments.price)


def show(parameters, tokens, total, rate, price):
    print(f"{'GPUs':>6} {'step ms':>9} {'tokens/s':>12} {'efficiency':>11} {'hours':>8} {'cost':>9}")
    for gpus in (1, 8, 16, 32, 64, 128, 256, 512, 1024):
        if tokens / gpus < 2048:
            continue  # less than a row of 2,048 tokens for each
        seconds = step_seconds(parameters, tokens, gpus, rate)
        hours = total / tokens * seconds / 3600
        efficiency = tokens / gpus / rate / seconds
        print(
            f"{gpus:>6} {1e3 * seconds:>9.1f} {tokens / seconds:>12,.0f} {100 * efficiency:>10.0f}% {hours:>8.1f}"
            f" {hours * gpus * price:>9,.0f}"
        )
    print()


if __name__ == "__main__":
    main()
