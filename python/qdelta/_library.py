"""libqdelta through ctypes: the structs of its C headers, where the library is found, and errors as exceptions."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import site
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint16, c_uint32
from ctypes import c_uint64, c_void_p
from numbers import Integral

RULES = ("linear", "retnet", "mamba2", "longhorn", "delta", "gated_delta", "q_delta")
CPU, CUDA = 1, 2  # DLDeviceType


class UnsupportedError(NotImplementedError):
    """Valid, but not on this build or machine."""


class CorruptFileError(OSError):
    """A file is not what its format promises."""


_EXCEPTIONS = {1: ValueError, 2: UnsupportedError, 3: MemoryError, 4: OSError, 5: CorruptFileError, 6: RuntimeError}


class DLDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rule", c_int32),
        ("form", c_int32),
        ("scale", c_float),
        ("qk_l2norm", c_int32),
        ("chunk", c_int32),
        ("threads", c_int32),
        ("f32_products", c_int32),
        ("device", DLDevice),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
        ("saved", c_void_p),
        ("saved_size", c_uint64),
    ]


def _tensors(*names: str) -> type[Structure]:
    return type("Tensors", (Structure,), {"_fields_": [(name, POINTER(DLTensor)) for name in names]})


Inputs = _tensors("q", "k", "v", "g", "beta", "lamb", "h0", "cu_seqlens")
Outputs = _tensors("o", "ht", "chunk_states")
OutputGradients = _tensors("d_o", "d_ht", "chunk_states")
InputGradients = _tensors("dq", "dk", "dv", "dg", "dbeta", "dlambda", "dh0")
StepArguments = _tensors("q", "k", "v", "g", "beta", "lamb", "states", "index", "o")


class ModelOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("threads", c_int32),
        ("device", DLDevice),
        ("f32_activations", c_int32),
    ]


# Without types where all arguments are references to structs made beforehand: ctypes would look at each of them again, which
# takes a microsecond of a call.
_SIGNATURES = {
    "qdelta_options_init_sized": (None, [POINTER(Options), c_uint32]),
    "qdelta_forward": (c_int32, None),
    "qdelta_forward_workspace": (c_int32, [POINTER(Options), POINTER(Inputs), POINTER(Outputs), POINTER(c_uint64)]),
    "qdelta_backward": (c_int32, None),
    "qdelta_backward_workspace": (
        c_int32,
        [POINTER(Options), POINTER(Inputs), POINTER(OutputGradients), POINTER(InputGradients), POINTER(c_uint64)],
    ),
    "qdelta_saved_size": (c_int32, [POINTER(Options), POINTER(Inputs), POINTER(c_uint64)]),
    "qdelta_chunk_count": (c_int64, [POINTER(Options), POINTER(Inputs)]),
    "qdelta_step": (c_int32, None),
    "qdelta_version": (c_char_p, []),
    "qdelta_last_error": (c_char_p, []),
    "qdelta_model_options_init_sized": (None, [POINTER(ModelOptions), c_uint32]),
    "qdelta_model_open": (c_int32, [c_char_p, POINTER(ModelOptions), POINTER(c_void_p)]),
    "qdelta_model_free": (None, [c_void_p]),
    "qdelta_model_vocab_size": (c_int64, [c_void_p]),
    "qdelta_model_parameter_count": (c_int64, [c_void_p]),
    "qdelta_model_config": (c_char_p, [c_void_p]),
    "qdelta_state_new": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "qdelta_state_clone": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "qdelta_state_save": (c_int32, [c_void_p, c_char_p]),
    "qdelta_state_load": (c_int32, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "qdelta_state_free": (None, [c_void_p]),
    "qdelta_state_tokens": (c_int64, [c_void_p]),
    "qdelta_model_read": (
        c_int32,
        [c_void_p, c_void_p, c_void_p, c_int64, POINTER(c_void_p), c_int32, c_void_p],
    ),
    "qdelta_tokenize": (c_int32, [c_void_p, c_char_p, c_int64, c_int32, c_void_p, c_int64, POINTER(c_int64)]),
    "qdelta_detokenize": (c_int32, [c_void_p, c_void_p, c_int64, c_int32, c_void_p, c_int64, POINTER(c_int64)]),
    "qdelta_special_token": (c_int32, [c_void_p, c_int32, POINTER(c_int32)]),
}


def _candidates() -> list[str]:
    named = os.environ.get("QDELTA_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, "lib", "libqdelta.so.0"), "libqdelta.so.0"]


def _load_cublas(soname: str) -> None:
    """A libqdelta with CUDA needs cuBLASLt, which NVIDIA has as a package of its own; PyTorch brings it. Or it is the toolkit's."""
    packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    places = [os.path.join(folder, "nvidia", "*", "lib") for folder in packages]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places += [os.path.join(toolkit, "lib64") for toolkit in toolkits if toolkit]
    for place in places:
        for path in sorted(glob.glob(os.path.join(place, soname))):
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                return
            except OSError:
                continue


def _without_cublas(path: str, soname: str) -> ImportError:
    version = soname.rpartition(".")[2]
    package = "nvidia-cublas-cu12" if version == "12" else f"'nvidia-cublas=={version}.*'"
    return ImportError(
        f"{path} is built for GPUs and needs {soname}, which is not here: pip install {package}, or install PyTorch for "
        f"CUDA {version} or the CUDA toolkit {version}. Without a GPU the package without CUDA needs none of them."
    )


def _open() -> ctypes.CDLL:
    reasons, without_cublas = [], None
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = str(error)
        missing = re.match(r"(libcublas\w*\.so\.\d+): ", reason)
        if missing:
            _load_cublas(missing[1])
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                reason = str(error)
            if reason.startswith(missing[1]):
                without_cublas = without_cublas or _without_cublas(path, missing[1])
        reasons.append(reason)
    if without_cublas:
        raise without_cublas
    raise ImportError(
        "libqdelta was not found: " + "; ".join(reasons) + ". The environment variable QDELTA_LIBRARY may name it."
    )


class _Library:
    """libqdelta, loaded when the first of its functions is asked for, so that an import says nothing of what it misses."""

    def __getattr__(self, name: str):
        if name not in _SIGNATURES:
            raise AttributeError(f"libqdelta: {name} is not declared")
        library = _open()
        functions = {}
        for function, (result, arguments) in _SIGNATURES.items():
            try:
                functions[function] = getattr(library, function)
            except AttributeError:
                raise ImportError(f"this libqdelta is too old for the package: it has no {function}") from None
            functions[function].restype = result
            functions[function].argtypes = arguments
        self.__dict__.update(functions)  # from now on __getattr__ is not asked
        return functions[name]


library = _Library()


def version() -> str:
    return library.qdelta_version().decode()


def check(status: int) -> None:
    """Raises what a call of the library says."""
    if status == 0:
        return
    raise _EXCEPTIONS.get(status, RuntimeError)(library.qdelta_last_error().decode(errors="replace"))


def new_options() -> Options:
    options = Options()
    library.qdelta_options_init_sized(byref(options), ctypes.sizeof(Options))
    return options


def device_named(name: str) -> DLDevice:
    """The device that "cpu", "cuda" or "cuda:1" names."""
    if not isinstance(name, str):
        raise TypeError(f"device is {name!r}, expected 'cpu', 'cuda' or 'cuda:N'")
    if name == "cpu":
        return DLDevice(CPU, 0)
    named = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", name)
    if named is None:
        raise ValueError(f"device is {name!r}, expected 'cpu', 'cuda' or 'cuda:N'")
    return DLDevice(CUDA, int(named[1] or 0))


def path_named(name: str, path: str | os.PathLike) -> bytes:
    """A path as C takes it. `name` is for the message."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise TypeError(f"{name} is {type(path).__name__}, expected a path") from None
    if b"\0" in encoded:  # where C's would end, and be another one
        raise ValueError(f"{name} is {path!r}: a path has no zeros in it")
    return encoded


def whole_number(name: str, value, least: int, most: int) -> int:
    """Refuses what C would cut down to another number."""
    if not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}, expected a whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, expected {least} to {most}")
    return int(value)
