"""How far to trust modelled records: against measurements, on a machine that has a model and is here.

    python bench/bench_modelled.py plan FOLDER
compiles and models: random candidates, and a search by the model alone.
    python bench/bench_modelled.py measure FOLDER --json FILE
times them; it wants a quiet machine, for a minute a part.

The first part of the result is the rank correlation of modelled and measured times over random
candidates; the second what a search that sees the model only loses, its choice timed in turns with that
of the shipped measured record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.table import Table

from bench import machine, results
from bench.command import PROGRAM, THREADS
from bench.modelled_cases import TARGET, Case, Row
from tvm_attention import compiler
from tvm_attention.commands.arguments import OneLineParser, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.random_calls import random_call
from tvm_attention.schedules import Candidate
from tvm_attention.suites import suite
from tvm_attention.workload import AttentionWorkload

# What random candidates are drawn for: (suite, name), how many of each.
DRAWN = (
    ("core", "bert-128"), ("core", "bert-512"), ("core", "decode-1024-gqa4"),
    ("shipping", "d128-medium-causal"),
)  # fmt: skip
SEARCHED = (
    ("core", "bert-128"), ("core", "bert-512"), ("core", "vit-b16-197"),
    ("shipping", "d128-medium-causal"), ("shipping", "d128-long-causal"), ("core", "decode-1024"),
    ("core", "decode-8192"), ("core", "decode-1024-gqa4"), ("core", "decode-8192-gqa4"),
)  # fmt: skip
_CASES = {"random": DRAWN, "search": SEARCHED}
SECONDS = {"random": 0.12, "search": 1.5}  # of timing each candidate


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 for bad input or a file that cannot be written."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _plan(options) if options.step == "plan" else _measure(options), PROGRAM)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_modelled", description=__doc__, allow_abbrev=False)
    parser.add_argument("step", choices=("plan", "measure"))
    parser.add_argument("folder", type=Path, help="of candidates and their kernels")
    parser.add_argument("--parts", nargs="+", default=list(SECONDS), choices=list(SECONDS))
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--drawn", type=whole_number(5, 200), default=20, help="random, a workload")
    parser.add_argument("--trials", type=whole_number(1, 500), default=16, help="of a search")
    parser.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="merge the results into this")
    return parser


def _plan(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        rows = []
        for where, name in stepped(list(_CASES[part]), lambda case: case[1]):
            case = Case(suite(where)[name], options.threads, options.seed)
            drawn = part == "random"
            found = case.drawn(options.drawn) if drawn else case.searched(options.trials)
            rows += [case.row(name, kind, trial, options.folder) for kind, trial in found]
        (options.folder / f"{part}.json").write_text(json.dumps(rows, indent=1))
    return 0


def _measure(options: argparse.Namespace) -> int:
    if options.json:
        results.require_writable(options.json)
    rows: dict[str, list[Row]] = {}
    for part in options.parts:
        rows[part] = json.loads((options.folder / f"{part}.json").read_text())
        for name in stepped(list(dict.fromkeys(r["name"] for r in rows[part])), str):
            some = [r for r in rows[part] if r["name"] == name and "kernel" in r]
            _time(some, options.folder, options.threads, SECONDS[part])
    found = {part: _SUMMARIES[part](rows[part]) for part in rows}
    _print(found)
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        result = before | found | {
            "machine": machine.machine(), "packages": machine.packages(),
            "library": machine.library(), "target": TARGET, "threads": options.threads,
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip
        results.write(result, options.json)
    return 0


def _time(rows: list[Row], folder: Path, threads: int, seconds: float) -> None:
    """Sets the measured seconds of rows of one workload: medians of one interleaved run."""
    workload = AttentionWorkload.from_dict(rows[0]["workload"])
    problem = random_call(workload, 0)
    kernels = {}
    first = None
    for row in rows:
        if row["kernel"] in kernels:
            continue
        candidate = Candidate.of(row["variant"], row["decisions"])
        source = KernelSource(candidate, None, "a model", ())
        compiled = compiler.load_source((folder / row["kernel"]).read_text())
        kernel = Kernel(workload, source, compiled, threads)
        out = np.asarray(kernel(*problem.inputs))
        first = out if first is None else first
        if not np.allclose(out, first, rtol=1e-3, atol=1e-4):
            raise ValueError(f"{row['name']}: {candidate} computes something else")
        kernels[row["kernel"]] = _call(kernel, problem.inputs, np.empty_like(out))
    rounds = interleave(
        [Contender(name, call) for name, call in kernels.items()], seconds * len(kernels), least=5
    )
    for row in rows:
        row["measured"] = rounds.time(row["kernel"]).median
        row["ratio"] = 1.0 if row["kernel"] == rows[0]["kernel"] else (
            rounds.ratio(row["kernel"], rows[0]["kernel"]).median
        )  # fmt: skip


def _call(kernel: Any, inputs: Any, out: Any) -> Any:
    return lambda: kernel(*inputs, out=out)


def _random_summary(rows: list[Row]) -> dict[str, Any]:
    found = []
    for name in dict.fromkeys(r["name"] for r in rows):
        some = [r for r in rows if r["name"] == name and "measured" in r]
        modelled, measured = ([r[k] for r in some] for k in ("modelled", "measured"))
        chosen = min(some, key=lambda r: r["modelled"])
        found.append({
            "name": name, "candidates": len(some), "rank_correlation": _spearman(modelled, measured),
            "not_modelled": sum(r["name"] == name for r in rows) - len(some),
            "lost_by_first": chosen["measured"] / min(measured) - 1,
            "measured_over_modelled": float(np.median(np.divide(measured, modelled))),
        })  # fmt: skip
    return {"workloads": found, "rows": [_short(r) for r in rows]}


def _search_summary(rows: list[Row]) -> dict[str, Any]:
    """``lost``: time over that of the shipped record's candidate, less one: of what the model believes
    fastest; of what a modelled record would hold, which is the default schedule unless clearly beaten;
    of that."""
    found = []
    for name in dict.fromkeys(r["name"] for r in rows):
        by_kind = {r["kind"]: r for r in rows if r["name"] == name}
        found.append({
            "name": name, "lost": by_kind["model"]["ratio"] - 1,
            "lost_by_record": by_kind["record"]["ratio"] - 1,
            "lost_by_default": by_kind["default"]["ratio"] - 1,
            "seconds": {k: r["measured"] for k, r in by_kind.items()},
        })  # fmt: skip
    means = {
        f"mean_{key}": float(np.exp(np.mean([np.log1p(f[key]) for f in found]))) - 1
        for key in ("lost", "lost_by_record", "lost_by_default")
    }
    return {"workloads": found, **means, "rows": [_short(r) for r in rows]}


_SUMMARIES = {"random": _random_summary, "search": _search_summary}


def _short(row: Row) -> Row:
    return {
        k: row.get(k)
        for k in ("name", "kind", "variant", "decisions", "modelled", "measured", "error")
    }


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    first, second = (np.argsort(np.argsort(np.array(x))).astype(np.float64) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def _print(found: dict[str, Any]) -> None:
    for part, summary in found.items():
        names = [k for k, v in summary["workloads"][0].items() if not isinstance(v, dict)]
        table = Table(*names, title=part)
        for one in summary["workloads"]:
            table.add_row(
                *(f"{one[k]:.3f}" if isinstance(one[k], float) else str(one[k]) for k in names)
            )
        console().print(table)


if __name__ == "__main__":
    sys.exit(main())
