"""ggml_flash_attn_ext, llama.cpp's attention, on its CPU backend: from the package llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.contract import Prepared, require_room_for_mask
from bench.problem import Numbers, Problem, additive, aligned
from tvm_attention.interleaved import Contender
from tvm_attention.workload import default_scale

F32, F16, Q8_0, BF16 = 0, 1, 8, 30  # ggml_type
BLOCK = 32  # of q8_0
STORED = {"float32": F32, "float16": F16, "bfloat16": BF16, "int8": Q8_0}
_POINTER, _SIZE, _INT64 = c_void_p, c_size_t, c_int64
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_new_tensor_4d": (_POINTER, (_POINTER, c_int, _INT64, _INT64, _INT64, _INT64)),
    "ggml_flash_attn_ext": (_POINTER, (*[_POINTER] * 5, c_float, c_float, c_float)),
    "ggml_new_graph": (_POINTER, (_POINTER,)),
    "ggml_build_forward_expand": (None, (_POINTER, _POINTER)),
    "ggml_backend_alloc_ctx_tensors": (_POINTER, (_POINTER, _POINTER)),
    "ggml_backend_tensor_set": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
    "ggml_backend_tensor_get": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
    "ggml_backend_graph_compute": (c_int, (_POINTER, _POINTER)),
    "ggml_quantize_chunk": (_SIZE, (c_int, _POINTER, _POINTER, _INT64, _INT64, _INT64, _POINTER)),
    "ggml_row_size": (_SIZE, (c_int, _INT64)),
    "ggml_backend_buffer_free": (None, (_POINTER,)),
    "ggml_backend_free": (None, (_POINTER,)),
    "ggml_free": (None, (_POINTER,)),
}


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


@dataclass(frozen=True, slots=True)
class _Libraries:
    base: Any
    cpu: Any


@dataclass(slots=True)
class _Graph:
    """One operator with its tensors in a backend's memory, which lives as long as this does."""

    base: Any
    context: int
    backend: int
    buffer: int
    graph: int
    result: int

    def __del__(self) -> None:
        self.base.ggml_backend_buffer_free(self.buffer)
        self.base.ggml_backend_free(self.backend)
        self.base.ggml_free(self.context)


def prepare(problem: Problem, threads: int) -> Prepared:
    """Queries are float32, as everywhere in llama.cpp; int8 keys and values are stored as its q8_0, which
    has a scale for 32 numbers. Whatever hides keys is one float16 mask, its only form."""
    require_room_for_mask(problem, "llama.cpp")
    w = problem.workload
    kind = STORED[w.kv_dtype or w.dtype]
    inputs = [
        (F32, problem.query.astype(np.float32)),
        (kind, _stored(problem.key, kind)),
        (kind, _stored(problem.value, kind)),
    ]
    mask = problem.mask()
    if mask is not None:
        whole = np.broadcast_to(mask, (*mask.shape[:2], *problem.scores[2:]))
        inputs.append((F16, additive(whole, np.float16)))
    made = _graph(problem, inputs, threads)
    compute, result = made.base.ggml_backend_graph_compute, problem.shape
    batch, heads, rows, dim = result

    def call() -> None:
        compute(made.backend, made.graph)

    def results() -> tuple[Numbers, ...]:
        out = aligned((batch, rows, heads, dim))
        address = out.ctypes.data
        made.base.ggml_backend_tensor_set(made.result, address, 0, out.nbytes)
        call()
        made.base.ggml_backend_tensor_get(made.result, address, 0, out.nbytes)
        return (out.swapaxes(1, 2),)

    precision = "q8_0" if kind == Q8_0 else w.dtype
    if precision == "float32" and w.mask not in (None, "bool"):
        precision = "float16"  # of the mask's numbers
    return Prepared(Contender("llama.cpp", call, pool="ggml"), results, precision=precision)


def missing() -> str | None:
    """llama-cpp-python's shared libraries, found without importing it."""
    found = _folder()
    return None if found and _library(found, "cpu") else "not installed: llama-cpp-python's libggml"


def _stored(array: Numbers, kind: int) -> Numbers:
    """(B, H, S, E) as ggml stores it."""
    if kind != Q8_0:
        return array
    base = _libraries().base
    numbers = np.ascontiguousarray(array, np.float32)
    dim = numbers.shape[-1]
    bytes_a_row = base.ggml_row_size(Q8_0, dim)
    rows = numbers.size // dim
    stored = np.zeros((*numbers.shape[:-1], bytes_a_row), np.uint8)
    base.ggml_quantize_chunk(Q8_0, numbers.ctypes.data, stored.ctypes.data, 0, rows, dim, None)
    return stored


def _graph(problem: Problem, inputs: list[tuple[int, Numbers]], threads: int) -> _Graph:
    libraries = _libraries()
    base = libraries.base
    context = base.ggml_init(_InitParams(1 << 20, None, True))  # of descriptions, not of numbers
    w = problem.workload
    columns = (w.head_dim, w.head_dim, problem.shape[3], w.key_length)
    tensors = [
        base.ggml_new_tensor_4d(context, kind, across, *reversed(x.shape[:3]))
        for (kind, x), across in zip(inputs, columns, strict=False)
    ]
    scale = default_scale(w.head_dim)
    padded = [*tensors, None][:4]
    result = base.ggml_flash_attn_ext(context, *padded, scale, 0.0, 0.0)
    graph = base.ggml_new_graph(context)
    base.ggml_build_forward_expand(graph, result)
    backend = libraries.cpu.ggml_backend_cpu_init()
    libraries.cpu.ggml_backend_cpu_set_n_threads(backend, threads)
    buffer = base.ggml_backend_alloc_ctx_tensors(context, backend)
    for tensor, (_, x) in zip(tensors, inputs, strict=True):
        whole = np.ascontiguousarray(x)
        base.ggml_backend_tensor_set(tensor, whole.ctypes.data, 0, whole.nbytes)
    return _Graph(base, context, backend, buffer, graph, result)


@cache
def _libraries() -> _Libraries:
    folder = _folder()
    assert folder is not None
    paths = [_library(folder, name) for name in ("base", "cpu")]
    base, cpu = (ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in paths)
    for name, (result, arguments) in _FUNCTIONS.items():
        _declare(getattr(base, name), result, arguments)
    _declare(base.ggml_init, c_void_p, (_InitParams,))
    _declare(cpu.ggml_backend_cpu_init, c_void_p, ())
    _declare(cpu.ggml_backend_cpu_set_n_threads, None, (c_void_p, c_int))
    return _Libraries(base, cpu)


def _declare(function: Callable[..., Any], result: Any, arguments: tuple[Any, ...]) -> None:
    function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]


def _folder() -> Path | None:
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "lib"


def _library(folder: Path, name: str) -> Path | None:
    """Builds with several instruction sets have a file for each; they are not chosen from here."""
    path = folder / f"libggml-{name}.so"
    return path if path.is_file() else None
