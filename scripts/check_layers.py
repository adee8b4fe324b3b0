#!/usr/bin/env python3
"""Checks that every #include "..." under src follows the map of modules.

    scripts/check_layers.py [ROOT]

The map is the mermaid diagram in ARCHITECTURE.md: `model["..."] --> kernels & io` lets src/model include src/kernels, src/io
and whatever those may include. Two rules are not in it: only src/kernels includes src/kernels/cuda, and a module of the
diagram is a folder of src and the other way round.

It also checks that there is one way into some things: JSON is parsed, and files are opened for reading, where the limits are.
"""

import pathlib
import re
import sys

# What only these files may do, and what the others call.
ONE_WAY = [
    (re.compile(r"[Jj]son::(parse|sax_parse|accept|from_\w+)\b"),
     {"src/io/parse_json.cpp"}, "parses JSON by itself, without limits: call io/parse_json.h"),
    (re.compile(r"\bstd::(i|w|wi)?fstream\b|\bO_RDONLY\b(?!.*O_DIRECTORY)|\bfopen\([^)]*\"r"),
     {"src/io/regular_file.cpp", "src/core/cpu_info.cpp"}, "opens a file by itself, which may block: call io/regular_file.h"),
]

MODULE = r"(\w+)(?:\[\"[^\"]*\"\])?"


def read_map(architecture):
    """Module -> the modules that the diagram's arrows lead to."""
    diagram = re.search(r"```mermaid\n(.*?)```", architecture, re.DOTALL)
    if not diagram:
        sys.exit("check_layers: ARCHITECTURE.md has no mermaid diagram")
    below = {}
    for line in diagram.group(1).splitlines():
        found = re.fullmatch(rf"\s*{MODULE}(?:\s*-->\s*(.+?))?\s*", line)
        if not found or line.startswith("flowchart"):
            continue
        below.setdefault(found.group(1), set())
        for name in (found.group(2) or "").split("&"):
            if name.strip():
                below[found.group(1)].add(name.strip())
                below.setdefault(name.strip(), set())
    return below


def closure(below):
    """Module -> all modules it may include: those it points to, and theirs."""
    allowed = {}

    def visit(module, path):
        if module in path:
            sys.exit("check_layers: the map has a circle: " + " --> ".join([*path, module]))
        if module not in allowed:
            reached = [visit(lower, [*path, module]) for lower in sorted(below[module])]
            allowed[module] = below[module].union(*reached)
        return allowed[module]

    for module in below:
        visit(module, [])
    return allowed


def check(root):
    """What is wrong, a line each."""
    source = root / "src"
    allowed = closure(read_map((root / "ARCHITECTURE.md").read_text()))
    folders = {folder.name for folder in source.iterdir() if folder.is_dir()}
    wrong = [f"src/{name} is not in the map of ARCHITECTURE.md" for name in sorted(folders - set(allowed))]
    wrong += [f"ARCHITECTURE.md has {name}, but there is no src/{name}" for name in sorted(set(allowed) - folders)]
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        name = path.relative_to(root).as_posix()
        module = name.split("/")[1]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            wrong += [f"{name}:{number}: {what}" for pattern, where, what in ONE_WAY
                      if pattern.search(line) and name not in where]
            found = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not found:
                continue
            target = found.group(1)
            other = target.split("/")[0]
            if other in folders and other != module and other not in allowed.get(module, set()):
                wrong.append(f'{name}:{number}: {module} may not include "{target}"')
            if target.startswith("kernels/cuda/") and module != "kernels":
                wrong.append(f'{name}:{number}: only src/kernels may include "{target}"')
    return wrong


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    wrong = check(root)
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"check_layers: {len(wrong)} line(s) against the map in ARCHITECTURE.md, or against the one way into something")


if __name__ == "__main__":
    main()
