"""``tvm-attention logs list | verify | merge | prune``: tuning logs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from tvm_attention.commands import logs_change, logs_verify
from tvm_attention.commands.arguments import (
    Commands,
    OneLineParser,
    add_command,
    add_json,
    add_parser,
    add_target,
    canonical_target,
)
from tvm_attention.commands.ending import FAILED, OK
from tvm_attention.commands.output import console, folding_table, print_json, say
from tvm_attention.database import (
    TuningLog,
    TuningRecord,
    available_logs,
    read_log,
    shipped_logs,
    user_logs,
)
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.errors import TuningLogError
from tvm_attention.suites import shape_text


def add(commands: Commands) -> None:
    """The parsers of ``logs`` and its own commands."""
    parser = add_parser(commands, "logs", "list, verify, merge or prune tuning logs")
    own = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    listing = add_command(own, "list", "list tuning records", run_list)
    _add_choice(listing, "all logs")
    add_json(listing)
    verify = add_command(own, "verify", "replay and build every record of a target", run_verify)
    _add_choice(verify, "the shipped logs")
    verify.add_argument("--jobs", type=logs_verify.JOBS, metavar="N", help="builds at a time")
    add_json(verify)
    merge = add_command(
        own, "merge", "add records to a log, the fastest of each case", logs_change.run_merge
    )
    merge.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="log files")
    merge.add_argument("--into", type=Path, required=True, metavar="FILE", help="may be new")
    add_target(merge, "only records of this target")
    add_json(merge)
    prune = add_command(own, "prune", "drop records that no longer serve", logs_change.run_prune)
    which = prune.add_mutually_exclusive_group()
    which.add_argument("--target", metavar="NAME", help="your logs of this target; default all")
    which.add_argument("--log", type=Path, metavar="FILE", help="this file instead of your logs")
    add_json(prune)


def _add_choice(parser: argparse.ArgumentParser, default: str) -> None:
    add_target(parser, "only records of this target, or of several with commas between")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--user", action="store_true", help=f"your own logs instead of {default}")
    which.add_argument("--log", type=Path, metavar="FILE", help=f"a file instead of {default}")


def run_list(options: argparse.Namespace) -> int:
    """Lists records, and the logs that were refused with the reason."""
    logs = chosen_logs(options, available_logs)
    if options.json:
        print_json({"logs": [_to_dict(log) for log in logs]})
        return OK
    out = console()
    table = folding_table(
        "target", "workload", "variant", "over default", "provenance", "date", "log"
    )
    for log in logs:
        for record in log.records:
            table.add_row(*(Text(cell) for cell in _cells(record, log)))
    if table.row_count:
        out.print(table)
    else:
        say(out, "no records")
    for log in logs:
        if log.refusal is not None:
            say(out, f"refused: {log.refusal}", style="red")
    return OK


def run_verify(options: argparse.Namespace) -> int:
    """Builds records; exit status 1 if one does not hold, a log was refused or there is none."""
    logs = chosen_logs(options, shipped_logs)
    report = logs_verify.verify_logs(logs, options.jobs)
    if options.json:
        print_json(report.to_dict())
    else:
        report.show(console())
    return OK if report.holds else FAILED


def chosen_logs(
    options: argparse.Namespace, default: Callable[[], Iterable[TuningLog]]
) -> list[TuningLog]:
    """The logs that --user, --log and --target (several with commas between) choose, with the records
    they choose."""
    named = [] if options.target is None else options.target.split(",")
    targets = {canonical_target(name) for name in named}
    if options.log is not None:
        logs: Iterable[TuningLog] = [_file(options.log)]
    else:
        found = user_logs() if options.user else default()
        logs = [log for log in found if not targets or _may_hold(log, targets)]
    return [
        replace(g, records=tuple(r for r in g.records if not targets or r.target in targets))
        for g in logs
    ]


def _file(path: Path) -> TuningLog:
    try:
        return TuningLog(str(path), True, read_log(logs_change.existing(path)))
    except TuningLogError as error:
        return TuningLog(str(path), True, (), str(error))


def _may_hold(log: TuningLog, targets: Collection[str | None]) -> bool:
    """Whether a log is in a target's folder; one that could not be listed might be."""
    folder, slash, _ = log.name.partition(" ")[2].partition("/")
    return folder in targets or not slash


def _to_dict(log: TuningLog) -> dict[str, object]:
    records = [{**r.to_dict(), "speedup": 1 / r.ratio} for r in log.records]
    return {"name": log.name, "user": log.user, "refusal": log.refusal, "records": records}


def _cells(record: TuningRecord, log: TuningLog) -> tuple[str, ...]:
    stale = (
        ""
        if record.expression == EXPRESSIONS[record.hardware["kind"]]
        else ", of another expression"
    )
    provenance = record.provenance
    return (
        record.target,
        shape_text(record.workload),
        record.variant,
        f"{1 / record.ratio:.2f}x",
        f"{provenance['kind']} on {provenance['on']}, {provenance['trials']} trials{stale}",
        record.date,
        log.name,
    )
