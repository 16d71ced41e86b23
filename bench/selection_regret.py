"""python bench/selection_regret.py --journal FILE.jsonl --json FILE: how good the choice of a kernel is.

On workloads that no tuning has seen, the kernel that the loader picks is timed in turns with those of the
most plausible other records and of the default schedules. Regret is picked over best, less 1. Each
workload's result is appended to the journal, from which a later run goes on; --slice ends one early.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from bench import machine, results
from bench.candidate_kernels import CandidateCalls
from bench.command import PROGRAM, THREADS
from bench.drawn_workloads import drawn_workloads
from bench.plausible import picked, rivals
from bench.result_journal import ResultJournal
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.database import shipped_logs
from tvm_attention.database.lines import format_record
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import KernelBuildError
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.suites import shape_text
from tvm_attention.target import detect_target
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

PICKED, AGAIN = "picked", "picked again"
ERRORS_ALLOWED = 4.0  # times the library's bound, as in tuning


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if a kernel's result was wrong, 2 for a journal of something else."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="selection_regret", description=__doc__, allow_abbrev=False)
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, once complete")
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--count", type=whole_number(1, 10000), default=60)
    parser.add_argument("--seed", type=whole_number(0, 2**31), default=4)
    parser.add_argument("--seconds", type=positive, default=0.8, help="of timing each kernel")
    parser.add_argument("--slice", type=whole_number(1, 10000), metavar="N", help="do N, then end")
    return parser


def _perform(options: argparse.Namespace) -> int:
    if options.json:
        results.require_writable(options.json)
    launcher().set_num_threads(options.threads)
    todo = drawn_workloads(options.count, options.seed)
    journal = ResultJournal(options.journal, _identity(options))
    done = journal.read()
    left = [w for w in todo if _key(w) not in done][: options.slice]
    for workload in stepped(left, shape_text):
        journal.add(_key(workload), _measure(workload, options.threads, options.seconds))
    rows = [r for w in todo if (r := journal.read().get(_key(w))) is not None]
    _print(rows, len(todo))
    if options.json and len(rows) == len(todo):
        results.write(_result(rows, options), options.json)
    return 1 if any(r["wrong"] for r in rows) else 0


def _identity(options: argparse.Namespace) -> dict[str, Any]:
    """What a journal must share with a run to be gone on with."""
    lines = sorted(format_record(r) for log in shipped_logs() for r in log.records)
    return {
        "study": "selection regret",
        "expression": EXPRESSION_DIGEST,
        "records": results.digest_of(lines),
        "threads": options.threads,
        "seed": options.seed,
    }


def _key(workload: AttentionWorkload) -> str:
    return results.digest_of([workload.to_dict()])


def _measure(workload: AttentionWorkload, threads: int, seconds: float) -> dict[str, Any]:
    begun = time.monotonic()
    target = detect_target()
    calls = CandidateCalls(workload, threads)
    source = picked(workload, target)
    entrants = {PICKED: source, AGAIN: source}
    entrants |= {str(n): r for n, r in enumerate(rivals(workload, target, source))}
    contenders, failed, wrong = [], {}, []
    for name, rival in entrants.items():
        try:
            call = calls.of(rival.target, rival.candidate)
        except KernelBuildError as error:
            failed[name] = str(error).splitlines()[0]
            continue
        if not call.accuracy.max_error <= ERRORS_ALLOWED * call.accuracy.allowed:
            wrong.append(str(rival.candidate))
            continue
        contenders.append(Contender(name, call.run))
    rounds = interleave(contenders, seconds * len(contenders), least=5)
    times = {c.name: rounds.ratio(c.name, PICKED).median for c in contenders}
    others = {n: t for n, t in times.items() if n not in (PICKED, AGAIN)}
    best = min(others, key=lambda n: others[n], default=PICKED)
    return {
        "shape": shape_text(workload),
        "workload": workload.to_dict(),
        "length_class": workload.length_class,
        "picked": source.to_dict(),
        "ms": rounds.time(PICKED).median * 1e3,
        "others": [{**entrants[n].to_dict(), "time over picked's": t} for n, t in others.items()],
        "best": entrants[best if times[best] < 1 else PICKED].to_dict(),
        "regret": max(0.0, 1 / times[best] - 1),
        "noise": abs(times[AGAIN] - 1),
        "failed": failed,
        "wrong": wrong,
        "seconds": time.monotonic() - begun,
    }


def _result(rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": machine.machine(),
        "packages": machine.packages(),
        "library": machine.library(),
        "date": datetime.date.today().isoformat(),
        **_identity(options),
        "seconds of each kernel": options.seconds,
        "summary": summary(rows),
        "workloads": rows,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all, and of each length class: how many, median, 90th percentile and worst regret."""
    groups = {"all": list(rows)}
    for row in rows:
        groups.setdefault(row["length_class"], []).append(row)
    return {name: _figures([r["regret"] for r in group]) for name, group in groups.items()} | {
        "noise": statistics.median(r["noise"] for r in rows)
    }


def _figures(regrets: Sequence[float]) -> dict[str, float]:
    ranked = sorted(regrets)
    return {
        "workloads": len(ranked),
        "median": statistics.median(ranked),
        "90 %": ranked[min(len(ranked) - 1, round(0.9 * (len(ranked) - 1)))],
        "worst": ranked[-1],
    }


def _print(rows: list[dict[str, Any]], whole: int) -> None:
    table = Table("workload", "class", "ms", "picked", "regret", "best", "noise")
    for row in sorted(rows, key=lambda r: -r["regret"]):
        table.add_row(
            row["shape"], row["length_class"], f"{row['ms']:.3g}", _said(row["picked"]),
            f"{row['regret']:.1%}", _said(row["best"]), f"{row['noise']:.1%}",
        )  # fmt: skip
    out = console()
    out.print(table)
    if not rows:
        return
    found = summary(rows)
    for name, figures in found.items():
        if isinstance(figures, dict):
            out.print(
                f"{name}: {figures['workloads']} workloads, regret median {figures['median']:.1%}, "
                f"90 % {figures['90 %']:.1%}, worst {figures['worst']:.1%}",
                highlight=False,
            )
    out.print(f"the same kernel twice differs by {found['noise']:.1%} (median)", highlight=False)
    if len(rows) < whole:
        out.print(f"{whole - len(rows)} workloads are left: run it again", highlight=False)


def _said(rival: dict[str, Any]) -> str:
    return f"{rival['candidate']} ({rival['origin']})"


if __name__ == "__main__":
    raise SystemExit(main())
