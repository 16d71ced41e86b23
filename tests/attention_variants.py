"""Every variant of the expression with small tiles, and calls of it with any options against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attention_bounds import assert_near, score_size
from attention_cases import kernel_of
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.arrays import NumPyArrays, Shape
from tvm_attention.call import Call
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.kernel import Kernel
from tvm_attention.operands import geometry
from tvm_attention.options import Options, opened_options
from tvm_attention.prepared import PreparedCall
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate, schedules_for, x86
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.workload import AttentionWorkload, default_scale

Array = NDArray[Any]

# Only a machine with a matrix unit computes with it: tests/test_matrix.py says so where there is none.
MATRIX = ("matrix",) if detect_target().features >= x86.MATRIX_UNIT else ()
PREFILL = ("row_block keys", "row_block values", "blocks_and_merge", "blocks_and_merge packed",
           "streaming", "streaming packed", "running", *MATRIX)  # fmt: skip
VARIANTS = (*PREFILL, "split_kv")
# One of each schedule, for tests of many options; "weights" gives the softmax rows.
SCHEDULES = ("row_block keys", "row_block values", "blocks_and_merge", "streaming packed",
             "running", *MATRIX, "split_kv", "weights")  # fmt: skip
DIMS = (48, 64)
KEY_BLOCK = 96
DECODE_ROWS = 4


def lanes_of(target: HardwareTarget) -> int:
    return int(schedules_for(target).machine_parameters(target).lanes)


def prefill_candidate(
    name: str,
    lanes: int,
    value_dim: int,
    dtype: str = "float32",
    masked: bool = False,
    window: bool = False,
) -> Candidate:
    """Small tiles, so that short lengths cross all their edges; masks want multiples of four keys."""
    if name == "matrix":
        tile = {"query_block": 32, "query_strips": 2, "key_block": KEY_BLOCK, "value_rows": 16}
        tile["overlapped"] = int(not window)
        return Candidate.of(name, tile)
    variant, _, kind = name.partition(" ")
    copies = int(kind == "packed" or dtype != "float32")
    tile = {
        "query_block": 2 * lanes, "score_rows": 4 if masked else 6, "score_vectors": 2, "value_rows": 4,
        "value_vectors": 2, "value_columns_outer": 1, "pack_key": copies, "pack_value": copies,
    }  # fmt: skip
    if variant == "weights":
        names = ("query_block", "score_rows", "score_vectors", "pack_key")
        return Candidate.of(variant, {n: tile[n] for n in names})
    if variant == "running":
        blocks = {"query_block": 4 * lanes, "key_block": KEY_BLOCK, "query_strips": 2}
        return Candidate.of(variant, tile | blocks | {"pack_value": 1})
    if variant != "row_block":
        return Candidate.of(variant, tile | {"key_block": KEY_BLOCK})
    if kind == "keys":
        along_keys = {"queries_along_lanes": 1, "value_rows": min(5, value_dim)}
        return Candidate.of(variant, tile | along_keys)
    return Candidate.of(variant, tile | {"queries_along_lanes": 0, "pack_value": 0})


def decode_candidate(rows: int) -> Candidate:
    return Candidate.of(
        "split_kv",
        {
            "score_keys": 2,
            "value_rows": min(rows, 2),
            "value_vectors": 2,
            "streams": 2,
            "prefetch": 2,
        },
    )


def check_legal(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> None:
    schedules = schedules_for(target)
    space = schedules.design_space(workload, schedules.machine_parameters(target))
    assert space.refusal(candidate) is None


def prepared(kernel: Kernel, shapes: Sequence[Shape], strides: Sequence[Shape]) -> PreparedCall:
    """A call without options on float32 arrays (query, key, value, out)."""
    sizes = geometry(*shapes[:3], enable_gqa=True)
    options = Options(default_scale(sizes.head_dim), kernel.workload.causal)
    return kernel.prepare(NumPyArrays(), Call.of(sizes, options, "float32"), tuple(strides))


def tensors(
    name: str,
    keys: int = 211,
    rows: int | None = None,
    group: int | None = None,
    batch: int = 2,
    dtype: str = "float32",
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Query, key and value of two key-value heads that a variant serves: 37 rows of two groups, or 4
    rows of one for decoding."""
    decoding = name == "split_kv"
    w = AttentionWorkload(
        head_dim=DIMS[0], value_dim=DIMS[1], dtype=dtype, batch=batch, kv_heads=2,
        query_heads=2 * (group or (1 if decoding else 2)),
        query_length=rows or (DECODE_ROWS if decoding else 37), key_length=keys,
    )  # fmt: skip
    return random_inputs(w, seed)


def attend(
    name: str, q: Array, k: Array, v: Array, threads: int = 1, **options: Any
) -> tuple[Array, Array]:
    """(result, log-sum-exp) of a variant, all NaN where it has none; "weights" gives softmax rows."""
    kind = NumPyArrays()
    sizes = geometry(q.shape, k.shape, v.shape, enable_gqa=True)
    dtype = kind.dtype(q)
    opened = opened_options(kind, sizes, query_dtype=dtype, **options)
    call = Call.of(sizes, opened, dtype)
    workload = call.workload("weights" if name == "weights" else "attention_and_lse")
    target = detect_target()
    if name == "split_kv":
        candidate = decode_candidate(int(workload.length_class.removeprefix("decode-r")))
    else:
        candidate = prefill_candidate(
            name, lanes_of(target), v.shape[-1], dtype, workload.mask_dense, bool(workload.window)
        )
    if name != "split_kv":  # few rows are of another class of lengths
        check_legal(workload.with_lengths(37, k.shape[2]), target, candidate)
    columns = k.shape[2] if name == "weights" else v.shape[3]
    out = np.full((*q.shape[:3], columns), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    kernel = kernel_of(workload, candidate, target, threads)
    kernel.compute(kind, call, (q, k, v), out, None if name == "weights" else lse)
    return out, lse


def check(
    name: str,
    q: Array,
    k: Array,
    v: Array,
    *,
    finite: tuple[Array, Array, Array] | None = None,
    threads: int = 1,
    lse: bool = True,
    **options: Any,
) -> tuple[Array, Array]:
    """What a variant computes, once it is as near to float64 as it must be; a NaN belongs only where
    float64 has one. ``finite`` are the tensors that the bound is taken from, where these hold NaN.
    Without ``lse`` the log-sum-exp is not compared."""
    found, sums = attend(name, q, k, v, threads, **options)
    expected = reference.attended(q, k, v, **options)
    size, span = bounds(*(finite or (q, k, v)), **options)
    dtype = str(q.dtype)
    if name == "weights":
        assert_near(found, expected.weights, dtype, span=1.0, size=size, what=f"weights {options}")
        return found, sums
    assert_near(found, expected.out, dtype, span=span, size=size, what=f"{name} {options}")
    if lse and name != "weights":
        what = f"{name} lse {options}"
        assert_near(sums, expected.lse, "float32", span=1.0, size=size, what=what)
    return found, sums


def bounds(q: Array, k: Array, v: Array, **options: Any) -> tuple[float, float]:
    """The size of the scores with all that is added to them, and the range of the values and zero."""
    scale = options.get("scale")
    added = []
    mask = options.get("mask")
    if mask is not None and mask.dtype != bool:
        added.append(mask.astype(np.float64))
    if options.get("alibi_slopes") is not None:
        farthest = q.shape[2] + k.shape[2]
        added.append(np.asarray(options["alibi_slopes"], np.float64) * farthest)
    if options.get("sinks") is not None:
        added.append(np.asarray(options["sinks"], np.float64))
    size = score_size(q, k, q.shape[-1] ** -0.5 if scale is None else scale, *added)
    return size, float(np.ptp(np.append(v.astype(np.float64), 0.0)))


def of_dtype(values: Any, dtype: str) -> Array:
    """Values rounded to a dtype."""
    return np.asarray(values).astype(numpy_dtype(dtype))
