#!/usr/bin/env python3
"""How far bfloat16 is from float64: relative L2 errors of the operator, over shapes.

    scripts/bf16_accuracy.py build/qdelta [--device cuda] [--rules q_delta,delta] [--seeds 3] [--decay 0.1] [--beta 1]

Makes random cases whose q, k, v and do are bfloat16 numbers, runs `qdelta op --form chunk --dtype bf16 --backward` and
`qdelta op --form oracle --backward` (float64) on the same file, and prints the largest error of each output over the
rules and seeds, for each shape. Needs NumPy.
"""
import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

OUTPUTS = ["o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dlambda", "dh0"]
SHAPES = [(64, 1, 16), (64, 2, 16), (300, 1, 64), (300, 2, 64), (300, 4, 64), (300, 16, 64), (300, 64, 64), (64, 128, 128),
          (300, 128, 128), (2048, 128, 128)]  # tokens, K, V
DTYPES = {"F32": "<f4", "F64": "<f8", "BF16": "<u2"}


def rounded(values):
    """To the nearest bfloat16, ties to even, kept as float32."""
    bits = values.astype("<f4").view("<u4").astype(numpy.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype("<u4").view("<f4")


def write_case(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, values in tensors.items():
        content = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_result(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    result = {}
    for name, about in json.loads(content[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        values = numpy.frombuffer(content[8 + length + begin:8 + length + end], DTYPES[about["dtype"]])
        if about["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        result[name] = values.astype(numpy.float64)
    return result


def make_case(path, options, rule, tokens, K, V, seed):
    random = numpy.random.default_rng(seed)
    heads = 2
    gates = (1, tokens, heads)
    sigmoid = lambda x: 1 / (1 + numpy.exp(-x))  # noqa: E731
    write_case(path, {
        "q": rounded(random.normal(size=(1, tokens, heads, K))), "k": rounded(random.normal(size=(1, tokens, heads, K))),
        "v": rounded(random.normal(size=(1, tokens, heads, V))), "do": rounded(random.normal(size=(1, tokens, heads, V))),
        "g": -options.decay * numpy.abs(random.normal(size=gates)), "beta": options.beta * sigmoid(random.normal(size=gates)),
        "lambda": sigmoid(random.normal(size=gates)), "h0": random.normal(size=(1, heads, K, V)),
        "dht": random.normal(size=(1, heads, K, V)),
    }, {"rule": rule, "qk_l2norm": "true"})


def errors_of(options, folder, rule, shape, seed):
    case = folder / "case.safetensors"
    make_case(case, options, rule, *shape, seed)
    results = []
    for name, words in (("bf16", ["--form", "chunk", "--dtype", "bf16", "--device", options.device]),
                        ("oracle", ["--form", "oracle"])):
        out = folder / f"{name}.safetensors"
        subprocess.run([options.qdelta, "op", "--in", case, "--out", out, "--backward", *words], check=True,
                       stdout=subprocess.DEVNULL)
        results.append(read_result(out))
    measured, exact = results
    return {name: float(numpy.linalg.norm(measured[name] - exact[name]) / numpy.linalg.norm(exact[name]))
            for name in OUTPUTS if name in exact and numpy.linalg.norm(exact[name]) > 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("qdelta")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rules", default="q_delta,gated_delta,delta,longhorn,mamba2,retnet,linear")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--decay", type=float, default=0.1, help="-g is this times the size of a normal number; 0: none")
    parser.add_argument("--beta", type=float, default=1, help="the largest; above 1 eigenvalues are negative")
    options = parser.parse_args()
    print(f"{'tokens':>6} {'K':>4} {'V':>4} " + " ".join(f"{name:>8}" for name in OUTPUTS))
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            worst = {}
            for rule in options.rules.split(","):
                for seed in range(options.seeds):
                    for name, error in errors_of(options, Path(folder), rule, shape, seed).items():
                        worst[name] = max(worst.get(name, 0), error)
            print(f"{shape[0]:>6} {shape[1]:>4} {shape[2]:>4} " +
                  " ".join(f"{worst[name]:>8.1e}" if name in worst else f"{'-':>8}" for name in OUTPUTS))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
