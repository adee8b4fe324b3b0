"""A backend for flash-linear-attention: its own layers and models run on qdelta's kernels, unchanged.

    import qdelta
    qdelta.register_fla_backend()

FLA asks its backends, in the order of their priority, whether they take a call. qdelta takes what its operators support;
everything else goes to FLA's own kernels. The environment variable FLA_QDELTA=0 turns it off.
"""

from __future__ import annotations

import importlib
import inspect

from . import ops

# Functions of FLA's that have a counterpart, and the operation whose registry they ask; None: they have one of their own.
_FUNCTIONS = {
    "chunk_gated_delta_rule": ("fla.ops.gated_delta_rule.chunk", "gated_delta_rule"),
    "fused_recurrent_simple_gla": ("fla.ops.simple_gla.fused_recurrent", None),
    "fused_chunk_simple_gla": ("fla.ops.simple_gla.fused_chunk", None),
}


def _verifier(name: str):
    """Whether qdelta's function takes these arguments: a pair of the answer and the reason, as FLA asks for it."""
    signature = inspect.signature(getattr(ops, name))

    def verify(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            return False, str(error)
        given.apply_defaults()
        arguments = given.arguments
        if {**arguments, **arguments.get("kwargs", {})}.get("cp_context") is not None:
            return False, "qdelta has no context parallelism"
        if arguments.get("reverse"):
            return False, "qdelta reads sequences from the front"
        q, v = arguments["q"], arguments["v"]
        if q.device.type not in ("cpu", "cuda"):
            return False, f"qdelta has no kernels for {q.device.type}"
        for key in ("q", "k", "v"):
            if str(arguments[key].dtype) not in ("torch.float32", "torch.bfloat16"):
                return False, f"{key} is {arguments[key].dtype}"
        if q.device.type == "cuda" and q.shape[-1] > 256:
            return False, f"K is {q.shape[-1]}, at most 256 on a GPU"
        if v.shape[2] % q.shape[2] != 0:
            return False, "the heads of v are no multiple of those of q"
        return True, None

    return verify


def _call(name: str):
    function = getattr(ops, name)

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__name__ = name
    return call


def register_fla_backend(priority: int = 0) -> list[str]:
    """Registers qdelta with FLA and returns the names of the functions that it now computes. Among backends the lower
    priority is asked first."""
    try:
        backends = importlib.import_module("fla.backends")
    except ModuleNotFoundError as error:
        if error.name == "fla":
            raise ImportError("flash-linear-attention is not installed: pip install fla-core") from error
        raise ImportError("this flash-linear-attention has no registry of backends (fla.backends): 0.6 or newer") from error

    class QDeltaBackend(backends.BaseBackend):
        backend_type = "qdelta"
        env_var = "FLA_QDELTA"

    QDeltaBackend.priority = priority
    registered = []
    by_operation: dict[str, dict] = {}
    for name, (module, operation) in _FUNCTIONS.items():
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if operation is None:
            backends.register(function, backend=QDeltaBackend, verifier=_verifier(name))(_call(name))
        else:
            by_operation.setdefault(operation, {})[name] = function
        registered.append(name)
    for operation, functions in by_operation.items():
        # A backend of an operation is asked for each of its functions by name.
        members = {}
        for name in functions:
            members[name] = staticmethod(_call(name))
            members[f"{name}_verifier"] = staticmethod(_verifier(name))
        backends.register(operation)(type("QDeltaOperation", (QDeltaBackend,), members))
    return registered
