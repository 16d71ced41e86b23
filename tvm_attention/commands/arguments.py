"""What the commands' arguments have in common: the parser, exit statuses, workloads, numbers."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

from tvm_attention.suites import SUITES, Suite, shape_text, suite
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

OK, FAILED, BAD_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130

EXIT_STATUSES = """exit status:
  0    done; every check held
  1    a check failed, or a tuning record does not hold
  2    bad arguments, or an error that stopped the command
  130  interrupted (Ctrl-C)"""

_WORKLOAD_FORM = (
    "fields of AttentionWorkload, such as "
    "head_dim=64,causal=top_left,query_heads=12,query_length=1024,key_length=1024"
)


class OneLineParser(argparse.ArgumentParser):
    """Reports a bad argument in one line on stderr, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}; see {self.prog} --help\n")


Run: TypeAlias = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[OneLineParser]"
"""Where commands are added: what ``add_subparsers`` returns."""


def add_parser(commands: Commands, name: str, summary: str) -> OneLineParser:
    """A parser of a command, with the exit statuses in its help."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_command(commands: Commands, name: str, summary: str, run: Run) -> OneLineParser:
    """A parser of a command that ``run`` performs; parsed options carry it as ``run``."""
    parser = add_parser(commands, name, summary)
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_workloads(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """--workload or --suite, for :func:`chosen_workloads`."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--workload", metavar="FIELDS", help=_WORKLOAD_FORM)
    group.add_argument("--suite", choices=SUITES, help="the workloads of a named suite")


def add_target(parser: argparse.ArgumentParser, purpose: str) -> None:
    """--target: a name that TVM_ATTENTION_TARGET would take."""
    parser.add_argument(
        "--target", metavar="NAME", help=f"{purpose}: x86-64-v3, icelake, ... (see info)"
    )


def chosen_workloads(options: argparse.Namespace) -> Suite:
    """The workloads asked for, by name. Raises an AttentionError for one that cannot be."""
    if options.workload is None:
        return suite(options.suite)
    workload = AttentionWorkload.from_text(options.workload)
    return {shape_text(workload): workload}


def canonical_target(name: str | None) -> str | None:
    """The name that logs use for a target. Raises InvalidValueError for an unknown one."""
    return None if name is None else named_target(name).name


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argument's type: a whole number from low to high."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 12 and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {low} to {high}, got {text[:40]!r}"
        )

    return parse


def minutes(text: str) -> float:
    """An argument's type: a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text[:40]!r}")
    return value


def error_text(error: Exception) -> str:
    """The message as one line; the middle of a very long one (a compiler's) is left out."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 2000 else f"{line[:1500]} ... {line[-480:]}"


def command_line(arguments: Sequence[str]) -> str:
    """What to type to run the command again."""
    return shlex.join(["tvm-attention", *arguments])
