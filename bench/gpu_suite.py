"""All that a GPU adds, in one command: python bench/gpu_suite.py run --bundle DIR --out DIR

Beforehand, on any machine with TVM and NVRTC: python bench/gpu_suite.py prepare --bundle DIR --arch sm_90
builds every kernel of the run. The GPU's machine then needs the driver, torch, NumPy, archspec, filelock,
platformdirs, psutil, ml_dtypes for bfloat16, and this library (pip install --no-deps -e .); no TVM.
Parts, the safest first: correctness of every variant; tuning; timing beside torch, FlexAttention and Triton;
then records, JSON and plots. A run that was cut off goes on where it was by the same command.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.gpu import place as places
from bench.gpu import results
from bench.gpu.bundle import Bundle
from bench.gpu.journal import Journal
from bench.gpu.plan import Plan, Run, finish
from bench.gpu.supervision import SILENCE, supervise
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.ending import ended

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
    builds = list(_plan(options, options.arch).builds())
    bundle = Bundle(options.bundle)
    failures = bundle.build(
        builds, options.place, options.jobs, lambda said: print(said, flush=True)
    )
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
    command = [
        sys.executable, str(Path(__file__).resolve()), "work", *options.arguments,
    ]  # fmt: skip
    supervise(command, options.out / JOURNAL, deadline - _RESERVE, options.silence)
    place = places.opened(options.place)
    values = finish(_run(options, place), options.out)
    print(results.summary(values), flush=True)
    failed = any(part["failed"] for part in values["parts"].values())
    missed = any(figure["holds"] is False for figure in values["figures"].values())
    return int(failed or missed)


def work(options: argparse.Namespace) -> int:
    """The parts themselves; for :func:`run` to start."""
    _run(options, places.opened(options.place)).perform(tuple(options.without))
    return 0


def _run(options: argparse.Namespace, place: places.Place) -> Run:
    plan, journal = _plan(options, place.arch), Journal(options.out / JOURNAL)
    return Run(plan, place, Bundle(options.bundle), journal, 60 * options.minutes - _RESERVE)


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
