"""``tvm-attention doctor``: checks the installation, and says what to do about what is wrong.

Whatever could crash runs in a child process, so that a crash is a finding and not the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

from rich.console import Console

from tvm_attention.boards import Boards
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
)
from tvm_attention.commands.bar import bar
from tvm_attention.commands.doctor_checks import Finding, checks, examine
from tvm_attention.commands.ending import FAILED, OK
from tvm_attention.commands.output import console, print_json, say
from tvm_attention.export.toolchain import parsed_compilers


def add(commands: Commands) -> None:
    """The parser of ``doctor``."""
    parser = add_command(commands, "doctor", "check the installation, or boards to tune on", run)
    add_boards(parser)
    add_target(parser, "with --rpc, what boards are to run")
    add_workloads(parser, required=False)
    add_compiler(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Makes every check; exit status 1 if one failed."""
    out = console()
    findings = []
    with _examined(options, out) as examined:
        for finding in each_cause_once(examined):
            findings.append(finding)
            if not options.json:
                _show(out, finding)
    holds = all(finding.ok for finding in findings)
    if options.json:
        print_json({"ok": holds, "checks": [asdict(finding) for finding in findings]})
    return OK if holds else FAILED


@contextmanager
def _examined(options: argparse.Namespace, out: Console) -> Iterator[Iterator[Finding]]:
    """The findings of what is asked for, each as soon as it is there."""
    asked = chosen_boards(options)
    if asked is None:
        with bar(len(checks()), None if options.json else out) as advance:
            yield examine(advance)
        return
    from tvm_attention.commands.doctor_boards import examine_boards

    compilers = parsed_compilers(options.compiler)
    named = options.workload is not None or options.suite is not None
    workloads = chosen_workloads(options) if named else {}
    yield examine_boards(Boards(*asked, compilers=compilers), options.target, workloads, compilers)


def each_cause_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings; one that failed as an earlier one did refers to it, its own advice would mislead."""
    failed: list[Finding] = []
    for finding in findings:
        if finding.ok:
            yield finding
            continue
        first = next((f for f in failed if finding.detail in f.detail), None)
        if first is None:
            failed.append(finding)
            yield finding
        else:
            yield replace(finding, detail=f"the same as {first.name}", advice="mend that first")


def _show(out: Console, finding: Finding) -> None:
    if finding.ok:
        say(out, f"ok    {finding.name}: {finding.detail}")
        if finding.advice:
            say(out, f"      better: {finding.advice}")
    else:
        say(out, f"FAIL  {finding.name}: {finding.detail}", style="red")
        say(out, f"      what to do: {finding.advice}")
