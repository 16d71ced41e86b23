"""``tvm-attention tune``: search for faster schedules and record them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tvm_attention import environment
from tvm_attention.commands.arguments import (
    Commands,
    add_command,
    add_json,
    add_target,
    add_workloads,
    chosen_workloads,
    command_line,
    positive,
    whole_number,
)
from tvm_attention.commands.ending import INTERRUPTED, OK
from tvm_attention.commands.logs_change import say_unless_searched
from tvm_attention.commands.output import (
    console,
    counted,
    folding_table,
    print_json,
    say,
    seconds_text,
)
from tvm_attention.commands.tune_modelled import run_modelled
from tvm_attention.commands.tune_progress import Names, Show, view
from tvm_attention.suites import shape_text
from tvm_attention.tuning import TuningOutcome, TuningResult, tune

_SUMMARY = "search for faster schedules on this machine and record those that beat the default"


def add(commands: Commands) -> None:
    """The parser of ``tune``."""
    parser = add_command(commands, "tune", _SUMMARY, run)
    add_workloads(parser)
    add_target(parser, "limit code to a target this machine can run")
    parser.add_argument(
        "--trials",
        type=whole_number(1, 10**6),
        default=64,
        metavar="N",
        help="candidates to measure a workload, at most; default 64",
    )
    parser.add_argument(
        "--modelled",
        action="store_true",
        help="for a GPU that is not there (--target cuda-sm_86): compile candidates and take the best "
        "of a model; nothing is measured",
    )
    parser.add_argument(
        "--minutes", type=positive, metavar="M", help="time for all workloads together"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write here instead of your log folder"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1, environment.MAX_THREADS),
        metavar="N",
        help="threads of the measurements; default all cores",
    )
    parser.add_argument(
        "--again", action="store_true", help="tune afresh what is recorded, and replace its record"
    )
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="of the search"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Tunes; the exit status is 130 if interrupted, and the same command then goes on."""
    names = {workload: name for name, workload in chosen_workloads(options).items()}
    if options.modelled:
        return run_modelled(options, names)
    out = console()
    try:
        with _view(options.json, out, names) as show:
            result = tune(
                list(names),
                options.target,
                trials=options.trials,
                minutes=options.minutes,
                log=options.log,
                num_threads=options.threads,
                seed=options.seed,
                again=options.again,
                progress=show,
            )
    except KeyboardInterrupt:
        _say_how_to_resume(options.arguments)
        return INTERRUPTED
    if options.json:
        print_json(to_dict(result, names))
    else:
        print_result(out, result, names)
    if result.interrupted:
        _say_how_to_resume(options.arguments)
        return INTERRUPTED
    return OK


def _view(json: bool, out: Console, names: Names) -> AbstractContextManager[Show]:
    """How the run is shown; stdout is left to JSON, if that is asked for."""
    if not json:
        return view(out, names)
    err = console(stderr=True)
    return view(err, names) if err.is_terminal else nullcontext(lambda _: None)


def to_dict(result: TuningResult, names: Names) -> dict[str, object]:
    """The result as plain data; seconds, None where there are none."""
    return {
        "log": str(result.log),
        "interrupted": result.interrupted,
        "not_reached": len(names) - len(result.outcomes),
        "records": [record.to_dict() for record in result.records],
        "outcomes": [
            {
                "name": names[outcome.workload],
                "workload": outcome.workload.to_dict(),
                "variant": None if outcome.best is None else outcome.best.variant,
                "decisions": None if outcome.best is None else dict(outcome.best.decisions),
                "tuned": outcome.tuned,
                "default": outcome.default,
                "kept": outcome.kept,
                "reason": outcome.reason,
                "trials": outcome.trials,
            }
            for outcome in result.outcomes
        ],
    }


def print_result(out: Console, result: TuningResult, names: Names) -> None:
    """The outcome of each workload, where the records are, and what was not reached."""
    if result.outcomes:
        table = folding_table(
            "workload", "default", "tuned", "kept", "reason", "best variant", "trials"
        )
        for outcome in result.outcomes:
            table.add_row(*map(Text, _cells(outcome, names[outcome.workload])))
        out.print(table)
    if result.records:
        say(out, f"{counted(len(result.records), 'record')} written to {result.log}")
        say_unless_searched(result.log, result.records[0].target)
    else:
        say(out, "no records written")
    left = len(names) - len(result.outcomes)
    if left and not result.interrupted:
        say(
            out,
            f"{counted(left, 'workload')} not reached in the time given; the same command goes on",
        )


def _cells(outcome: TuningOutcome, name: str) -> Sequence[str]:
    shape = shape_text(outcome.workload)
    return (
        name if name == shape else f"{name}\n{shape}",
        seconds_text(outcome.default),
        seconds_text(outcome.tuned),
        "yes" if outcome.kept else "no",
        outcome.reason,
        "-" if outcome.best is None else outcome.best.variant,
        str(outcome.trials),
    )


def _say_how_to_resume(arguments: Sequence[str]) -> None:
    # What was to be tuned afresh is marked so in the journals: asked once more, it would be lost.
    onward = command_line([a for a in arguments if a != "--again"])
    print(f"interrupted; what was measured is kept, to go on: {onward}", file=sys.stderr)
