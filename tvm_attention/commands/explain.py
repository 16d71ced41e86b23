"""``tvm-attention explain``: which schedule serves a workload, and why no other."""

from __future__ import annotations

import argparse

from tvm_attention import environment
from tvm_attention.commands.arguments import (
    Commands,
    add_command,
    add_json,
    add_target,
    add_workloads,
    chosen_workloads,
    require_schedules,
)
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, print_json, say
from tvm_attention.errors import InvalidValueError
from tvm_attention.runtime import explain
from tvm_attention.target import HardwareTarget, detect_target, named_target


def add(commands: Commands) -> None:
    """The parser of ``explain``."""
    summary = "say which tuning record or schedule serves a workload, and why"
    parser = add_command(commands, "explain", summary, run)
    add_workloads(parser)
    add_target(parser, "as if on this target, which need not be able to run here")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Explains each workload; builds nothing."""
    target = explained_target(options.target)
    require_schedules(target)
    explanations = {n: explain(w, target) for n, w in chosen_workloads(options).items()}
    if options.json:
        print_json({name: found.to_dict() for name, found in explanations.items()})
        return OK
    out = console()
    for name, found in explanations.items():
        say(out, name, style="bold")
        say(out, f"{found}\n")
    return OK


def explained_target(name: str | None) -> HardwareTarget:
    """This machine, cut down to the name where it can be; else the named target as it is known.

    Raises InvalidValueError for an unknown name.
    """
    name = name or environment.target_name()
    if name is None:
        return detect_target()
    named = named_target(name)
    try:
        return detect_target(name)
    except InvalidValueError:  # a good name: this machine cannot run it
        return named
