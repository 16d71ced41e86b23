"""Tiles of a dense mask that change no score: skipped, and only those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_variants import MATRIX, attend, check, tensors

from tvm_attention.lowering import lower
from tvm_attention.schedules import Candidate, x86
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

HOST = named_target("sapphirerapids", cores=2)
needs_unit = pytest.mark.skipif(not MATRIX, reason="this machine has no matrix unit (AMX)")
ROWS, KEYS = 100, 300


def spotted(kind: str, spot: tuple[int, int], value: float) -> Any:
    """A mask without effect but for one element, or for a row of tiles."""
    mask = np.zeros((ROWS, KEYS), np.float32)
    mask[spot] = value
    return mask == 0 if kind == "bool" else mask.astype(kind)


@needs_unit
@pytest.mark.parametrize("kind", ["bool", "float32", "float16"])
@pytest.mark.parametrize("spot", [(0, 0), (31, 31), (32, 15), (99, 299), (17, 256), (98, 128)])
@pytest.mark.parametrize("value", [-np.inf, 2.0])
def test_one_element_is_enough(kind: str, spot: tuple[int, int], value: float) -> None:
    if kind == "float16":
        q, k, v = tensors("matrix", keys=KEYS, rows=ROWS, dtype="float16")
    else:
        q, k, v = tensors("matrix", keys=KEYS, rows=ROWS)
    check("matrix", q, k, v, mask=spotted(kind, spot, value))


@needs_unit
@pytest.mark.parametrize("fill", [0.0, -0.0, 1.5, -np.inf, np.finfo(np.float32).min])
def test_masks_of_one_number(fill: float) -> None:
    q, k, v = tensors("matrix", keys=KEYS, rows=ROWS)
    check("matrix", q, k, v, mask=np.full((ROWS, KEYS), fill, np.float32))
    blocks = np.zeros((ROWS, KEYS), np.float32)
    blocks[32:64, 64:160] = fill
    check("matrix", q, k, v, mask=blocks)


@needs_unit
def test_what_masked_keys_hold_reaches_nothing() -> None:
    q, k, v = tensors("matrix", keys=KEYS, rows=ROWS)
    q[0, 0, 40] = np.nan
    mask = np.zeros((ROWS, KEYS), np.float32)
    mask[:, 290:] = -np.inf
    expected, _ = attend("matrix", q, k, v, mask=mask)
    assert np.argwhere(np.isnan(expected).any(axis=-1)).tolist() == [[0, 0, 40]]
    k[:, :, 295], v[:, :, 296] = np.nan, np.inf
    found, _ = attend("matrix", q, k, v, mask=mask)
    np.testing.assert_array_equal(found, expected)


def guards(**fields: Any) -> int:
    fields = {"mask": "float32", "mask_dense": True} | fields
    w = AttentionWorkload(head_dim=64, query_length=512, key_length=512, **fields)
    candidate = Candidate.of(
        "matrix",
        {"query_block": 32, "query_strips": 4, "key_block": 128, "value_rows": 32, "overlapped": 0},
    )
    func = x86.build(w, x86.machine_parameters(HOST), candidate).mod["main"]
    return str(lower(func, w).main.script()).count("if effect[0] > 0")


def test_only_where_a_mask_is_all_that_is_done_to_scores() -> None:
    assert guards() > 0
    assert guards(mask="bool") > 0
    changes: list[dict[str, Any]] = [
        {"softcap": True}, {"alibi": True}, {"causal": "top_left"}, {"window": (64, 64)},
        {"ragged": True}, {"dtype": "bfloat16"}, {"mask_dense": False},
    ]  # fmt: skip
    for change in changes:
        assert guards(**change) == 0, change
