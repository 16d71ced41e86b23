"""``tvm-attention tune``: search for faster schedules and record them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console

from tvm_attention import environment
from tvm_attention.boards import PATIENCE, Boards
from tvm_attention.commands.arguments import (
    Commands,
    add_boards,
    add_command,
    add_compiler,
    add_json,
    add_target,
    add_workloads,
    chosen_boards,
    chosen_workloads,
    command_line,
    positive,
    whole_number,
)
from tvm_attention.commands.ending import BAD_ARGUMENTS, INTERRUPTED, OK
from tvm_attention.commands.output import (
    console,
    print_json,
    say,
)
from tvm_attention.commands.tune_modelled import GPU_TRIALS, is_gpu, run_modelled
from tvm_attention.commands.tune_progress import Names, Show, view
from tvm_attention.commands.tune_result import print_result, to_dict
from tvm_attention.errors import InvalidValueError
from tvm_attention.export.toolchain import parsed_compilers
from tvm_attention.modelling import THREADS, tune_modelled
from tvm_attention.tuning import TuningResult, tune
from tvm_attention.workload import AttentionWorkload

_TRIALS, _MODELLED_TRIALS = 64, 16
_SUMMARY = (
    "search for faster schedules on this machine or a board and record those that beat the default"
)


def add(commands: Commands) -> None:
    """The parser of ``tune``."""
    parser = add_command(commands, "tune", _SUMMARY, run)
    add_workloads(parser)
    add_target(parser, "limit code to a target the machine can run")
    add_boards(parser)
    add_compiler(parser)
    parser.add_argument(
        "--wait",
        type=positive,
        default=PATIENCE / 60,
        metavar="M",
        help=f"with --rpc, minutes to wait when no board is left; default {PATIENCE / 60:g}",
    )
    parser.add_argument(
        "--modelled",
        action="store_true",
        help="model the targets' cores (several with commas between) or GPU (cuda-sm_86) instead of "
        "measuring",
    )
    parser.add_argument(
        "--trials",
        type=whole_number(1, 10**6),
        metavar="N",
        help=f"candidates a workload, at most; default {_TRIALS}, of a modelled core "
        f"{_MODELLED_TRIALS}, of a modelled GPU {GPU_TRIALS}",
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
    if options.modelled and is_gpu(options.target):
        return run_modelled(options, names)
    out = console()
    try:
        with _view(options.json, out, names) as show:
            found = (_modelled if options.modelled else _measured)(options, list(names), show)
    except KeyboardInterrupt:
        _say_how_to_resume(options.arguments)
        return INTERRUPTED
    if options.json:
        told = {name: to_dict(result, names) for name, result in found.items()}
        print_json({"targets": told} if options.modelled else next(iter(told.values())))
    else:
        for name, result in found.items():
            if options.modelled:
                say(out, f"{name}: times of a model, nothing was measured")
            print_result(out, result, names)
    if any(result.interrupted for result in found.values()):
        _say_how_to_resume(options.arguments)
        return INTERRUPTED
    stopped = next((result.stopped for result in found.values() if result.stopped), None)
    if stopped:
        _say_how_to_resume(options.arguments, f"stopped: {stopped}")
        return BAD_ARGUMENTS
    return OK


def _place(options: argparse.Namespace) -> Boards | None:
    """The boards of --rpc; None is this machine."""
    asked = chosen_boards(options)
    compilers = parsed_compilers(options.compiler)
    if asked is None:
        return None
    return Boards(*asked, compilers=compilers, patience=60 * options.wait)


def _measured(
    options: argparse.Namespace, workloads: list[AttentionWorkload], show: Show
) -> dict[str, TuningResult]:
    result = tune(
        workloads,
        options.target,
        trials=options.trials or _TRIALS,
        minutes=options.minutes,
        log=options.log,
        num_threads=options.threads,
        seed=options.seed,
        again=options.again,
        on=_place(options),
        progress=show,
    )
    return {"": result}


def _modelled(
    options: argparse.Namespace, workloads: list[AttentionWorkload], show: Show
) -> dict[str, TuningResult]:
    if chosen_boards(options) is not None:
        raise InvalidValueError(
            "--modelled: expected no --rpc with it, as nothing is measured; leave one of them out"
        )
    if options.target is None:
        raise InvalidValueError(
            "--modelled: expected --target NAME, a core that there is a model of, such as cortex-a72, or "
            "a GPU's architecture, such as cuda-sm_86"
        )
    return tune_modelled(
        workloads,
        [name.strip() for name in options.target.split(",")],
        trials=options.trials or _MODELLED_TRIALS,
        minutes=options.minutes,
        log=options.log,
        num_threads=options.threads or THREADS,
        seed=options.seed,
        again=options.again,
        progress=show,
    )


def _view(json: bool, out: Console, names: Names) -> AbstractContextManager[Show]:
    """How the run is shown; stdout is left to JSON, if that is asked for."""
    if not json:
        return view(out, names)
    err = console(stderr=True)
    return view(err, names) if err.is_terminal else nullcontext(lambda _: None)


def _say_how_to_resume(arguments: Sequence[str], what: str = "interrupted") -> None:
    # What was to be tuned afresh is marked so in the journals: asked once more, it would be lost.
    onward = command_line([a for a in arguments if a != "--again"])
    print(f"{what}; what was measured is kept, to go on: {onward}", file=sys.stderr)
