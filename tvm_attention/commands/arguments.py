"""What the commands' arguments have in common: the parser, workloads, targets, numbers."""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeAlias

from tvm_attention.commands.ending import BAD_ARGUMENTS, EXIT_STATUSES
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.schedules import SCHEDULES
from tvm_attention.suites import SUITES, Suite, shape_text, suite
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.workload import AttentionWorkload

_WORKLOAD_FORM = (
    "head_dim=64 and, separated by commas, any of value_dim=64, query_heads=8, kv_heads=8, batch=1, "
    "query_length=512, key_length=512, causal=none (top_left, bottom_right), dtype=float32 (so "
    "meant where left out) and AttentionWorkload's other fields"
)


class OneLineParser(argparse.ArgumentParser):
    """Reports a bad argument in one line on stderr, with exit status 2."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does; but an unknown option is named at once, before anything missing is."""
        given = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:
            for option in _long_options(given):
                if option not in self._option_string_actions:
                    self.error(f"unknown option {option}{self._meant(option)}")
        return super().parse_known_args(given, namespace)

    def _meant(self, option: str) -> str:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = [name for name in known if len(option) > 2 and name.startswith(option)]
        near = near or difflib.get_close_matches(option, known, n=1)
        return f", did you mean {' or '.join(near)}?" if near else ""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}; see {self.prog} --help\n")


def _long_options(arguments: Sequence[str]) -> Iterator[str]:
    """The names of the options that begin with two dashes."""
    for argument in arguments:
        if argument == "--":
            return
        if argument.startswith("--") and " " not in argument:  # argparse takes others as values
            yield argument.partition("=")[0]


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


def add_boards(parser: argparse.ArgumentParser) -> None:
    """--rpc and --key, for :func:`chosen_boards`."""
    parser.add_argument(
        "--rpc", metavar="HOST:PORT", help="on boards: of `tvm-attention tracker`, or of one board"
    )
    parser.add_argument("--key", help="with --rpc, the key that the boards serve")


def add_compiler(parser: argparse.ArgumentParser) -> None:
    """--compiler, for ``tvm_attention.export.toolchain.parsed_compilers``."""
    parser.add_argument(
        "--compiler",
        action="append",
        default=[],
        metavar="ARCHITECTURE=COMMAND",
        help="with --rpc, the C compiler to link by: aarch64=aarch64-linux-gnu-gcc",
    )


def chosen_boards(options: argparse.Namespace) -> tuple[str, str] | None:
    """(address, key) of the boards asked for, None for this machine. Raises InvalidValueError for one
    without the other."""
    if options.rpc is None and options.key is None:
        return None
    if options.rpc is None or options.key is None:
        raise InvalidValueError(
            "boards: expected both --rpc HOST:PORT and --key KEY, got one of them; the key is what "
            "`tvm-attention serve` was given"
        )
    return options.rpc, options.key


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


def positive(text: str) -> float:
    """An argument's type: a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text[:40]!r}")
    return value


def require_schedules(target: HardwareTarget) -> None:
    """Raises UnsupportedError for a kind of target that this version has no schedules for."""
    if target.kind not in SCHEDULES:
        raise UnsupportedError(
            f"target {target.name}: expected a kind that there are schedules for "
            f"({', '.join(SCHEDULES)}), got {target.kind}; this version cannot serve it yet"
        )


def command_line(arguments: Sequence[str]) -> str:
    """What to type to run the command again."""
    return shlex.join(["tvm-attention", *arguments])
