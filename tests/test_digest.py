"""The expression digest names exactly the code that candidates lower to."""

import hashlib
from typing import Any

from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.lowering import lower
from tvm_attention.schedules import Candidate, MachineParameters, x86
from tvm_attention.workload import AttentionWorkload

MACHINE = MachineParameters(8, 16, False, 32 << 10, 1 << 20)
MATRIX_MACHINE = MachineParameters(
    16, 32, True, 32 << 10, 1 << 20, matrix_unit=True, matrix_integers=True
)
NARROW_MACHINE = MachineParameters(
    4, 32, False, 32 << 10, 1 << 20, dot_run=4, half_products=True, pair_products=True
)
KEY_BLOCKS = {
    "query_block": 32, "key_block": 96, "score_rows": 4, "score_vectors": 2, "value_rows": 4,
    "value_vectors": 2, "value_columns_outer": 1, "pack_key": 0, "pack_value": 1,
}  # fmt: skip
ROW_BLOCK = {
    "query_block": 32, "score_rows": 4, "score_vectors": 2, "value_rows": 4, "value_vectors": 2,
    "value_columns_outer": 0, "queries_along_lanes": 0, "pack_key": 0, "pack_value": 0,
}  # fmt: skip
PREFILL = [
    Candidate.of("row_block", ROW_BLOCK),
    Candidate.of("row_block", {**ROW_BLOCK, "queries_along_lanes": 1}),
    Candidate.of("blocks_and_merge", KEY_BLOCKS),
    Candidate.of("streaming", {**KEY_BLOCKS, "pack_value": 0}),
    Candidate.of("running", {**KEY_BLOCKS, "query_strips": 2}),
]
MATRIX = Candidate.of(
    "matrix",
    {"query_block": 32, "query_strips": 2, "key_block": 96, "value_rows": 16, "overlapped": 1},
)
DECODE = [
    Candidate.of(
        "split_kv",
        {"score_keys": 2, "prefetch": 2, "streams": 2, "value_rows": 2, "value_vectors": 2},
    )
]
INT8 = {"kv_dtype": "int8"}
HALF = {"dtype": "float16"}
# Decoding with instructions that some machines have: what is stored, and the candidate.
SPECIAL_DECODE: list[tuple[MachineParameters, dict[str, Any], Candidate]] = [
    (NARROW_MACHINE, {}, DECODE[0]),
    (NARROW_MACHINE, INT8, DECODE[0].replace(integer_products=1)),
    (NARROW_MACHINE, INT8, DECODE[0].replace(integer_products=2)),
    (NARROW_MACHINE, HALF, DECODE[0].replace(half_products=1)),
    (NARROW_MACHINE, HALF, DECODE[0].replace(half_products=2)),
    (MATRIX_MACHINE, INT8, DECODE[0]),
    (
        MATRIX_MACHINE,
        INT8,
        Candidate.of("matrix_decode", {"prefetch": 0, "value_rows": 4, "value_vectors": 4}),
    ),
    (MATRIX_MACHINE, {"dtype": "bfloat16"}, Candidate.of("matrix_decode", {"prefetch": 1})),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "top_left"},
    {
        "window": (16, 16), "mask": "float32", "mask_dense": True, "softcap": True, "alibi": True,
        "sinks": True, "ragged": True, "output": "attention_and_lse",
    },
]  # fmt: skip
MATRIX_OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "top_left", "dtype": "bfloat16"},
    {
        "window": (16, 16), "mask": "float16", "mask_dense": True, "softcap": True, "alibi": True,
        "dtype": "float16",
    },
]  # fmt: skip


def lowered_text() -> str:
    """Every variant's kernel as TVM script: plain, causal, and with many options."""
    texts = []
    for options in OPTIONS:
        prefill = AttentionWorkload(head_dim=64, **options)
        decode = AttentionWorkload(head_dim=64, query_length=1, kv_heads=4, **options)
        for workload, candidates in ((prefill, PREFILL), (decode, DECODE)):
            space = x86.design_space(workload, MACHINE)
            for candidate in candidates:
                if candidate.variant not in space.variants:
                    continue
                assert space.refusal(candidate) is None
                func = x86.build(workload, MACHINE, candidate).mod["main"]
                texts.append(lower(func, workload).main.script(show_meta=True))
    for options in MATRIX_OPTIONS:
        workload = AttentionWorkload(head_dim=64, **options)
        candidate = MATRIX.replace(overlapped=int("window" not in options))
        assert x86.design_space(workload, MATRIX_MACHINE).refusal(candidate) is None
        func = x86.build(workload, MATRIX_MACHINE, candidate).mod["main"]
        texts.append(lower(func, workload).main.script(show_meta=True))
    for machine, options, candidate in SPECIAL_DECODE:
        workload = AttentionWorkload(
            head_dim=64, query_length=1, query_heads=16, kv_heads=4, **options
        )
        func = x86.build(workload, machine, candidate).mod["main"]
        texts.append(lower(func, workload).main.script(show_meta=True))
    return "\n".join(texts)


def test_digest_is_that_of_the_lowered_kernels() -> None:
    found = hashlib.sha256(lowered_text().encode()).hexdigest()[:16]
    assert found == EXPRESSION_DIGEST, (
        f"the kernels that candidates lower to have changed: set EXPRESSION_DIGEST to {found!r} "
        f"and tune the shipped logs again"
    )


def test_digest_is_repeatable() -> None:
    assert lowered_text() == lowered_text()
