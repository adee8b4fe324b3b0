"""scripts/check_layers.py finds what is against the map, in a small tree made for it."""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import check_layers  # noqa: E402

MAP = '# Map\n```mermaid\nflowchart TB\n  cli["cli: x"] --> model & kernels\n  model["model: y"] --> kernels\n' \
      '  kernels["kernels: z"] --> core\n  core["core"]\n```\n'


def wrong_in(files, architecture=MAP):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "ARCHITECTURE.md").write_text(architecture)
        plain = {f"src/{module}/a.h": "" for module in ("cli", "model", "kernels", "core")}
        for name, text in {**plain, **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return check_layers.check(root)


def expect(found, *wanted):
    assert len(found) == len(wanted) and all(w in f for f, w in zip(found, wanted)), (found, wanted)


expect(wrong_in({"src/model/b.cpp": '#include "kernels/a.h"\n#include "core/a.h"\n#include <vector>\n#include "b.h"\n'}))
expect(wrong_in({"src/core/b.cpp": '\n#include "model/a.h"\n'}), 'src/core/b.cpp:2: core may not include "model/a.h"')
expect(wrong_in({"src/kernels/b.cu": '#include "kernels/cuda/x.h"\n'}))
expect(wrong_in({"src/model/b.h": '#include "kernels/cuda/x.h"\n'}), "only src/kernels")
expect(wrong_in({"src/more/b.h": ""}), "src/more is not in the map")
expect(wrong_in({}, MAP.replace('core["core"]', 'core["core"]\n  rule["r"] --> core')), "there is no src/rule")
for line in ("const auto j = nlohmann::json::parse(text);", "Json::sax_parse(a, b, &c);", "OrderedJson::parse(x)"):
    expect(wrong_in({"src/model/b.cpp": line + "\n"}), "src/model/b.cpp:1: parses JSON by itself")
    expect(wrong_in({"src/io/parse_json.cpp": line + "\n"}, MAP.replace('core["core"]', 'core["core"]\n  io["i"] --> core')))
for line in ("std::ifstream in(path);", "::open(path, O_RDONLY | O_CLOEXEC);", 'std::fopen(path, "rb");'):
    expect(wrong_in({"src/model/b.cpp": line + "\n"}), "src/model/b.cpp:1: opens a file by itself")
expect(wrong_in({"src/model/b.cpp": "::open(folder, O_RDONLY | O_DIRECTORY);\nparse_json(text, label);\nstd::ofstream out(path);\n"}))
try:
    wrong_in({}, MAP.replace('core["core"]', 'core["core"] --> cli'))
    raise AssertionError("a circle was not found")
except SystemExit as error:
    assert "circle" in str(error), error
