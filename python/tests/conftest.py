"""What the tests share. Those that need PyTorch, transformers or flash-linear-attention are skipped where it is missing."""

from __future__ import annotations

import pathlib

import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    if not GOLDEN.is_dir():
        pytest.skip("the recorded cases, tests/golden, are not beside this folder")
    return GOLDEN


def pytest_report_header() -> list[str]:
    import qdelta

    lines = [f"qdelta {qdelta.__version__}"]
    for name in ("numpy", "torch", "transformers", "fla"):
        try:
            module = __import__(name)
            lines.append(f"{name} {getattr(module, '__version__', '')}")
        except ImportError:
            lines.append(f"{name} is not here: what needs it is skipped")
    return lines
