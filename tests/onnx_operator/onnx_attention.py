"""The ONNX operator Attention (opsets 23 to 25) by ``tvm_attention.attention``, and its node tests.

What the operator has and the function has not is done here: past keys and values are joined, a mask
that is too short is filled up. Causality, windows, softcap, padding and grouped heads are the
function's own; no mask is made from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

# qk_matmul_output is served in mode 3 alone: attention has rows of the softmax (return_weights), but
# never holds a matrix of scores, which is what modes 0 (plain), 1 (after softcap) and 2 (with mask) are.
SERVED_MODE = 3


@dataclass(frozen=True)
class Case:
    """One node test: a call of the operator and what it must give."""

    name: str
    attributes: dict[str, Any]
    inputs: Arrays
    outputs: Arrays
    rtol: float
    atol: float

    @property
    def mode(self) -> int:
        mode: int = self.attributes.get("qk_matmul_output_mode", 0)
        return mode


def cases() -> list[Case]:
    """All node tests of the installed package, without the twins that test the operator's expansion
    into others on the same data."""
    np.random.seed(0)  # what the package draws its data from
    importlib.import_module("onnx.backend.test.case.node.attention")
    from onnx.backend.test.case.node import _NodeTestCases

    return [
        _case(test)
        for test in _NodeTestCases
        if [node.op_type for node in test.model.graph.node] == ["Attention"]
    ]


def _case(test: Any) -> Case:
    node = test.model.graph.node[0]
    ((inputs, outputs),) = test.data_sets
    return Case(
        test.name,
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        dict(zip(filter(None, node.input), inputs, strict=True)),
        dict(zip(filter(None, node.output), outputs, strict=True)),
        test.rtol,
        test.atol,
    )


def run(
    case: Case, attention: Callable[..., Any], convert: Callable[[Array], Any]
) -> dict[str, Any]:
    """The outputs of a case, except a qk_matmul_output that is not served, by arrays that ``convert``
    makes."""
    attributes, given = case.attributes, case.inputs
    query, key, value = (given[name] for name in "QKV")
    flat = query.ndim == 3
    if flat:
        query = _split(query, attributes["q_num_heads"])
        key, value = (_split(x, attributes["kv_num_heads"]) for x in (key, value))
    rows = 1 if flat else 2
    layout = "bshd" if flat else "bhsd"
    found: dict[str, Any] = {}
    if "past_key" in given:
        key, value = (
            np.concatenate([past.swapaxes(1, 2) if flat else past, new], axis=rows)
            for past, new in ((given["past_key"], key), (given["past_value"], value))
        )
        present = [x.swapaxes(1, 2) if flat else x for x in (key, value)]
        found = dict(zip(("present_key", "present_value"), map(convert, present), strict=True))
    options = _options(case, query.shape[rows], key.shape[rows], query.shape[0])
    mask = _mask(given.get("attn_mask"), key.shape[rows])
    weights = case.mode == SERVED_MODE and "qk_matmul_output" in case.outputs
    result = attention(
        *map(convert, (query, key, value)),
        mask=None if mask is None else convert(mask),
        layout=layout,
        scale=attributes.get("scale"),
        softcap=attributes.get("softcap", 0.0) or None,
        return_weights=weights,
        **options,
    )
    if weights:
        result, found["qk_matmul_output"] = result
    found["Y"] = result.reshape((*result.shape[:2], -1)) if flat else result
    return found


def _split(array: Array, heads: int) -> Array:
    """(batch, rows, heads x dim) as (batch, rows, heads, dim)."""
    return array.reshape(*array.shape[:2], heads, -1)


def _mask(mask: Array | None, keys: int) -> Array | None:
    """A mask for fewer keys, but not for one, hides the others: the operator says so."""
    if mask is None or mask.shape[-1] in (1, keys):
        return mask
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


def _options(case: Case, rows: int, keys: int, batch: int) -> dict[str, Any]:
    """Causality, window and lengths. The operator's first row stands at ``place`` among the keys."""
    causal = bool(case.attributes.get("is_causal", 0))
    left = case.attributes.get("left_window_size", -1)
    right = case.attributes.get("right_window_size", -1)
    lengths = case.inputs.get("nonpad_kv_seqlen")
    window = None if left == right == -1 else (left, right)
    if lengths is not None:  # the place of each batch element is that of our bottom right
        end = "bottom_right" if causal else None
        return {"causal": end, "window": window, "kv_lengths": lengths}
    if not causal and window is None:
        return {}
    past = case.inputs.get("past_key")
    if past is None and (causal or rows == keys):
        return {"causal": "top_left" if causal else None, "window": window}
    place = 0 if past is None else past.shape[2]
    further = place - (keys - rows)  # than our bottom right
    if further == 0:
        return {"causal": "bottom_right" if causal else None, "window": window}
    if causal and further < 0:  # keys beyond the last row's place do not matter
        return {
            "causal": "bottom_right",
            "window": window,
            "kv_lengths": np.full(batch, place + rows),
        }
    right = 0 if causal else right
    left, right = (-1 if left == -1 else left - further, -1 if right == -1 else right + further)
    assert min(left, right) >= -1, f"{case.name}: no window of ours"
    return {"window": (left, right)}
