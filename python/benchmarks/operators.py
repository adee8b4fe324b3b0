"""Times the operators through PyTorch on a GPU, beside flash-linear-attention in the same run.

    python operators.py [--shapes 16x2048x6x128x256,...] [--of qdelta,fla] [--json FILE]
    python operators.py --overhead [--device cpu]               # only what a call costs beside the library

A shape is batch x tokens x heads x K x V, in bfloat16. For each: the GPU's time by CUDA-graph replay (no launch overhead),
and the wall time of a call from Python, eager and compiled; forward, and forward with backward. Before them what a call costs
the CPU beside the kernels: the time until it returns, on a shape whose kernels take less than that, in rounds in turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time

import torch

from qdelta import ops

SHAPES = (
    "16x2048x6x128x256,8x4096x6x128x256,2x16384x6x128x256,1x32768x6x128x256,8x4096x16x128x128,1x32768x16x128x128,"
    "16x2048x6x256x512,4x8192x16x96x192"
)


def make_inputs(B, T, H, K, V, device="cuda"):
    bf16 = {"device": device, "dtype": torch.bfloat16}
    return [
        torch.randn(B, T, H, K, **bf16),
        torch.randn(B, T, H, K, **bf16),
        torch.randn(B, T, H, V, **bf16),
        -torch.rand(B, T, H, device=device) * 0.1,
        torch.rand(B, T, H, **bf16),
        torch.rand(B, T, H, **bf16),
    ]


def graph_us(call, repeats=20) -> float:
    """Median microseconds of a replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def wall_us(call, repeats=20) -> float:
    """Median microseconds until the GPU is done, called from Python."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


OURS = {
    "qdelta q_delta": (lambda *t: ops.chunk_q_delta_rule(*t, use_qk_l2norm_in_kernel=True)[0], 6),
    "qdelta gated_delta": (lambda *t: ops.chunk_gated_delta_rule(*t, use_qk_l2norm_in_kernel=True)[0], 5),
}


def functions_of_fla() -> dict:
    import fla.ops.common.chunk_o as chunk_o
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    # FLA refuses this backward on some Triton and Hopper as wrong: it is timed, its values are not trusted.
    if hasattr(chunk_o, "TRITON_ABOVE_3_7_1"):
        chunk_o.TRITON_ABOVE_3_7_1 = True
    return {"fla gated_delta": (lambda *t: chunk_gated_delta_rule(*t, use_qk_l2norm_in_kernel=True)[0], 5)}


def forward_and_backward(function, tensors, do):
    def both():
        return torch.autograd.grad(function(*tensors), tensors, do)

    return both


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def attempt(measure, *arguments):
    """Microseconds, or why there are none."""
    try:
        return measure(*arguments)
    except Exception as error:
        wait()
        return f"{type(error).__name__}: {error}".splitlines()[0][:90]


def show(value) -> str:
    return f"{value:9.0f}" if isinstance(value, float) else f" ({value})"


def time_shapes(shapes: str, functions: dict) -> dict:
    results = {}
    print("microseconds, median; graph: GPU time by CUDA-graph replay, eager and compiled: wall time of a call")
    print(f"{'':20s} {'shape':22s} {'':8s} {'graph':>9s} {'eager':>9s} {'compiled':>9s}")
    for text in shapes.split(","):
        B, T, H, K, V = map(int, text.split("x"))
        for name, (function, count) in functions.items():
            torch._dynamo.reset()
            tensors = make_inputs(B, T, H, K, V)[:count]
            compiled = torch.compile(function, fullgraph=not name.startswith("fla"))
            do = torch.randn(B, T, H, V, device="cuda", dtype=torch.bfloat16)
            with torch.no_grad():
                row = [attempt(measure, lambda f=f: f(*tensors)) for measure, f in
                       ((graph_us, function), (wall_us, function), (wall_us, compiled))]
            print(f"{name:20s} {text:22s} forward  " + " ".join(map(show, row)), flush=True)
            results[f"{name}/{text}/forward"] = row
            for tensor in tensors:
                tensor.requires_grad_()
            eager, fast = (forward_and_backward(f, tensors, do) for f in (function, compiled))
            row = [attempt(graph_us, eager), attempt(wall_us, eager), attempt(wall_us, fast)]
            print(f"{name:20s} {text:22s} both     " + " ".join(map(show, row)), flush=True)
            results[f"{name}/{text}/both"] = row
            del tensors, do
            torch.cuda.empty_cache()
    return results


ROUNDS = 7  # odd: the median is one of them


def time_overhead(functions: dict, device: str) -> dict:
    """What a call costs the CPU, and how much of it passes inside libqdelta: its checks and the launches. All calls are warmed
    up before the first is measured, and measured in turn, so that none has the process's first seconds to itself."""
    calls = overhead_calls({**functions, "nothing": (Nothing.apply, 6)}, device)
    end = time.perf_counter() + 1
    while time.perf_counter() < end:
        for call in calls.values():
            call()
        wait()
    rounds = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, call in calls.items():
            rounds[key].append(host_and_library_us(call))
    print("microseconds of the CPU until a call of 1 x 64 tokens, 1 head of 64 x 64, returns; (of it inside the library)")
    print(f"{'':52s} {'median round':>15s} {'quietest':>15s}   of {ROUNDS} in turn")
    results = {}
    for (name, kind), found in rounds.items():
        found.sort()
        median, quietest = found[ROUNDS // 2], found[0]
        print(f"{name:20s} {kind:31s} {show_pair(median):>15s} {show_pair(quietest):>15s}", flush=True)
        results.setdefault(name, {})[kind] = {"median": median, "quietest": quietest, "rounds": found}
    return results


def overhead_calls(functions: dict, device: str) -> dict:
    """By operator and kind of call."""
    calls = {}
    for name, (function, count) in functions.items():
        tensors = make_inputs(1, 64, 1, 64, 64, device)[:count]
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        do = torch.randn(1, 64, 1, 64, device=device, dtype=torch.bfloat16)
        calls[name, "forward"] = functools.partial(function, *tensors)
        calls[name, "forward that records gradients"] = functools.partial(function, *leaves)
        calls[name, "forward and backward"] = forward_and_backward(function, leaves, do)
    return calls


class Nothing(torch.autograd.Function):
    """What PyTorch itself takes for a function of six tensors: it allocates the results and computes none."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def show_pair(us) -> str:
    return f"{us[0]:.1f} ({us[1]:.1f})"


def host_and_library_us(call, repeats=200) -> tuple[float, float]:
    """Median microseconds until a call returns, and of those inside the library's functions."""
    from qdelta.ops import _call

    names = ("qdelta_forward", "qdelta_backward")
    originals = {name: getattr(_call.library, name) for name in names}
    spent = [0.0]

    def timed(original):
        def run(*arguments):
            begin = time.perf_counter()
            status = original(*arguments)
            spent[0] += (time.perf_counter() - begin) * 1e6
            return status

        return run

    for name in names:
        setattr(_call.library, name, timed(originals[name]))
    try:
        for _ in range(10):
            call()
        times, inside = [], []
        for _ in range(repeats):
            wait()
            spent[0] = 0.0
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e6)
            inside.append(spent[0])
        wait()
    finally:
        for name in names:
            setattr(_call.library, name, originals[name])
    return statistics.median(times), statistics.median(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--of", default="qdelta", help="whose operators: qdelta, fla, or both with a comma")
    parser.add_argument("--overhead", action="store_true", help="only what a call costs the CPU")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    flags = parser.parse_args()
    if flags.device == "cpu":
        torch.set_num_threads(1)
        print(f"torch {torch.__version__}, one thread")
        time_overhead(OURS, "cpu")
        return
    if not torch.cuda.is_available():
        raise SystemExit("operators.py: this machine has no GPU that PyTorch can use")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    results = {}
    whose = flags.of.split(",")
    if flags.overhead or "qdelta" in whose:
        results["overhead"] = time_overhead(OURS, "cuda")
    if not flags.overhead:
        results["shapes"] = {}
        if "qdelta" in whose:
            results["shapes"] |= time_shapes(flags.shapes, OURS)
        if "fla" in whose:  # last: its first calls autotune, for minutes
            results["shapes"] |= time_shapes(flags.shapes, functions_of_fla())
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
