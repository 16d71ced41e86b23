"""``tvm-attention report``: one HTML page about this machine."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import tvm_attention
from tvm_attention.commands.arguments import Commands, add_command, add_json
from tvm_attention.commands.bar import bar
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, counted, print_json, say, size_text
from tvm_attention.errors import InvalidValueError
from tvm_attention.suites import SUITES, suite

_GATHERING = "reading"


def add(commands: Commands) -> None:
    """The parser of ``report``."""
    summary = "write a page about this machine: records in use, speed, searches"
    parser = add_command(commands, "report", summary, run)
    parser.add_argument(
        "--results",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="measurements of bench/bench_attention.py --json; without them no roofline and no peers",
    )
    parser.add_argument(
        "--journals",
        type=Path,
        metavar="DIR",
        help="searches to draw; default those that tune left in the cache folder",
    )
    parser.add_argument(
        "--suite",
        choices=SUITES,
        default="core",
        help="the workloads whose records are shown; default core",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("tvm_attention_report.html"),
        metavar="FILE",
        help="the page; default tvm_attention_report.html here",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the page; files of results that are none are left out, and said on stderr."""
    from tvm_attention.report import gather, page
    from tvm_attention.report.page import PARTS

    if options.journals is not None and not options.journals.is_dir():
        raise InvalidValueError(
            f"--journals: expected a folder that exists, got {options.journals}"
        )
    with bar(1 + len(PARTS)) as advance:
        advance(_GATHERING)
        contents = gather(suite(options.suite), options.results, options.journals)
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        made = f"Written by tvm-attention {tvm_attention.__version__} on {now}, from files alone."
        text = page(contents, made, advance)
    for reason in contents.refused:
        print(f"tvm-attention report: left out: {reason}", file=sys.stderr)
    data = text.encode()
    options.output.write_bytes(data)
    if options.json:
        print_json(
            {
                "page": str(options.output),
                "bytes": len(data),
                "workloads": len(contents.explanations),
                "results": [str(result.path) for result in contents.results],
                "searches": len(contents.searches),
                "left_out": list(contents.refused),
            }
        )
        return OK
    parts = (
        counted(len(contents.explanations), "workload"),
        counted(len(contents.results), "file") + " of results",
        f"{len(contents.searches)} searches",
    )
    say(console(), f"{options.output}: {', '.join(parts)}; {size_text(len(data))}")
    return OK
