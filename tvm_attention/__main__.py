"""The command line: ``tvm-attention COMMAND``, the same as ``python -m tvm_attention COMMAND``.

The commands are imported by the functions here, so that Ctrl-C while they load ends in one line too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tvm_attention.commands.ending import (
    EXIT_STATUSES,
    ended,
    show_anything,
    warnings_in_one_line,
)
from tvm_attention.errors import KernelBuildError


def parser() -> argparse.ArgumentParser:
    """The tree of all commands and their arguments."""
    import tvm_attention
    from tvm_attention.commands import (
        completion,
        demo,
        doctor,
        explain,
        export,
        info,
        logs,
        report,
        serve,
        tune,
    )
    from tvm_attention.commands.arguments import OneLineParser

    tree = OneLineParser(
        prog="tvm-attention",
        description="Attention kernels tuned for this machine.",
        epilog=EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tree.add_argument("--version", action="version", version=tvm_attention.__version__)
    commands = tree.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    for command in (
        info, demo, tune, serve, explain, report, export, logs, doctor, completion,
    ):  # fmt: skip
        command.add(commands)
    return tree


def main(arguments: Sequence[str] | None = None) -> int:
    """Performs a command and returns its exit status. Bad arguments raise SystemExit(2)."""
    show_anything()
    return ended(lambda: _perform(sys.argv[1:] if arguments is None else list(arguments)))


def _perform(arguments: list[str]) -> int:
    try:
        tree = parser()
    except ModuleNotFoundError as error:
        raise KernelBuildError(
            f"the command line needs package {error.name}, which is not installed: pip install "
            f"tvm-attention brings it; with NumPy alone, archives serve (tvm_attention.load_archive)"
        ) from error
    options = tree.parse_args(arguments, argparse.Namespace(arguments=arguments))
    with warnings_in_one_line():
        status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
