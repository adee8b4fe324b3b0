#!/usr/bin/env python3
"""Makes C++ of a CUDA file, for the emulator: translate.py FILE.cu OUT.cpp

Two things of CUDA are not C++: launches, kernel<<<grid, block>>>(args), and dynamic shared memory,
extern __shared__ T name[]. The rest is left to macros and functions (include/cuda_runtime.h).
"""

import pathlib
import re
import sys

SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];")


def kernel_begin(text, end):
    """Where the name of a kernel begins that ends at `end`, template arguments included."""
    at = end
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(text[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def translate(text):
    text = SHARED.sub(r"auto* \2 = reinterpret_cast<\1*>(emulator::dynamic_shared());", text)
    while (end := text.find("<<<")) >= 0:
        begin = kernel_begin(text, end)
        close = text.index(">>>", end)
        kernel = text[begin:end].strip()
        text = f"{text[:begin]}emulator::launch({kernel}, {text[end + 3:close]}){text[close + 3:]}"
    return text


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    text = source.read_text()
    out = f'#include "cuda_runtime.h"\n#line 1 "{source.resolve()}"\n' + translate(text)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(out)


if __name__ == "__main__":
    main()
