"""The form of a benchmark's result, and the figures that are computed from it."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

from tvm_attention.errors import InvalidValueError

SCHEMA = 1
OURS = "ours"
FLOAT32 = "ours in float32"  # beside workloads of 16 bits, and no peer
BEST_PEER = "best peer"


class Spread(TypedDict):
    """Median and interquartile range over the rounds."""

    median: float
    q1: float
    q3: float


class Measured(TypedDict):
    """One contender on one workload; ``ratio`` is its time over ours within each round."""

    seconds: Spread
    ratio: Spread
    rounds: int
    max_error: float
    roundings: float  # of ``precision``, of the largest result
    precision: str
    layout: str


class Ceilings(TypedDict):
    """What the machine did in the same rounds, and the share of it that ours reached. Decode steps
    are held against the read bandwidth on their own bytes, the rest against the FMA peak."""

    limit: str  # "fma" or "read"
    ours: float  # GFLOP/s or GB/s
    machine: float
    fraction: float


class _Beside(TypedDict, total=False):
    best_peer: str
    float32: Spread  # of 16 bits: time of ours in float32 over ours


class WorkloadResult(_Beside):
    """``refused`` says why a peer has no figure: not supported, a wrong answer, or too slow."""

    name: str
    shape: str
    workload: dict[str, Any]
    source: str
    measured: dict[str, Measured]
    refused: dict[str, str]
    ceilings: Ceilings | None


class Comparison(TypedDict):
    """Time over ours: the geometric mean over the workloads that have one."""

    geometric_mean: float
    workloads: int
    under_one: list[str]


class _Parts(TypedDict, total=False):
    by_kind: dict[str, dict[str, Comparison]]  # summaries by dtype, where there are several


class Result(_Parts):
    """``mode`` is "attention" (calls alone) or "mixed" (Linear, attention, Linear)."""

    schema: int
    mode: str
    suite: str
    date: str
    machine: dict[str, Any]
    library: dict[str, Any]
    packages: dict[str, str]
    threads: int
    pool: str
    seconds_per_workload: float
    absent: dict[str, str]
    workloads: list[WorkloadResult]
    summary: dict[str, Comparison]


def summarise(workloads: Sequence[WorkloadResult]) -> dict[str, Comparison]:
    """The comparison with each peer, and with the fastest peer of each workload."""
    peers = dict.fromkeys(n for w in workloads for n in w["measured"] if n != OURS)
    ratios = {
        peer: {w["name"]: _ratio(w, peer) for w in workloads if peer in w["measured"]}
        for peer in peers
    }
    best = {w["name"]: _ratio(w, name) for w in workloads if (name := best_peer(w))}
    if len(peers) > 1:
        ratios[BEST_PEER] = best
    return {name: _comparison(values) for name, values in ratios.items()}


def by_kind(workloads: Sequence[WorkloadResult]) -> dict[str, dict[str, Comparison]]:
    """The summary of each dtype's workloads; empty if all are of one."""
    kinds = dict.fromkeys(map(kind_of, workloads))
    if len(kinds) < 2:
        return {}
    return {k: summarise([w for w in workloads if kind_of(w) == k]) for k in kinds}


def kind_of(workload: WorkloadResult) -> str:
    """The dtype that a workload's keys are stored in."""
    fields = workload["workload"]
    return str(fields.get("kv_dtype") or fields["dtype"])


def best_peer(workload: WorkloadResult) -> str | None:
    """The peer with the smallest ratio, or None without peers."""
    peers = [name for name in workload["measured"] if name != OURS]
    return min(peers, key=lambda name: _ratio(workload, name), default=None)


def wrong_results(workloads: Iterable[WorkloadResult]) -> list[str]:
    """Workloads on which our own result was wrong."""
    return [w["name"] for w in workloads if OURS in w["refused"]]


def require_writable(path: Path) -> None:
    """Find out that a result can be written before hours are spent on it; an older one stays.

    Raises InvalidValueError as :func:`write` does.
    """
    with _writing(path):
        there = path.exists()
        path.open("a", encoding="utf-8").close()
        if not there:
            path.unlink()


def write(result: Mapping[str, Any], path: Path) -> None:
    """As JSON. A NaN or infinity is an error (ValueError), so is a file that cannot be written
    (InvalidValueError)."""
    text = json.dumps(result, indent=1, allow_nan=False)
    with _writing(path):
        path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InvalidValueError(
            f"{path}: expected a file that can be written, got: {error.strerror or error}"
        ) from error


def read(path: Path) -> Result:
    """Raises InvalidValueError for a file that is no result of this schema."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise InvalidValueError(f"{path}: cannot be read: {reason}") from error
    except ValueError as error:
        raise InvalidValueError(f"{path}: expected a benchmark result, got no JSON") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise InvalidValueError(f"{path}: expected schema {SCHEMA}, got {schema}; measure again")
    missing = sorted(Result.__required_keys__ - content.keys())
    if missing:
        raise InvalidValueError(f"{path}: expected the fields {', '.join(missing)}, got none")
    return cast(Result, content)


def digest_of(parts: Sequence[Any]) -> str:
    """A short digest of plain data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _ratio(workload: WorkloadResult, name: str) -> float:
    return workload["measured"][name]["ratio"]["median"]


def _comparison(ratios: dict[str, float]) -> Comparison:
    return Comparison(
        geometric_mean=statistics.geometric_mean(ratios.values()),
        workloads=len(ratios),
        under_one=[name for name, ratio in ratios.items() if ratio < 1],
    )
