"""What a run leaves: tuning records, all figures as JSON, and the figures that the issue asks for."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import machine
from bench.gpu.classes import Search
from bench.gpu.journal import Journal, Values
from bench.gpu.place import Place
from bench.gpu.timing import COMPILED, OURS, PART
from bench.gpu.tuning import CONFIRMED
from bench.results import write
from tvm_attention.database import TuningRecord, merge_into_log
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

PARTS = ("correctness", "calls", "tuning", "confirmed", PART)


def write_records(place: Place, journal: Journal, searches: list[Search], folder: Path) -> Path:
    """The winners as records of the GPU that timed them, in a log of its target."""
    target = named_target(f"cuda-{place.arch}")
    path = folder / target.name / "measured.jsonl"
    confirmed = journal.done(CONFIRMED)
    made = [_record(place, s.workload, confirmed[s.name]) for s in searches if s.name in confirmed]
    if made:
        merge_into_log(path, made, replace=True)
    return path


def _record(place: Place, workload: AttentionWorkload, found: Values) -> TuningRecord:
    target = named_target(f"cuda-{place.arch}")
    return TuningRecord(
        target=target.name,
        workload=workload,
        length_class=workload.length_class,
        variant=found["variant"],
        decisions=found["decisions"],
        seconds=found["seconds"],
        hardware={**target.facts(), "model": place.name},
        threads=1,
        tvm=_version("apache-tvm"),
        expression=CUDA_EXPRESSION_DIGEST,
        provenance={"kind": "measured", "on": place.name, "trials": found["trials"]},
        date=datetime.date.today().isoformat(),
    )


def _version(package: str) -> str:
    """That of a package, or of the one this version is pinned to where kernels were built beforehand."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "0.27.0.post1"


def gathered(place: Place, journal: Journal) -> dict[str, Any]:
    """Everything in the journal by part, and the figures."""
    parts = {p: {"done": journal.done(p), "failed": journal.failed(p)} for p in PARTS}
    parts[PART]["done"] = timed(journal)
    late = journal.failed(COMPILED)
    parts[PART]["failed"] |= {f"{n}, compiled peers": v for n, v in late.items()}
    return {
        "device": {"name": place.name, "arch": place.arch},
        "library": machine.library(),
        "packages": machine.packages(),
        "expression": CUDA_EXPRESSION_DIGEST,
        "date": datetime.date.today().isoformat(),
        "parts": parts,
        "figures": figures(parts[PART]["done"]),
    }


def timed(journal: Journal) -> dict[str, Values]:
    """What was timed, with the peers of a workload's second part beside those of its first."""
    found = journal.done(PART)
    for name, late in journal.done(COMPILED).items():
        if name in found:
            first = found[name]
            others = {n: c for n, c in late["contenders"].items() if n != OURS}
            first["contenders"] |= others
            first["refused"] |= late["refused"]
    return found


def figures(timing: Mapping[str, Values]) -> dict[str, Any]:
    """Peers' time over ours by workload: of all together, and what is asked of ours."""
    found: dict[str, Any] = {}
    for name, values in timing.items():
        ratios = {
            n: c["ratio"]["median"]
            for n, c in values["contenders"].items()
            if not n.startswith(OURS)
        }
        best = min(ratios, key=lambda n: ratios[n], default=None)
        asked, share = _asked(name, ratios)
        found[name] = {
            "best peer": best,
            "ratios": ratios,
            "asked": asked,
            "holds": None if share is None else share >= 1.0,
        }
    return found


def _asked(name: str, ratios: Mapping[str, float]) -> tuple[str, float | None]:
    """What is asked of a workload, and how much of it there is: None where a backend that it is asked
    against did not run."""
    if name.startswith("decode"):
        return "0.9 of the best of torch", _share(ratios, tuple(ratios), 0.9)
    if "-f32-" in name:
        return "the best of torch in float32", _share(ratios, tuple(ratios), 1.0)
    flash = _share(ratios, ("torch flash",), 0.6)
    efficient = _share(ratios, ("torch efficient",), 1.0)
    share = None if flash is None or efficient is None else min(flash, efficient)
    return "0.6 of torch's flash and all of its efficient", share


def _share(ratios: Mapping[str, float], names: tuple[str, ...], wanted: float) -> float | None:
    known = [ratios[n] for n in names if n in ratios and n.startswith("torch")]
    return min(known) / wanted if known else None


def write_json(values: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(values, path)


def summary(values: Mapping[str, Any]) -> str:
    """A few lines about a run: the end of its output is what is read first."""
    lines = [f"{values['device']['name']} ({values['device']['arch']})"]
    for part, found in values["parts"].items():
        lines.append(f"{part}: {len(found['done'])} done, {len(found['failed'])} failed")
        lines += [f"  FAILED {n}: {v.get('error', '')[:160]}" for n, v in found["failed"].items()]
        idle = [n for n, v in found["done"].items() if v.get("errors") == []]
        if idle:
            lines.append(f"  COMPARED NOTHING, what they need is not installed: {', '.join(idle)}")
    for name, values_of in values["parts"]["timing"]["done"].items():
        figure = values["figures"][name]
        ours = values_of["contenders"][OURS]
        ratios = ", ".join(f"{n} {r:.2f}" for n, r in figure["ratios"].items())
        lines.append(
            f"{name}: {ours['seconds']['median'] * 1e3:.3f} ms, {values_of['tflops']:.0f} TFLOP/s, "
            f"{values_of['gbytes_per_second']:.0f} GB/s; peers over ours: {ratios}; "
            f"asked: {figure['asked']}: {_verdict(figure['holds'])}"
        )
    return "\n".join(lines)


def _verdict(holds: bool | None) -> str:
    return "not measured" if holds is None else "holds" if holds else "MISSED"


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
