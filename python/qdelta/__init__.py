"""Delta-rule language models: kernels for PyTorch, Hugging Face models, and the native engine for NumPy alone.

    qdelta.LanguageModel.load(folder).generate("Once")   needs NumPy
    qdelta.ops.chunk_q_delta_rule(q, k, v, ...)          needs PyTorch
    qdelta.layers, qdelta.models                         need PyTorch and, for models, transformers
"""

from __future__ import annotations

import importlib

from ._library import CorruptFileError, UnsupportedError
from ._library import version as _version
from .language_model import LanguageModel, State
from .token_shards import TokenShards

_NEED_TORCH = ("ops", "layers", "models")


def __getattr__(name: str):
    if name in _NEED_TORCH:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name in ("torch", "transformers"):
                raise ImportError(f"qdelta.{name} needs {error.name}: pip install {error.name}") from error
            raise
    if name == "__version__":  # the library's, which is loaded at its first use
        return _version()
    if name == "register_fla_backend":
        return importlib.import_module(f"{__name__}.fla_backend").register_fla_backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With what is loaded when it is asked for, so that notebooks offer it."""
    return sorted({*globals(), *__all__, *_NEED_TORCH, "register_fla_backend"})


__all__ = ["CorruptFileError", "LanguageModel", "State", "TokenShards", "UnsupportedError", "__version__"]
