"""The digest of CUDA kernels names exactly the source that candidates become."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from cuda_on_cpu import code_of

from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload

TILES = {
    "row_threads": 4, "column_threads": 16, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
    "vector": 4, "overlap": 0,
}  # fmt: skip
TENSOR_TILES = {
    "row_threads": 16,
    "column_threads": 4,
    "rows": 2,
    "keys": 4,
    "vector": 4,
    "overlap": 0,
}
BESIDE = {"overlap": 1}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "top_left", "dtype": "float16"},
    {
        "window": (16, 16), "mask": "float32", "softcap": True, "alibi": True, "sinks": True,
        "ragged": True, "output": "attention_and_lse", "dtype": "bfloat16",
    },
    {"paged": True, "kv_dtype": "int8"},
]  # fmt: skip


def source_text() -> str:
    """The source of every variant: plain, causal, and with many options."""
    texts = []
    for options in OPTIONS:
        for variant, rows in (("fused", 512), ("fused_split_kv", 8)):
            workload = AttentionWorkload(head_dim=64, query_length=rows, **options)
            texts.append(code_of(workload, Candidate.of(variant, TILES)).source)
            if not options:
                texts.append(code_of(workload, Candidate.of(variant, TILES | BESIDE)).source)
        if options.get("dtype"):
            workload = AttentionWorkload(head_dim=64, **options)
            for tiles in (TENSOR_TILES, TENSOR_TILES | BESIDE):
                texts.append(code_of(workload, Candidate.of("fused_tensor", tiles)).source)
    folder = files("tvm_attention.cuda")
    headers = ("prelude.cuh", "tensor_cores.cuh", "copies.cuh")
    called = [folder.joinpath(n).read_text("utf-8") for n in headers]
    return "\n".join([*texts, *called])


def test_digest_is_that_of_the_source() -> None:
    found = hashlib.sha256(source_text().encode()).hexdigest()[:16]
    assert found == CUDA_EXPRESSION_DIGEST, (
        f"the source that CUDA candidates become has changed: set CUDA_EXPRESSION_DIGEST to {found!r}"
    )
