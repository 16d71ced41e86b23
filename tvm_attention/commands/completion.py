"""``tvm-attention completion``: a script by which a shell completes commands and options.

By shtab, whose scripts know the whole tree: nothing of Python starts when a key is pressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tvm_attention.commands.arguments import Commands, add_command
from tvm_attention.commands.ending import OK

SHELLS = ("bash", "zsh", "tcsh")
_USE = """in bash, once and for all:
  tvm-attention completion bash > ~/.local/share/bash-completion/completions/tvm-attention
in zsh, with a folder of your $fpath:
  tvm-attention completion zsh > ~/.zfunc/_tvm-attention
in this bash alone:
  eval "$(tvm-attention completion bash)"
"""


def add(commands: Commands) -> None:
    """The parser of ``completion``."""
    summary = "print a script that completes commands and options in a shell"
    parser = add_command(commands, "completion", summary, run)
    parser.epilog = f"{_USE}\n{parser.epilog}"
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(options: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    from tvm_attention.__main__ import parser

    tree = parser()
    for action in _actions(tree):
        if action.type is Path:
            folder = action.metavar == "DIR"
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(tree, options.shell))
    return OK


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of the commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from _actions(own)
