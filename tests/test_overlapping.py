"""Scores computed one strip ahead, beside the weights of the strip before: no number changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import kernel_of
from attention_variants import MATRIX, prefill_candidate, tensors

from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.lowering import lower
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.schedules import x86
from tvm_attention.target import detect_target, named_target
from tvm_attention.workload import AttentionWorkload

CANDIDATE = prefill_candidate("matrix", 16, 64).replace(query_strips=4, key_block=128)
HOST = named_target("sapphirerapids", cores=2)
needs_unit = pytest.mark.skipif(not MATRIX, reason="this machine has no matrix unit (AMX)")
ROWS = (1, 32, 33, 100, 128, 129, 300)  # around strips of 32 rows and tasks of 128
KEYS = (1, 31, 129, 256, 300)  # around tiles of 32 keys and blocks of 128


def attend(candidate: Any, arrays: Any, **options: Any) -> tuple[Any, Any]:
    kind = NumPyArrays()
    q, k, v = arrays
    sizes = geometry(q.shape, k.shape, v.shape, enable_gqa=True)
    call = Call.of(
        sizes, opened_options(kind, sizes, query_dtype=kind.dtype(q), **options), kind.dtype(q)
    )
    kernel = kernel_of(call.workload("attention_and_lse"), candidate, detect_target(), 2)
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    kernel.compute(kind, call, arrays, out, lse)
    return out, lse


def options_of(way: str, rows: int, keys: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows + keys)
    return {
        "plain": {},
        "causal": {"causal": "top_left"},
        "causal from the end": {"causal": "bottom_right"},
        "mask": {"mask": rng.random((1, 1, rows, keys)) < 0.6},
        "lengths": {"kv_lengths": np.array([keys, keys // 3])},
        "softcap": {"softcap": 3.0},
    }[way]


WAYS = ("plain", "causal", "causal from the end", "mask", "lengths", "softcap")


@needs_unit
@pytest.mark.parametrize(
    ("way", "dtype"),
    [*((way, "float32") for way in WAYS), ("plain", "float16"), ("mask", "float16"),
     ("plain", "bfloat16"), ("causal", "bfloat16")],
)  # fmt: skip
def test_no_bit_changes(way: str, dtype: str) -> None:
    for rows in ROWS:
        for keys in KEYS:
            arrays = tensors("matrix", keys=keys, rows=rows, dtype=dtype, seed=rows)
            chosen = options_of(way, rows, keys)
            found = attend(CANDIDATE, arrays, **chosen)
            expected = attend(CANDIDATE.replace(overlapped=0), arrays, **chosen)
            for x, y in zip(found, expected, strict=True):
                assert not np.isnan(y.astype(np.float32)).any()
                np.testing.assert_array_equal(x, y, err_msg=f"{way} {dtype} {rows} {keys}")


def lowered(**fields: Any) -> str:
    w = AttentionWorkload(head_dim=96, query_heads=2, query_length=300, key_length=300, **fields)
    func = x86.build(w, x86.machine_parameters(HOST), CANDIDATE).mod["main"]
    return str(lower(func, w).main.script())


@pytest.mark.parametrize(("dtype", "pairs"), [("float32", 6), ("float16", 4), ("bfloat16", 1)])
def test_every_step_of_a_tile_has_its_turn(dtype: str, pairs: int) -> None:
    """Three steps of 32 numbers for each pair of pieces, among 16 pairs of keys."""
    count = 3 * pairs
    places = [(pair * count // 16, (pair + 1) * count // 16) for pair in range(16)]
    assert [n for first, end in places for n in range(first, end)] == list(range(count))
    steps = [line for line in lowered(dtype=dtype).splitlines() if "matrix_step" in line]
    # For strips of one and of two vectors.
    assert len(steps) == 2 * -(-count // 16)


def test_windows_are_not_computed_ahead() -> None:
    """Their strips begin at different keys: a tile would be overwritten before its weights are computed."""
    w = AttentionWorkload(head_dim=64, query_length=300, key_length=300, window=(64, 0))
    space = x86.design_space(w, x86.machine_parameters(HOST))
    assert "begin at the first key" in str(space.refusal(CANDIDATE))
    assert "matrix_step" not in lowered(window=(64, 0))
    assert "matrix_step" in lowered()


@pytest.mark.parametrize("changes", [{"query_block": 64}, {"query_strips": 1}])
def test_strips_that_cannot_be_ahead_are_refused(changes: dict[str, int]) -> None:
    w = AttentionWorkload(head_dim=64, query_length=2048, key_length=2048)
    space = x86.design_space(w, x86.machine_parameters(HOST))
    assert space.refusal(CANDIDATE) is None
    assert "as wide as a tile" in str(space.refusal(CANDIDATE.replace(**changes)))
    assert space.refusal(CANDIDATE.replace(**changes, overlapped=0)) is None
