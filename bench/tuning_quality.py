"""python bench/tuning_quality.py --journal FILE.jsonl --json FILE: how soon tuning finds how good a kernel.

Tuning's own search goes on far beyond the trials that it is given, and as many candidates again are drawn
at random. Nothing is known beforehand but the default schedules. Each trial is appended to the journal,
from which a later run goes on; at the end the best of each part are timed in turns.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from bench import machine, results
from bench.command import PROGRAM, THREADS
from bench.result_journal import ResultJournal
from bench.search_study import SHARES, Study
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.suites import suite
from tvm_attention.target import detect_target
from tvm_attention.tuning.workers import LocalWorkers

WORKLOADS = ("d64-medium", "d128-long-causal", "d128-decode-r4")  # of the suite shipping


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a journal of something else, or a name that is not known."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="tuning_quality", description=__doc__, allow_abbrev=False)
    count = whole_number(1, 100000)
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, once complete")
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--guided", type=count, default=300, help="trials of tuning's search")
    parser.add_argument("--random", type=count, default=100, help="trials drawn at random")
    parser.add_argument("--minutes", type=positive, help="end after these; run again to go on")
    parser.add_argument("--seconds", type=positive, default=2.0, help="of each finalist")
    parser.add_argument(
        "--workloads", nargs="+", default=WORKLOADS, choices=suite("shipping"), metavar="NAME"
    )
    return parser


def _perform(options: argparse.Namespace) -> int:
    if options.json:
        results.require_writable(options.json)
    target = detect_target()
    identity = {
        "study": "tuning quality", "expression": EXPRESSION_DIGEST, "threads": options.threads,
        "target": target.name,
    }  # fmt: skip
    journal = ResultJournal(options.journal, identity)
    deadline = time.monotonic() + 60 * (options.minutes or 1e9)
    with LocalWorkers(target.cores) as workers:
        studies = [Study(n, target, options, journal, workers, deadline) for n in options.workloads]
        complete = all(study.search() for study in studies)
    rows = [study.result() for study in studies if study.is_complete()]
    _print(rows)
    if not complete:
        console().print("trials are left: run it again", highlight=False)
    elif options.json:
        found = {
            "machine": machine.machine(), "packages": machine.packages(),
            "library": machine.library(), "date": datetime.date.today().isoformat(),
            **identity, "workloads": rows,
        }  # fmt: skip
        results.write(found, options.json)
    return 0


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table("workload", *(f"{s:.0%} of the best after" for s in SHARES), "speeds, in turns")
    for row in rows:
        reached = (row["reached"][f"{s:.0%}"] for s in SHARES)
        said = (
            "never" if r is None else f"{r['trials']} trials, {r['minutes']:.1f} min"
            for r in reached
        )  # fmt: skip
        shares = row["share of the best's speed"]
        table.add_row(
            f"{row['name']} ({row['shape']})", *said,
            "\n".join(f"{name}: {share:.1%}" for name, share in shares.items()),
        )  # fmt: skip
    console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
