"""The ladder from a record's machine and workload to others: what may serve, and how near it is."""

from __future__ import annotations

import math

from tvm_attention.database.record import TuningRecord
from tvm_attention.database.selection import EXPRESSION_CHANGED, NOT_FASTER
from tvm_attention.target import LEVELS, HardwareTarget, features_of, levels_below
from tvm_attention.workload import AttentionWorkload

EXACT_MACHINE = "exact machine"
SAME_MICRO_ARCHITECTURE = "same micro-architecture"
SAME_LEVEL = "same instruction set, similar caches"
LOWER_LEVEL = "lower instruction set"
DEFAULT_SCHEDULE = "default schedule"
RUNGS = (EXACT_MACHINE, SAME_MICRO_ARCHITECTURE, SAME_LEVEL, LOWER_LEVEL, DEFAULT_SCHEDULE)

MAX_DIM_RATIO = 2  # how far a head dimension may be from the one that was tuned
MAX_CACHE_RATIO = 2  # how far apart the caches of similar machines may be


def refusal(
    record: TuningRecord,
    workload: AttentionWorkload,
    target: HardwareTarget,
    expression: str | None,
) -> str | None:
    """Why a record cannot serve, or None."""
    if record.hardware["kind"] != target.kind:
        return f"for {record.hardware['kind']}, this machine is {target.kind}"
    if expression not in (None, record.expression):
        return EXPRESSION_CHANGED
    if record.ratio > 1:
        return NOT_FASTER
    return _workload_refusal(record, workload) or _machine_refusal(record, target)


def _workload_refusal(record: TuningRecord, workload: AttentionWorkload) -> str | None:
    tuned = record.workload
    if tuned.dtype != workload.dtype:
        return f"dtype {tuned.dtype}, wanted {workload.dtype}"
    if bool(tuned.causal) != bool(workload.causal):
        return f"causal {tuned.causal}, wanted {workload.causal}"
    if record.length_class != workload.length_class:
        return f"length class {record.length_class}, wanted {workload.length_class}"
    if tuned.few_queries != workload.few_queries:
        return f"{tuned.query_length} queries, too far from {workload.query_length}"
    if dim_ratio(tuned, workload) > MAX_DIM_RATIO:
        return f"head dimensions {dims(tuned)}, too far from {dims(workload)}"
    return None


def _machine_refusal(record: TuningRecord, target: HardwareTarget) -> str | None:
    isa = record.hardware["isa"]
    if isa not in LEVELS[target.kind]:
        return f"unknown instruction set {isa}"
    if missing := features_of(isa) - target.features:
        return f"needs {', '.join(sorted(missing))}, which {target.name} lacks"
    if isa != target.isa and isa not in levels_below(target):  # features do not tell GPUs apart
        return f"tuned for {isa}, which is newer than {target.isa}"
    if rung_of(record, target) is None:
        there, here = record.hardware, target
        return (
            f"caches differ: L1d {there['l1d'] >> 10} KiB and L2 {there['l2'] >> 10} KiB there, "
            f"{here.l1d >> 10} and {here.l2 >> 10} here"
        )
    return None


def rung_of(record: TuningRecord, target: HardwareTarget) -> str | None:
    """The rung of a record that the target can run; None where the caches are too far apart."""
    there = record.hardware
    caches = [(there["l1d"], target.l1d), (there["l2"], target.l2)]
    known = [(a, b) for a, b in caches if a and b]
    if there["isa"] in levels_below(target):
        # Tiles for smaller caches still fit; tiles for larger ones would not.
        return LOWER_LEVEL if all(a <= MAX_CACHE_RATIO * b for a, b in known) else None
    if there["micro_architecture"] == target.micro_architecture:
        same_model = target.model and there["model"] == target.model
        if same_model and all(a == b for a, b in caches):
            return EXACT_MACHINE
        if not target.is_generic:
            return SAME_MICRO_ARCHITECTURE
    similar = all(max(a, b) <= MAX_CACHE_RATIO * min(a, b) for a, b in known)
    return SAME_LEVEL if similar else None


def dims(workload: AttentionWorkload) -> str:
    return f"{workload.head_dim}/{workload.value_dim}"


def dim_ratio(tuned: AttentionWorkload, wanted: AttentionWorkload) -> float:
    assert tuned.value_dim is not None
    assert wanted.value_dim is not None
    pairs = ((tuned.head_dim, wanted.head_dim), (tuned.value_dim, wanted.value_dim))
    return max(max(a, b) / min(a, b) for a, b in pairs)


def feature_distance(tuned: AttentionWorkload, wanted: AttentionWorkload) -> int:
    """In how many options compiled into the kernel the two differ."""
    pairs = zip(tuned.kernel_features, wanted.kernel_features, strict=True)
    return sum(a != b for a, b in pairs)


def length_distance(tuned: AttentionWorkload, wanted: AttentionWorkload) -> float:
    """Sum of |log| ratios of the key length, the query length and the heads in all."""
    pairs = (
        (tuned.key_length, wanted.key_length),
        (tuned.query_length, wanted.query_length),
        (tuned.batch * tuned.query_heads, wanted.batch * wanted.query_heads),
    )
    return sum(abs(math.log(a / b)) for a, b in pairs)
