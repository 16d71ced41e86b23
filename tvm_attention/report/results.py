"""Results of bench/bench_attention.py, as the report needs them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_attention.errors import AttentionError, InvalidValueError
from tvm_attention.work import all_bytes, flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

SCHEMA = 1
MODES = {"attention": "attention alone", "mixed": "Linear, attention, Linear"}
OURS = "ours"
_LARGEST = 64 << 20  # bytes of a file


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles over the rounds of a measurement."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One workload: our seconds in so many rounds, each peer's time over ours, and the machine's own
    figure in the same rounds, GFLOP/s for ``limit`` "fma", GB/s for "read", None if not measured."""

    name: str
    shape: str
    workload: AttentionWorkload
    seconds: Spread
    rounds: int
    peers: Mapping[str, Spread]
    limit: str | None
    ceiling: float | None

    @property
    def gflops(self) -> float:
        """What we reached, in GFLOP/s."""
        return flops(self.workload) / self.seconds.median / 1e9

    @property
    def intensity(self) -> float:
        """Operations a byte of the four tensors."""
        return flops(self.workload) / all_bytes(self.workload)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file of measurements, and of what they are. ``mode`` is one of MODES."""

    path: Path
    mode: str
    suite: str
    date: str
    commit: str
    model: str
    target: str
    threads: int
    packages: Mapping[str, str]
    measurements: tuple[Measurement, ...]

    @property
    def peers(self) -> list[str]:
        """Everyone who was measured beside us, in order."""
        return list(dict.fromkeys(name for m in self.measurements for name in m.peers))

    @property
    def fma_peak(self) -> float | None:
        """GFLOP/s of the vector units: the median over the rounds of all workloads."""
        peaks = sorted(m.ceiling for m in self.measurements if m.limit == "fma" and m.ceiling)
        return peaks[len(peaks) // 2] if peaks else None

    @property
    def read_peaks(self) -> tuple[float, float] | None:
        """GB/s that the machine reads: from main memory, which is what the largest workload has it read
        from, and at best, which may be from a cache."""
        reads = [(kv_bytes(m.workload), m.ceiling) for m in self.measurements if m.limit == "read"]
        known = [(size, rate) for size, rate in reads if rate]
        return (max(known)[1], max(rate for _, rate in known)) if known else None


def read_result(path: Path) -> ResultFile:
    """Raises InvalidValueError for a file that cannot be read or is no such result."""
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidValueError(
                f"{path}: expected a benchmark result, got {_LARGEST} bytes or more"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValueError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidValueError(f"{path}: expected a benchmark result, got no JSON") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA or content.get("mode") not in MODES:
        raise InvalidValueError(
            f"{path}: expected a result of bench_attention.py --json, schema {SCHEMA}, got another file"
        )
    try:
        return _result(path, content)
    except (KeyError, TypeError, ValueError, AttributeError, AttentionError) as error:
        reason = f"{type(error).__name__} {error}"
        raise InvalidValueError(
            f"{path}: expected a benchmark result, damaged: {reason}"
        ) from error


def _result(path: Path, content: Mapping[str, Any]) -> ResultFile:
    machine = content["machine"]
    return ResultFile(
        path=path,
        mode=str(content["mode"]),
        suite=str(content["suite"]),
        date=str(content["date"]),
        commit=str(content["library"]["commit"])[:12],
        model=str(machine["model"] or machine["micro_architecture"]),
        target=str(machine["target"]),
        threads=int(content["threads"]),
        packages={str(k): str(v) for k, v in content["packages"].items()},
        measurements=tuple(_measurements(content["workloads"])),
    )


def _measurements(workloads: list[dict[str, Any]]) -> Iterator[Measurement]:
    for entry in workloads:
        measured, ceilings = entry["measured"], entry["ceilings"]
        if OURS not in measured:  # our result was wrong, and nobody was timed
            continue
        yield Measurement(
            name=str(entry["name"]),
            shape=str(entry["shape"]),
            workload=AttentionWorkload.from_dict(entry["workload"]),
            seconds=_spread(measured[OURS]["seconds"]),
            rounds=int(measured[OURS]["rounds"]),
            peers={str(n): _spread(m["ratio"]) for n, m in measured.items() if n != OURS},
            limit=None if ceilings is None else str(ceilings["limit"]),
            ceiling=None if ceilings is None else _positive(ceilings["machine"]),
        )


def _spread(values: Mapping[str, Any]) -> Spread:
    return Spread(*(_positive(values[name]) for name in ("median", "q1", "q3")))


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"expected a positive number, got {value!r}")
    return number
