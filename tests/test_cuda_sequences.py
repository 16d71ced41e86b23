"""CUDA kernels of every variant on packed sequences, pages and int8 caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import StandInArrays, kernel_on_cpu
from sequence_model import drawn
from test_cuda_kernels import FUSED, SPLIT_KV, TENSOR
from test_paged_call import Paged
from test_varlen import LENGTHS as SEQUENCES
from test_varlen import offsets, packed

import tvm_attention.attend
import tvm_attention.varlen
from tvm_attention import KVCache, attention_varlen, reference
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload


class Kernel:
    """A candidate's kernel that takes NumPy arrays for a GPU's."""

    def __init__(self, workload: AttentionWorkload, candidate: Candidate) -> None:
        self._kernel = kernel_on_cpu(workload, candidate, order=2)

    def compute(self, kind: Any, *call: Any) -> None:
        self._kernel.compute(StandInArrays(), *call)


def serve(monkeypatch: pytest.MonkeyPatch, candidate: Candidate) -> None:
    """Let a candidate serve all calls."""
    for module in (tvm_attention.attend, tvm_attention.varlen):
        monkeypatch.setattr(module, "load", lambda workload: Kernel(workload, candidate))


@pytest.mark.parametrize(
    ("candidate", "rows", "dtype"),
    [(FUSED, 9, "float32"), (SPLIT_KV, 2, "float32"), (TENSOR, 9, "float16")],
    ids=lambda x: getattr(x, "variant", str(x)),
)
def test_pages(
    candidate: Candidate, rows: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, candidate)
    paged = Paged(16, dtype)
    paged.check(
        paged.query(rows, dtype), (paged.key, paged.value), [rows, 1, 0, 2, 1],
        causal="bottom_right", window=(200, 0),
    )  # fmt: skip


@pytest.mark.parametrize("candidate", [FUSED, SPLIT_KV], ids=lambda c: c.variant)
def test_int8_caches(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, candidate)
    rng = np.random.default_rng(6)
    cache = KVCache(2, 2, 64, 32, dtype="int8")
    k, v = drawn(rng, 2, 2, 50, 32), drawn(rng, 2, 2, 50, 32)
    cache.append(k, v)
    query = drawn(rng, 2, 4, 2, 32)
    found = cache.attend(query, causal="bottom_right")
    expected = reference.attention(query, k, v, causal="bottom_right")
    assert np.abs(found - expected).max() < 0.05
    monkeypatch.undo()
    assert np.abs(found - cache.attend(query, causal="bottom_right")).max() < 1e-5


@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_packed_sequences(causal: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, q_offsets, k_offsets = packed(SEQUENCES)
    expected = attention_varlen(q, k, v, q_offsets, k_offsets, causal=causal)
    serve(monkeypatch, FUSED)
    found = attention_varlen(q, k, v, q_offsets, k_offsets, causal=causal)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert offsets(SEQUENCES[0])[-1] == len(found)
