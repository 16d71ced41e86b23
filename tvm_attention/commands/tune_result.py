"""What ``tvm-attention tune`` found, as a table and as plain data."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tvm_attention.commands.logs_change import say_unless_searched
from tvm_attention.commands.output import counted, folding_table, say, seconds_text
from tvm_attention.commands.tune_progress import Names
from tvm_attention.suites import shape_text
from tvm_attention.tuning import TuningOutcome, TuningResult


def to_dict(result: TuningResult, names: Names) -> dict[str, object]:
    """The result as plain data; seconds, None where there are none."""
    return {
        "log": str(result.log),
        "interrupted": result.interrupted,
        "stopped": result.stopped,
        "not_reached": len(names) - len(result.outcomes),
        "records": [record.to_dict() for record in result.records],
        "outcomes": [
            {
                "name": names[outcome.workload],
                "workload": outcome.workload.to_dict(),
                "variant": None if outcome.best is None else outcome.best.variant,
                "decisions": None if outcome.best is None else dict(outcome.best.decisions),
                "tuned": outcome.tuned,
                "default": outcome.default,
                "kept": outcome.kept,
                "reason": outcome.reason,
                "trials": outcome.trials,
            }
            for outcome in result.outcomes
        ],
    }


def print_result(out: Console, result: TuningResult, names: Names) -> None:
    """The outcome of each workload, where the records are, and what was not reached."""
    if result.outcomes:
        table = folding_table(
            "workload", "default", "tuned", "kept", "reason", "best variant", "trials"
        )
        for outcome in result.outcomes:
            table.add_row(*map(Text, _cells(outcome, names[outcome.workload])))
        out.print(table)
    if result.records:
        say(out, f"{counted(len(result.records), 'record')} written to {result.log}")
        say_unless_searched(result.log, result.records[0].target)
    else:
        say(out, "no records written")
    left = len(names) - len(result.outcomes)
    if left and not (result.interrupted or result.stopped):
        say(
            out,
            f"{counted(left, 'workload')} not reached in the time given; the same command goes on",
        )


def _cells(outcome: TuningOutcome, name: str) -> Sequence[str]:
    shape = shape_text(outcome.workload)
    return (
        name if name == shape else f"{name}\n{shape}",
        seconds_text(outcome.default),
        seconds_text(outcome.tuned),
        "yes" if outcome.kept else "no",
        outcome.reason,
        "-" if outcome.best is None else outcome.best.variant,
        str(outcome.trials),
    )
