"""One Attention node by ``tvm_attention.attention``.

What the operator has and the function has not is done here: past keys and values are joined, a mask
that is too short is filled up. Windows, softcap, padding and grouped heads are the function's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.functional import attention
from tvm_attention.onnx.places import Array, places
from tvm_attention.workload import UNBOUNDED

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
OPSETS = (23, 24, 25)  # in which the operator changed; those between and after mean the one before
SOFTMAX_ROWS = 3  # the qk_matmul_output_mode that is served

Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class AttentionNode:
    """A node that is served: its attributes, and its inputs and outputs as {the operator's name: the
    graph's}, those left out being absent."""

    attributes: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @classmethod
    def of(cls, node: Any) -> AttentionNode:
        """Raises UnsupportedError or InvalidValueError for a node that is not served."""
        made = cls(
            {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
            {formal: name for formal, name in zip(INPUTS, node.input, strict=False) if name},
            {formal: name for formal, name in zip(OUTPUTS, node.output, strict=False) if name},
        )
        made._check(f"Attention {node.name or node.output[0]!r}")
        return made

    def _check(self, which: str) -> None:
        mode = self.attributes.get("qk_matmul_output_mode", 0)
        if "qk_matmul_output" in self.outputs and mode != SOFTMAX_ROWS:
            raise UnsupportedError(
                f"{which}: expected qk_matmul_output in mode {SOFTMAX_ROWS}, the softmax's rows, or not "
                f"at all, got mode {mode}: scores are never in memory here; remove the output"
            )
        for name in ("left_window_size", "right_window_size"):
            if self.attributes.get(name, UNBOUNDED) < UNBOUNDED:
                raise InvalidValueError(f"{which}: {name}: expected -1 or more")
        if ("past_key" in self.inputs) != ("past_value" in self.inputs):
            raise InvalidValueError(f"{which}: expected past_key and past_value together")
        if {"past_key", "nonpad_kv_seqlen"} <= self.inputs.keys():
            raise InvalidValueError(f"{which}: expected past_key or nonpad_kv_seqlen, got both")

    def run(self, values: Values) -> dict[str, Array]:
        """The node's outputs by the graph's names. Raises as ``attention`` does."""
        given = {formal: values[name] for formal, name in self.inputs.items()}
        found = self._computed(given)
        return {name: found[formal] for formal, name in self.outputs.items()}

    def _computed(self, given: Values) -> dict[str, Array]:
        query, key, value = self._heads(given)
        flat = given["Q"].ndim == 3
        past = 0
        if "past_key" in given:
            past = given["past_key"].shape[2]
            key = np.concatenate([given["past_key"], key], axis=2)
            value = np.concatenate([given["past_value"], value], axis=2)
        where = places(
            self.attributes,
            batch=query.shape[0],
            rows=query.shape[2],
            keys=key.shape[2],
            past=past,
            lengths=given.get("nonpad_kv_seqlen"),
        )
        weights = "qk_matmul_output" in self.outputs
        rows_first = (x.swapaxes(1, 2) if flat else x for x in (query, key, value))
        result = attention(
            *rows_first,
            mask=_mask(given.get("attn_mask"), where.band, key.shape[2]),
            layout="bshd" if flat else "bhsd",
            scale=self.attributes.get("scale"),
            softcap=self.attributes.get("softcap", 0.0) or None,
            return_weights=weights,
            **where.options,
        )
        result, rows = result if weights else (result, None)
        found = {"Y": result.reshape((*result.shape[:2], -1)) if flat else result}
        found |= {"present_key": key, "present_value": value}
        return found if rows is None else found | {"qk_matmul_output": rows}

    def _heads(self, given: Values) -> list[Array]:
        """Q, K and V as (batch, heads, rows, dim); of three axes, (batch, rows, heads x dim), as views."""
        heads = {"Q": "q_num_heads", "K": "kv_num_heads", "V": "kv_num_heads"}
        found = []
        for name, attribute in heads.items():
            array = given[name]
            if array.ndim == 3:
                count = self.attributes.get(attribute, 0)
                if count < 1 or array.shape[2] % count:
                    raise InvalidValueError(
                        f"{name}: expected {attribute} to divide its last axis, {array.shape[2]}, got "
                        f"{count}"
                    )
                array = array.reshape(*array.shape[:2], count, -1).swapaxes(1, 2)
            found.append(array)
        return found


def _mask(mask: Array | None, band: Array | None, keys: int) -> Array | None:
    """A mask for fewer keys, but not for one, hides the others: the operator says so."""
    if mask is not None and mask.shape[-1] not in (1, keys):
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        mask = np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)
    if mask is None or band is None:
        return band if mask is None else mask
    if mask.dtype == bool:
        return mask & band
    return np.where(band, mask, np.array(-np.inf, mask.dtype))
