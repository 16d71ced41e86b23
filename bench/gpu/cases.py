"""What is checked first: every variant with every dtype and option, at lengths around its tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bench.gpu.bundle import Build, with_fallback
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.workload import AttentionWorkload

_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-left": {"causal": "top_left"},
    "bottom-right": {"causal": "bottom_right"},
    "window": {"window": (60, 20)},
    "mask": {"mask": "bool", "mask_dense": True},
    "bias": {"mask": "float32"},
    "softcap-alibi-sinks": {"softcap": True, "alibi": True, "sinks": True},
    "padding": {"ragged": True, "causal": "bottom_right"},
    "lse": {"output": "attention_and_lse"},
    "pages": {"paged": True, "ragged": True, "causal": "bottom_right"},
    "int8": {"kv_dtype": "int8"},
}
# Those of bfloat16, whose kernels are float16's but for the instructions that multiply and convert.
_FEW = ("plain", "bottom-right", "mask", "pages")
_PREFILL: dict[str, Any] = {"batch": 2, "query_heads": 4, "kv_heads": 2}
_LENGTHS = ((1, 1), (63, 65), (64, 64), (65, 127), (200, 333), (333, 200), (517, 1029))
_DECODED = ((1, 1), (1, 63), (1, 257), (2, 5000), (4, 1031))

# Also with tensors whose addresses suit no vectors, and on a stream of their own.
STREAM_CASES = ("float32 plain", "float16 plain", "float32 plain decode")


@dataclass(frozen=True)
class Case:
    """A kernel and the workloads on which it is compared with float64."""

    name: str
    candidate: Candidate
    workloads: tuple[AttentionWorkload, ...]

    def builds(self, arch: str) -> list[Build]:
        build = Build(self.workloads[0], self.candidate, arch)
        return with_fallback(build) if self.name in STREAM_CASES else [build]


def cases(arch: str) -> list[Case]:
    """All cases of an architecture, the simplest first."""
    found = [*_default_cases(arch), *_option_cases(arch), *_tile_cases(arch)]
    return list({case.name: case for case in found}.values())


def _default_cases(arch: str) -> Iterator[Case]:
    """The default schedules of dtypes and head dimensions."""
    for dtype in ("float32", "float16", "bfloat16"):
        for dim in (64, 128, 40, 256):
            yield _prefill(f"{dtype} dim {dim}", arch, dtype, dim, {})
            yield _decode(f"{dtype} dim {dim} decode", arch, dtype, dim, {})


def _option_cases(arch: str) -> Iterator[Case]:
    for dtype in ("float32", "float16", "bfloat16"):
        for name, options in _OPTIONS.items():
            if dtype == "bfloat16" and name not in _FEW:
                continue
            yield _prefill(f"{dtype} {name}", arch, dtype, 64, options)
            yield _decode(f"{dtype} {name} decode", arch, dtype, 64, options)


def _tile_cases(arch: str) -> Iterator[Case]:
    """Tiles other than the defaults', with and without copies that overlap with computing."""
    machine = cuda.MACHINES[arch]
    for dtype in ("float32", "float16"):
        workload = _workload(dtype, 64, (65, 127), {"causal": "bottom_right"})
        space = cuda.design_space(workload, machine)
        for variant, choices in space.variants.items():
            default = next(
                (c for c in cuda.defaults(workload, machine) if c.variant == variant), None
            )
            if default is None:
                continue
            for name, values in choices.items():
                for value in values:
                    changed = default.replace(**{name: value})
                    if space.refusal(changed) is None and changed != default:
                        yield _case(f"{dtype} {variant} {name}={value}", changed, workload)


def _prefill(name: str, arch: str, dtype: str, dim: int, options: dict[str, Any]) -> Case:
    workload = _workload(dtype, dim, (200, 333), options)
    return _case(name, cuda.default_candidate(workload, cuda.MACHINES[arch]), workload)


def _decode(name: str, arch: str, dtype: str, dim: int, options: dict[str, Any]) -> Case:
    w = AttentionWorkload(
        head_dim=dim, dtype=dtype, batch=3, query_heads=8, kv_heads=4, query_length=1, key_length=257,
        **options,
    )  # fmt: skip
    candidate = cuda.default_candidate(w, cuda.MACHINES[arch])
    lengths = [(n, keys) for n, keys in _DECODED if w.group * n <= 2]
    return Case(name, candidate, tuple(w.with_lengths(*n) for n in lengths))


def _case(name: str, candidate: Candidate, workload: AttentionWorkload) -> Case:
    lengths = [n for n in _LENGTHS if not (workload.window and n == (1, 1))]
    return Case(name, candidate, tuple(_long(workload, *n) for n in lengths))


def _workload(
    dtype: str, dim: int, lengths: tuple[int, int], options: dict[str, Any]
) -> AttentionWorkload:
    rows, keys = lengths
    return AttentionWorkload(
        head_dim=dim, dtype=dtype, query_length=rows, key_length=keys, **_PREFILL, **options
    )


def _long(workload: AttentionWorkload, rows: int, keys: int) -> AttentionWorkload:
    return replace(workload, query_length=rows, key_length=keys)
