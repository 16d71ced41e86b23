"""The workloads that are tuned and timed, the main ones first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.gpu.bundle import Build, with_fallback
from tvm_attention.cuda.modelled import ranked
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload


def _prefill(dim: int, dtype: str, causal: bool, length: int = 4096) -> AttentionWorkload:
    return AttentionWorkload(
        head_dim=dim, dtype=dtype, causal=causal, batch=2, query_heads=16, query_length=length,
        key_length=length,
    )  # fmt: skip


def _decode(dim: int, dtype: str, kv_heads: int, keys: int = 8192) -> AttentionWorkload:
    return AttentionWorkload(
        head_dim=dim, dtype=dtype, batch=4, query_heads=32, kv_heads=kv_heads, query_length=1,
        key_length=keys,
    )  # fmt: skip


def workloads() -> Mapping[str, AttentionWorkload]:
    """By name. Decoding reads 0.3 to 1 GB, prefill multiplies 0.1 to 0.6 TFLOP."""
    found = {
        "prefill-bf16-128-causal": _prefill(128, "bfloat16", True),
        "decode-bf16-128": _decode(128, "bfloat16", 8),
        "prefill-f32-64": _prefill(64, "float32", False),
        "prefill-f16-64": _prefill(64, "float16", False),
        "prefill-f16-128-causal": _prefill(128, "float16", True),
        "decode-f16-128-r1": _decode(128, "float16", 32),
        "prefill-bf16-64": _prefill(64, "bfloat16", False),
        "prefill-f32-128-causal": _prefill(128, "float32", True),
        "decode-f32-128": _decode(128, "float32", 8),
        "prefill-bf16-64-short": replace(_prefill(64, "bfloat16", False, 256), batch=32),
        "prefill-f16-128-medium": replace(_prefill(128, "float16", False, 1024), batch=8),
    }
    return found


@dataclass(frozen=True)
class Search:
    """A workload and the candidates that compete for it, the default schedule first."""

    name: str
    workload: AttentionWorkload
    candidates: tuple[Candidate, ...]

    def builds(self, arch: str) -> list[Build]:
        found = [Build(self.workload, c, arch) for c in self.candidates]
        return [*found, *with_fallback(found[0])[1:]]


def searches(
    arch: str,
    candidates: int,
    chosen: Mapping[str, AttentionWorkload],
    kept: Mapping[str, tuple[Candidate, ...]],
) -> list[Search]:
    """For each workload the default schedule and the best of the model: so many that may be drawn. Those of
    ``kept`` are known: another Python may draw others."""
    target, found = named_target(f"cuda-{arch}"), []
    for name, workload in chosen.items():
        if name in kept:
            found.append(Search(name, workload, kept[name]))
            continue
        default = cuda.default_candidate(workload, cuda.machine_parameters(target))
        others = [c for c in ranked(workload, target, candidates) if c != default]
        found.append(Search(name, workload, (default, *others[: candidates - 1])))
    return found
