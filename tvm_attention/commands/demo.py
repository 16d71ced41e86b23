"""``tvm-attention demo``: the main job, checked and timed."""

from __future__ import annotations

import argparse

from rich.console import Console

from tvm_attention.commands.arguments import (
    Commands,
    add_command,
    add_json,
    add_workloads,
    chosen_workloads,
)
from tvm_attention.commands.bar import bar
from tvm_attention.commands.ending import FAILED, OK
from tvm_attention.commands.output import console, print_json
from tvm_attention.suites import suite


def add(commands: Commands) -> None:
    """The parser of ``demo``."""
    summary = "run attention at the shapes of known models, check and time it"
    parser = add_command(commands, "demo", summary, run)
    add_workloads(parser, required=False)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Runs the demo, on its own suite unless another or a workload is asked for; exit status 1 if a check
    failed."""
    from tvm_attention import demo

    asked = options.workload is not None or options.suite is not None
    workloads = chosen_workloads(options) if asked else suite("demo")
    out = Console(quiet=True) if options.json else console()
    with bar(len(workloads), None if options.json else out) as advance:
        findings = demo.run(out, workloads, advance=advance)
    if options.json:
        print_json(findings.to_dict())
    return FAILED if findings.wrong else OK
