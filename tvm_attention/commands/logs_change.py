"""``tvm-attention logs merge | prune``: changing logs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tvm_attention import environment
from tvm_attention.commands.arguments import canonical_target
from tvm_attention.commands.ending import FAILED, OK
from tvm_attention.commands.output import console, counted, print_json, say
from tvm_attention.database import (
    TuningRecord,
    merge_into_log,
    prune_log,
    read_log,
    searched_target,
    user_log_path,
)
from tvm_attention.database.shapes import TARGET_NAME
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.errors import InvalidValueError, TuningLogError


def run_merge(options: argparse.Namespace) -> int:
    """Merges logs into one, which holds records of one target."""
    target = canonical_target(options.target)
    records = [r for path in options.sources for r in read_log(path)]
    records = [r for r in records if target in (None, r.target)]
    present = read_log(options.into) if options.into.exists() else ()
    only = _only_target(records, present, options.into)
    merged = merge_into_log(options.into, records)
    new = sum(record not in present for record in merged)
    if options.json:
        print_json({"log": str(options.into), "target": only, "records": len(merged), "new": new})
    else:
        count = counted(len(merged), "record")
        say(console(), f"{options.into}: {count} of {only}, {new} of them new")
    say_unless_searched(options.into, only)
    return OK


def say_unless_searched(log: Path, target: str) -> None:
    """Says on stderr, in one line, how to have a log's records served if it is not searched."""
    if searched_target(log) is not None:
        return
    name = log.stem if TARGET_NAME.fullmatch(log.stem) else "merged"
    command = ["tvm-attention", "logs", "merge", str(log), "--into"]
    again = shlex.join([*command, str(user_log_path(target, name))])
    print(f"note: kernels are not chosen from {log}; to have them so: {again}", file=sys.stderr)


def _only_target(
    records: Sequence[TuningRecord], present: Sequence[TuningRecord], into: Path
) -> str:
    """The one target of a log, for a reader refuses a log of another target than its folder's."""
    if not records:
        raise InvalidValueError("no record to merge; `logs list --log FILE` shows those of a file")
    targets = {r.target for r in (*records, *present)}
    if (searched := searched_target(into)) is not None:
        targets.add(searched)
    if len(targets) > 1:
        raise InvalidValueError(
            f"expected records of one target for {into}, got {', '.join(sorted(targets))}; choose "
            f"one by --target and a log of that target by --into"
        )
    return targets.pop()


def run_prune(options: argparse.Namespace) -> int:
    """Prunes logs; a damaged one is left as it is and makes the exit status 1."""
    out, status = console(), OK
    pruned: list[dict[str, object]] = []
    paths = _paths(options.log, canonical_target(options.target))
    if not paths and not options.json:
        say(out, "no logs")
    for path in paths:
        try:
            dropped = prune_log(path, EXPRESSIONS)
        except TuningLogError as error:
            print(f"tvm-attention logs prune: {error}", file=sys.stderr)
            pruned.append({"log": str(path), "error": str(error), "dropped": []})
            status = FAILED
            continue
        reasons = [{"record": r.to_dict(), "reason": reason} for r, reason in dropped]
        pruned.append({"log": str(path), "error": None, "dropped": reasons})
        if not options.json:
            _say_dropped(out, path, dropped)
    if options.json:
        print_json({"ok": status == OK, "logs": pruned})
    return status


def _say_dropped(out: Console, path: Path, dropped: Sequence[tuple[TuningRecord, str]]) -> None:
    say(out, f"{path}: {counted(len(dropped), 'record')} dropped")
    for record, reason in dropped:
        say(out, f"  {record}: {reason}")


def existing(path: Path) -> Path:
    """The path. Raises InvalidValueError if it is no file."""
    if not path.is_file():
        raise InvalidValueError(f"--log: expected a file that exists, got {path}")
    return path


def _paths(log: Path | None, target: str | None) -> list[Path]:
    if log is not None:
        return [existing(log)]
    folders = [user_log_path(target).parent] if target else environment.log_directory().glob("*")
    return sorted(path for folder in folders for path in folder.glob("*.jsonl"))
