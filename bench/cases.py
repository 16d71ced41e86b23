"""Benchmarks of a few cases of their own: measured, printed as a table and, if asked to, written."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.table import Table

from bench import machine, results
from bench.command import PROGRAM
from tvm_attention.commands.bar import bar
from tvm_attention.commands.ending import FAILED, OK, ended
from tvm_attention.commands.output import console
from tvm_attention.errors import InvalidValueError

Rows = list[dict[str, Any]]


def perform(
    options: argparse.Namespace,
    measured: Callable[[], Rows],
    table: Callable[[Rows], Table],
    **more: Any,
) -> int:
    """The exit status: 1 where a case's results are wrong, 2 for a file that cannot be written.

    ``options`` has ``threads`` and ``json``, where the rows go with what else is said of them.
    """
    return ended(lambda: _perform(options, measured, table, more), PROGRAM)


def _perform(
    options: argparse.Namespace,
    measured: Callable[[], Rows],
    table: Callable[[Rows], Table],
    more: dict[str, Any],
) -> int:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.json:
        results.require_writable(options.json)
    try:
        rows = measured()
    except InvalidValueError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return FAILED
    try:
        console().print(table(rows))
    finally:
        if options.json:
            result = {**machine.circumstances(options.threads), **more, "cases": rows}
            results.write(result, options.json)
    return OK


def told(rows: Iterable[dict[str, Any]], count: int, line: Callable[[dict[str, Any]], str]) -> Rows:
    """All ``count`` rows; a line of each on stderr as it is there, above a bar where there is a terminal."""
    found: Rows = []
    begun = time.monotonic()
    with bar(count) as advance:
        advance("")
        for row in rows:
            found.append(row)
            seconds = time.monotonic() - begun
            said = f"{len(found)}/{count} {line(row)}; {seconds:.0f} s"
            print(said, file=sys.stderr, flush=True)
            advance("")
    return found
