"""What programs call, on a GPU: lengths, offsets and pages that are there, layers, caches, softmax rows,
graphs, other libraries' arrays, torch's own function. Small tiles serve all: the calls are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tvm_attention
from bench.gpu.bundle import Build, Bundle, kernel
from bench.gpu.journal import Values
from bench.gpu.place import Place
from tvm_attention import attend, reference, varlen
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.errors import TuningError
from tvm_attention.kv_cache import quantisation
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED, FUSED_SPLIT_KV, decode_rows
from tvm_attention.workload import AttentionWorkload

Array = NDArray[Any]
Pairs = list[tuple[Any, Array]]  # results, and what float64 has in their place
_MOST = 2e-4  # of float32 results of unit-normal numbers
_TILE = {
    "row_threads": 4, "column_threads": 8, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
    "vector": 4, "overlap": 0,
}  # fmt: skip
_PLAIN = AttentionWorkload(
    head_dim=64, batch=2, query_heads=4, kv_heads=2, query_length=9, key_length=70
)
_RAGGED = replace(_PLAIN, ragged=True)
_PAGED = replace(_PLAIN, ragged=True, paged=True)
_ROWS = replace(_PLAIN, value_dim=attend.UNITS)
_INT8 = replace(_PLAIN, query_length=1, kv_dtype="int8")


def candidate_of(workload: AttentionWorkload) -> Candidate:
    """The tiles that serve a workload here."""
    rows = decode_rows(workload)
    if rows is None:
        return Candidate.of(FUSED, _TILE)
    split = {"row_threads": 1, "column_threads": 32, "rows": rows, "keys": 1}
    return Candidate.of(FUSED_SPLIT_KV, _TILE | split)


def builds(arch: str) -> Iterator[Build]:
    """The kernels that the calls take."""
    for workload in (_PLAIN, _RAGGED, _PAGED, _ROWS, _INT8):
        yield Build(workload, candidate_of(workload), arch)


def check(place: Place, bundle: Bundle, name: str) -> Values:
    """The errors of a call's results, none where what it needs is not installed. Raises TuningError for a
    wrong result."""
    with _loaded_from(bundle, place):
        pairs = CALLS[name](place)
    errors = [float(np.max(np.abs(place.array(x) - y))) for x, y in pairs]
    if not all(error <= _MOST for error in errors):  # NaN is not
        raise TuningError(f"wrong result: errors {errors} of at most {_MOST}")
    return {"errors": errors}


@contextmanager
def _loaded_from(bundle: Bundle, place: Place) -> Iterator[None]:
    """Calls are served by kernels that were built beforehand: the GPU's machine has no TVM."""
    loaded: dict[AttentionWorkload, DeviceKernel] = {}

    def load(
        workload: AttentionWorkload, target: Any = None, num_threads: Any = None
    ) -> DeviceKernel:
        if workload not in loaded:
            loaded[workload] = kernel(bundle, place, workload, candidate_of(workload))
        return loaded[workload]

    modules: list[Any] = [attend, varlen]
    before = [m.load for m in modules]
    try:
        for m in modules:
            m.load = load
        yield
    finally:
        for m, function in zip(modules, before, strict=True):
            m.load = function


def _numbers(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _tensors() -> list[Array]:
    return _numbers((2, 4, 9, 64), (2, 2, 70, 64), (2, 2, 70, 64))


def _whole(place: Place, *numbers: Any) -> list[Any]:
    return [place.tensor(np.array(x, np.int32)) for x in numbers]


def _graph(place: Place) -> Pairs:
    """A call that is captured once and run again with other lengths in the same place."""
    arrays = _tensors()
    q, k, v, out = (place.tensor(x) for x in (*arrays, np.zeros_like(arrays[0])))
    (lengths, others) = _whole(place, [70, 23], [9, 41])
    again = place.captured(lambda: tvm_attention.attention(q, k, v, kv_lengths=lengths, out=out))
    found: Pairs = []
    for known in ([70, 23], [9, 41]):
        again()
        found.append((out.clone(), reference.attention(*arrays, kv_lengths=np.array(known))))
        lengths.copy_(others)
    return found


def _packed(place: Place) -> Pairs:
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in _tensors())
    edges = [0, 4, 4, 9], [0, 20, 33, 70]
    found = tvm_attention.attention_varlen(*map(place.tensor, (q, k, v)), *_whole(place, *edges))
    expected = _one_by_one(q, k, v, *edges)
    return [(found, expected)]


def _one_by_one(q: Array, k: Array, v: Array, rows: list[int], keys: list[int]) -> Array:
    """Packed sequences one by one in float64."""
    made = np.zeros(q.shape)
    for n in range(len(rows) - 1):
        parts = q[rows[n] : rows[n + 1]], *(x[keys[n] : keys[n + 1]] for x in (k, v))
        if len(parts[0]):
            one = reference.attention(*(x.swapaxes(0, 1)[None] for x in parts))
            made[rows[n] : rows[n + 1]] = one[0].swapaxes(0, 1)
    return made


def _pages(place: Place) -> Pairs:
    q, k, v = _numbers((2, 4, 9, 64), (10, 16, 2, 64), (10, 16, 2, 64))
    table, lengths = np.arange(9, -1, -1).reshape(2, 5), [70, 23]
    given = _whole(place, table, lengths)
    found = tvm_attention.paged_attention(*map(place.tensor, (q, k, v)), *given)
    whole = [x[table].reshape(2, 80, 2, 64).swapaxes(1, 2) for x in (k, v)]
    return [(found, reference.attention(q, *whole, kv_lengths=np.array(lengths)))]


def _softmax_rows(place: Place) -> Pairs:
    arrays = _tensors()
    found = tvm_attention.attention(*map(place.tensor, arrays), return_weights=True)
    expected = reference.attended(*arrays)
    return list(zip(found, (expected.out, expected.weights), strict=True))


def _layer(place: Place) -> Pairs:
    weights = [w / 8 for w in _numbers((256, 48), (128, 48), (128, 48), (32, 256))]
    (x,) = _numbers((2, 70, 48))
    q = x[:, :9]
    layer = tvm_attention.MultiHeadAttention(*map(place.tensor, weights), num_heads=4)
    lengths = np.array([70, 23])
    found = layer(*(place.tensor(y) for y in (q, x)), kv_lengths=_whole(place, lengths)[0])
    split = [
        (y @ w.T).reshape(2, y.shape[1], -1, 64).swapaxes(1, 2)
        for y, w in zip((q, x, x), weights, strict=False)
    ]
    attended = reference.attention(*split, kv_lengths=lengths)
    return [(found, attended.swapaxes(1, 2).reshape(2, 9, 256) @ weights[3].T)]


def _int8_cache(place: Place) -> Pairs:
    q, k, v = _numbers((2, 4, 1, 64), (2, 2, 70, 64), (2, 2, 70, 64))
    cache = tvm_attention.KVCache(2, 2, 128, 64, dtype="int8", like=place.tensor(q))
    cache.append(place.tensor(k), place.tensor(v))
    stored = []
    for x in (k, v):
        numbers, scales = quantisation.quantise(x)
        stored.append(numbers * scales[..., None])
    return [(cache.attend(place.tensor(q)), reference.attention(q, *stored))]


def _other_library(place: Place) -> Pairs:
    arrays = _tensors()
    given = [place.other(x) for x in arrays]
    if any(x is None for x in given):
        return []
    found = place.tensor(place.host(tvm_attention.attention(*given)))
    return [(found, reference.attention(*arrays))]


def _others_lengths(place: Place) -> Pairs:
    """Lengths of the other library are read where they are; needs NVRTC there."""
    arrays, lengths = _tensors(), np.array([70, 23])
    given = [place.other(x) for x in (*arrays, lengths)]
    if any(x is None for x in given):
        return []
    *tensors, theirs = given
    found = tvm_attention.attention(*tensors, kv_lengths=theirs)
    expected = reference.attention(*arrays, kv_lengths=lengths)
    return [(place.tensor(place.host(found)), expected)]


def _torchs_function(place: Place) -> Pairs:
    if not place.dispatches:
        return []
    import torch

    import tvm_attention.torch

    arrays = _numbers((2, 4, 9, 64), (2, 4, 70, 64), (2, 4, 70, 64))
    with tvm_attention.torch.enabled(cuda=True), torch.no_grad():
        found = torch.nn.functional.scaled_dot_product_attention(*map(place.tensor, arrays))
    return [(found, reference.attention(*arrays))]


CALLS: Mapping[str, Callable[[Place], Pairs]] = {
    "call with lengths, in a graph": _graph,
    "call of packed sequences": _packed,
    "call of pages": _pages,
    "call for softmax rows": _softmax_rows,
    "call of a layer": _layer,
    "call of an int8 cache": _int8_cache,
    "call with another library's arrays": _other_library,
    "call with another library's lengths": _others_lengths,
    "call of torch's function": _torchs_function,
}
