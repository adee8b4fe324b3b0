"""What the tests share. Those that need PyTorch, transformers or flash-linear-attention are skipped where it is missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib

import pytest

# Both packages have a model type gated_deltanet, and the Auto classes give that of the one imported last: ours, whatever test
# comes first. Where there is no GPU Triton may refuse to be imported.
for name in ("fla", "fla.models"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    if not GOLDEN.is_dir():
        pytest.skip("the recorded cases, tests/golden, are not beside this folder")
    return GOLDEN


@pytest.fixture(scope="session")
def binary() -> pathlib.Path:
    """The engine's own program: where QDELTA_BINARY says, or beside the library."""
    library = pathlib.Path(os.environ.get("QDELTA_LIBRARY", "nowhere"))
    places = [library.parent / "qdelta", library.parent.parent / "bin" / "qdelta"]
    named = os.environ.get("QDELTA_BINARY")
    for place in [pathlib.Path(named)] if named else places:
        if place.is_file():
            return place
    pytest.skip("the engine's binary is not here: QDELTA_BINARY may name it")


def pytest_report_header() -> list[str]:
    import qdelta

    lines = [f"qdelta {qdelta.__version__}"]
    for name in ("numpy", "torch", "transformers", "fla"):
        try:
            module = __import__(name)
            lines.append(f"{name} {getattr(module, '__version__', '')}")
        except ImportError:
            lines.append(f"{name} is not here: what needs it is skipped")
            continue
        if name == "fla" and importlib.util.find_spec("fla.models") is None:
            lines.append("fla.models is not here (flash-linear-attention; this is fla-core alone): what needs it is skipped")
    return lines
