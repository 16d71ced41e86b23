"""Suites of the benchmark beside core: decoding, masks, 16 bits, long sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm_attention.workload import AttentionWorkload

Workloads = dict[str, AttentionWorkload]

_SHORT_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "int8"}

# (keys, query heads that share a key-value head, dtype of keys and values), 32 query heads of 128.
_DECODE_STEPS = (
    (1, 4, "float32"), (64, 1, "float32"), (512, 4, "float32"), (2048, 1, "float32"),
    (4096, 8, "float32"), (16384, 4, "float32"), (32768, 8, "float32"),
    (256, 1, "bfloat16"), (1024, 4, "bfloat16"), (4096, 8, "bfloat16"), (8192, 1, "bfloat16"),
    (32768, 4, "bfloat16"),
    (512, 1, "int8"), (2048, 8, "int8"), (8192, 4, "int8"), (32768, 8, "int8"),
)  # fmt: skip


def decode_suite() -> Workloads:
    """One query against 1 to 32 thousand keys; int8 ones have a float32 query."""
    return {
        f"decode-{keys}-gqa{group}-{_SHORT_DTYPES[kind]}": _decode_step(keys, group, kind)
        for keys, group, kind in _DECODE_STEPS
    }


def _decode_step(keys: int, group: int, kind: str) -> AttentionWorkload:
    int8 = kind == "int8"
    return AttentionWorkload(
        query_heads=32, kv_heads=32 // group, query_length=1, key_length=keys, head_dim=128,
        dtype="float32" if int8 else kind, kv_dtype="int8" if int8 else None,
    )  # fmt: skip


def masked_suite() -> Workloads:
    """Masks that are read and masks by place; padding as a mask a key and as lengths."""
    small = _square(12, 512, 64)
    large = _square(8, 2048, 64)
    wide = _square(16, 2048, 128)
    return {
        "bool-512": replace(small, mask="bool", mask_dense=True),
        "bool-2048": replace(large, mask="bool", mask_dense=True),
        "additive-512": replace(small, mask="float32", mask_dense=True),
        "additive-2048": replace(large, mask="float32", mask_dense=True),
        "causal-512": replace(small, causal="top_left"),
        "causal-2048": replace(wide, causal="top_left"),
        "window-256-2048": replace(large, causal="top_left", window=(256, -1)),
        "window-1024-4096": replace(_square(8, 4096, 128), causal="top_left", window=(1024, -1)),
        "padding-b8-128": replace(_square(12, 128, 64), batch=8, mask="bool", mask_per_key=True),
        "padding-b4-512": replace(small, batch=4, mask="bool", mask_per_key=True),
        "lengths-b4-512": replace(small, batch=4, ragged=True),
        "lengths-b8-decode-2048": replace(
            _decode_step(2048, 4, "float32"), batch=8, query_heads=16, kv_heads=4, ragged=True
        ),
    }


def long_suite() -> Workloads:
    """2 to 32 thousand keys; the longer, the fewer heads, so that it is quick."""
    heads = {2048: 8, 4096: 4, 8192: 2, 16384: 2, 32768: 1}
    plain = {f"long-{n}": _square(h, n, 64) for n, h in heads.items()}
    causal = {
        f"long-{n}-causal": replace(_square(h, n, 128), causal="top_left") for n, h in heads.items()
    }
    half = {
        f"long-{n}-bf16": replace(_square(heads[n], n, 128), dtype="bfloat16")
        for n in (4096, 16384)
    }
    return {**plain, **causal, **half}


def in_16_bits(workloads: Mapping[str, AttentionWorkload]) -> Workloads:
    """The same in bfloat16, then in float16."""
    return {
        f"{name}-{_SHORT_DTYPES[dtype]}": replace(workload, dtype=dtype)
        for dtype in ("bfloat16", "float16")
        for name, workload in workloads.items()
    }


def _square(heads: int, length: int, head_dim: int) -> AttentionWorkload:
    return AttentionWorkload(
        query_heads=heads, query_length=length, key_length=length, head_dim=head_dim
    )
