"""``tvm-attention tune --modelled`` for GPUs: records for one that is not there."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tvm_attention.commands.ending import OK
from tvm_attention.commands.logs_change import say_unless_searched
from tvm_attention.commands.output import console, counted, print_json, say, seconds_text
from tvm_attention.cuda.tuning import Modelled, tune_modelled
from tvm_attention.database import user_log_path
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

GPU_TRIALS = 4  # each is compiled, the best of the model among all that the design space holds


def is_gpu(target: str | None) -> bool:
    """Whether a target's name is that of a GPU's architecture."""
    return target is not None and "," not in target and named_target(target).kind == "cuda"


def run_modelled(options: argparse.Namespace, names: Mapping[AttentionWorkload, str]) -> int:
    """Models candidates and writes the best of each workload into a log."""
    target = named_target(options.target)
    out, found = console(), list[Modelled]()

    def show(one: Modelled) -> None:
        found.append(one)
        if not options.json:
            say(out, _line(one, names[one.workload]))

    log = options.log or user_log_path(target.name)
    made = tune_modelled(
        list(names), target, log, trials=options.trials or GPU_TRIALS, minutes=options.minutes,
        again=options.again, progress=show,
    )  # fmt: skip
    if options.json:
        outcomes = [_to_dict(one, names[one.workload]) for one in found]
        records = [record.to_dict() for record in made]
        print_json({"log": str(log), "records": records, "outcomes": outcomes})
        return OK
    say(out, f"{counted(len(made), 'record')} written to {log}; modelled, not measured")
    if made:
        say_unless_searched(log, target.name)
    return OK


def _line(one: Modelled, name: str) -> str:
    times = f"{seconds_text(one.tuned)}, default {seconds_text(one.default)}"
    left = f", {len(one.refused)} left out" if one.refused else ""
    return f"{name}: {times}: {one.candidate} ({one.trials} compiled{left})"


def _to_dict(one: Modelled, name: str) -> dict[str, object]:
    return {
        "name": name,
        "workload": one.workload.to_dict(),
        "variant": one.candidate.variant,
        "decisions": dict(one.candidate.decisions),
        "tuned": one.tuned,
        "default": one.default,
        "trials": one.trials,
        "refused": list(one.refused),
    }
