"""The command line: ``tvm-attention COMMAND``, the same as ``python -m tvm_attention COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import tvm_attention
from tvm_attention.commands import demo, doctor, explain, info, logs, tune
from tvm_attention.commands.arguments import (
    BAD_ARGUMENTS,
    EXIT_STATUSES,
    INTERRUPTED,
    OneLineParser,
    error_text,
)
from tvm_attention.errors import AttentionError


def parser() -> argparse.ArgumentParser:
    """The tree of all commands and their arguments."""
    tree = OneLineParser(
        prog="tvm-attention",
        description="Attention kernels tuned for this machine.",
        epilog=EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tree.add_argument("--version", action="version", version=tvm_attention.__version__)
    commands = tree.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    for command in (info, demo, tune, explain, logs, doctor):
        command.add(commands)
    return tree


def main(arguments: Sequence[str] | None = None) -> int:
    """Performs a command and returns its exit status. Bad arguments raise SystemExit(2)."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments, argparse.Namespace(arguments=arguments))
    try:
        status: int = options.run(options)
    except AttentionError as error:
        print(f"tvm-attention: {error_text(error)}", file=sys.stderr)
        return BAD_ARGUMENTS
    except KeyboardInterrupt:
        print("tvm-attention: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
