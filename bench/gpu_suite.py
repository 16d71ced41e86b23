"""All that a GPU adds, in one command: python bench/gpu_suite.py run --bundle DIR --out DIR

Beforehand, on any machine with TVM and NVRTC: python bench/gpu_suite.py prepare --bundle DIR --arch sm_90
builds every kernel of the run. The GPU's machine then needs the driver, torch, NumPy, archspec, filelock,
platformdirs, psutil, ml_dtypes for bfloat16, and this library (pip install --no-deps -e .); no TVM.
Parts, the safest first: correctness of every variant; programs' calls; tuning; timing beside torch's kernels,
then beside FlexAttention and Triton; then records, JSON and plots. A run that was cut off goes on where it
was by the same command.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

# Behind what is installed: a checkout's tvm_attention lacks the folders that installing puts into it.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from bench.gpu import place as places
from bench.gpu import results
from bench.gpu.bundle import Bundle
from bench.gpu.journal import Journal
from bench.gpu.plan import Plan, Run, finish
from bench.gpu.supervision import SILENCE, supervise
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.ending import ended
from tvm_attention.errors import KernelBuildError

PROGRAM = "gpu_suite"
JOURNAL = "journal.jsonl"
MINUTES = 7.5
_RESERVE = 20.0  # seconds to write results in


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all is well, 1 if something failed or a figure that is asked for was missed, 2 for bad input."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    options.arguments = given[1:]
    return ended(lambda: int(options.step(options)), PROGRAM)


def prepare(options: argparse.Namespace) -> int:
    """Builds the kernels of a run."""
    start = time.monotonic()
    plan = _plan(options, options.arch)
    builds = list(plan.builds())
    bundle = Bundle(options.bundle)
    failures = bundle.build(
        builds, options.place, options.jobs, lambda said: print(said, flush=True)
    )
    bundle.keep({search.name: search.candidates for search in plan.searches})
    for what, why in failures.items():
        print(f"FAILED {what}: {why}", file=sys.stderr)
    size = sum(p.stat().st_size for p in bundle.folder.glob("*.json"))
    print(
        f"{len({b.key for b in builds})} kernels, {size >> 20} MiB, "
        f"{len(failures)} failed, {time.monotonic() - start:.0f} s"
    )
    return int(bool(failures))


def run(options: argparse.Namespace) -> int:
    """Runs the parts in a process that is watched, then writes what came of them."""
    deadline = time.monotonic() + 60 * options.minutes
    place = places.opened(options.place)
    _require_kernels(_run(options, place))
    command = [
        sys.executable, str(Path(__file__).resolve()), "work", *options.arguments,
    ]  # fmt: skip
    supervise(command, options.out / JOURNAL, deadline - _RESERVE, options.silence)
    values = finish(_run(options, place), options.out)
    print(results.summary(values), flush=True)
    failed = any(part["failed"] for part in values["parts"].values())
    missed = any(figure["holds"] is False for figure in values["figures"].values())
    return int(failed or missed)


def _require_kernels(run: Run) -> None:
    """Raises KernelBuildError for a bundle of another GPU, or none; says what else is missing."""
    wanted = {b.key for b in run.plan.builds()}
    missing = run.bundle.missing(run.plan.builds())
    if missing and len(missing) == len(wanted):
        raise KernelBuildError(
            f"bundle {run.bundle.folder}: expected kernels for {run.plan.arch}, got none; run the step "
            f"prepare with --arch {run.plan.arch}, and --candidates, --only, --small as here"
        )
    if missing:
        print(f"{len(missing)} of {len(wanted)} kernels are not there", file=sys.stderr, flush=True)


def work(options: argparse.Namespace) -> int:
    """The parts themselves; for :func:`run` to start."""
    _run(options, places.opened(options.place)).perform(tuple(options.without))
    return 0


def _run(options: argparse.Namespace, place: places.Place) -> Run:
    bundle, journal = Bundle(options.bundle), Journal(options.out / JOURNAL)
    plan = replace(_plan(options, place.arch), kept=bundle.kept())
    return Run(plan, place, bundle, journal, 60 * options.minutes - _RESERVE)


def _plan(options: argparse.Namespace, arch: str) -> Plan:
    return Plan(arch, options.candidates, tuple(options.only), options.small)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    steps = parser.add_subparsers(required=True, metavar="STEP", parser_class=OneLineParser)
    built = steps.add_parser("prepare", help="build the kernels, without a GPU")
    built.add_argument("--arch", default="sm_90", help="of the GPU; default sm_90")
    built.add_argument("--jobs", type=whole_number(1, 1024), default=os.cpu_count() or 1)
    built.set_defaults(step=prepare)
    run_parser = steps.add_parser("run", help="check, tune and time them on the GPU")
    run_parser.set_defaults(step=run)
    work_parser = steps.add_parser("work")
    work_parser.set_defaults(step=work)
    for other in (run_parser, work_parser):
        other.add_argument("--out", type=Path, required=True, help="journal, records, JSON, plots")
        other.add_argument("--minutes", type=positive, default=MINUTES, help="for it all")
        other.add_argument(
            "--silence", type=positive, default=SILENCE, help="seconds without news: it hangs"
        )
        other.add_argument("--without", nargs="+", default=[], metavar="PEER", help="leave out")
    for each in (built, run_parser, work_parser):
        each.add_argument("--bundle", type=Path, required=True, help="folder of the kernels")
        each.add_argument(
            "--candidates", type=whole_number(1, 1000), default=16, help="of each search"
        )
        each.add_argument(
            "--only", nargs="+", default=[], metavar="PART", help="of names of cases and workloads"
        )
        each.add_argument("--place", default=places.GPU, help="a module, for rehearsals")
        each.add_argument(
            "--small", type=whole_number(1, 64), default=1, help="divide lengths, for rehearsals"
        )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
