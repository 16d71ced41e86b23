"""``tvm-attention demo``: the main job, checked and timed."""

from __future__ import annotations

import argparse

from tvm_attention.commands.arguments import Commands, add_command, add_workloads, chosen_workloads
from tvm_attention.commands.output import console


def add(commands: Commands) -> None:
    """The parser of ``demo``."""
    summary = "run attention at the shapes of known models, check and time it"
    add_workloads(add_command(commands, "demo", summary, run), required=False)


def run(options: argparse.Namespace) -> int:
    """Runs the demo, on its own suite unless another or a workload is asked for."""
    from tvm_attention import demo

    asked = options.workload is not None or options.suite is not None
    return demo.run(console(), chosen_workloads(options) if asked else None)
