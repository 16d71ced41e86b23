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
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.table import Table

from bench import machine, results
from bench.command import PROGRAM, THREADS
from tvm_attention import compiler
from tvm_attention.commands.arguments import OneLineParser, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.database import match, shipped_logs
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import AttentionError
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.modelling.code import code_of
from tvm_attention.modelling.cores import core_of
from tvm_attention.modelling.group import Member
from tvm_attention.modelling.records import chosen, modelled_target
from tvm_attention.modelling.search import LEFT_OUT, ModelledSearch
from tvm_attention.random_calls import random_call
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.suites import suite
from tvm_attention.tuning.journal import Trial
from tvm_attention.workload import AttentionWorkload

TARGET = "x86-64-v4"  # whose shipped records use no matrix unit, which no model knows
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
Row = dict[str, Any]


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
            case = _Case(suite(where)[name], options.threads, options.seed)
            drawn = part == "random"
            found = case.drawn(options.drawn) if drawn else case.searched(options.trials)
            rows += [case.row(name, kind, trial, options.folder) for kind, trial in found]
        (options.folder / f"{part}.json").write_text(json.dumps(rows, indent=1))
    return 0


class _Case:
    """A workload on the target, its candidates compiled and modelled."""

    def __init__(self, workload: AttentionWorkload, threads: int, seed: int) -> None:
        self.workload, self.threads, self._seed = workload, threads, seed
        self.target = modelled_target(TARGET, threads)
        self.member, schedules = (
            Member(self.target, core_of(self.target), Path()),
            schedules_for(self.target),
        )
        self.machine = schedules.machine_parameters(self.target)
        self.space = schedules.design_space(workload, self.machine)
        self.default = schedules.default_candidate(workload, self.machine)

    def trial(self, candidate: Candidate) -> Trial:
        try:
            code = code_of(self.workload, self.target, candidate, self.threads)
        except AttentionError as error:
            return Trial(candidate, None, str(error))
        return Trial(candidate, *self.member.seconds(code, self.workload, candidate))

    def drawn(self, count: int) -> list[tuple[str, Trial]]:
        rng, found = random.Random(self._seed), dict[Candidate, Trial]()
        while len(found) < count:
            candidate = self.space.sample(rng)
            if candidate is not None and candidate.variant not in LEFT_OUT:
                found.setdefault(candidate, self.trial(candidate))
        return [("drawn", trial) for trial in found.values()]

    def searched(self, count: int) -> list[tuple[str, Trial]]:
        search = ModelledSearch(self.space, self.machine, [self.default], self._seed)
        done: list[Trial] = []
        while len(done) < count and (candidate := search.propose(done)) is not None:
            done.append(self.trial(candidate))
        best = min((t for t in done if t.seconds), key=lambda t: t.seconds or 0.0)
        kept = chosen(done, self.default)[0]
        logs = [
            replace(log, records=tuple(r for r in log.records if r.measured and r.target == TARGET))
            for log in shipped_logs()
        ]
        found = match(
            self.workload, self.target, logs, expression=EXPRESSION_DIGEST, threads=self.threads
        )
        record = found.record
        shipped = self.default if record is None else Candidate.of(record.variant, record.decisions)
        return [
            ("shipped", self.trial(shipped)),
            ("default", self.trial(self.default)),
            ("model", best),
            ("record", kept),
        ]

    def row(self, name: str, kind: str, trial: Trial, folder: Path) -> Row:
        row: Row = {
            "name": name, "kind": kind, "workload": self.workload.to_dict(), "modelled": trial.seconds,
            "variant": trial.candidate.variant, "decisions": dict(trial.candidate.decisions),
            "error": trial.error,
        }  # fmt: skip
        if trial.seconds is not None or kind != "drawn":
            key = compiler.kernel_key(self.workload, self.target, trial.candidate)
            row["kernel"] = f"{key}.ll"
            path = folder / row["kernel"]
            if not path.exists():
                path.write_text(compiler.build_source(self.workload, self.target, trial.candidate))
        return row


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
