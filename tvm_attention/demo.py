"""The demo: what this machine is, which kernels it gets, that they are right, and how fast.

Attention at the shapes of a few well-known models, every result checked against float64 and every
time taken in turns with NumPy's and, where it is installed, torch's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import tvm_attention
from tvm_attention.demo_timing import NUMPY, OURS, SECONDS, TORCH, Outcome, measure
from tvm_attention.interleaved import Rounds
from tvm_attention.memory_needed import require_memory
from tvm_attention.suites import shape_text, suite
from tvm_attention.target import detect_target
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

# The worked example: scores 1/sqrt(2) and 2/sqrt(2), so the first weight is 1/(1 + e^(1/sqrt(2))).
EXAMPLE_QUERY = np.array([[1, 2]], np.float32)
EXAMPLE_KEY = np.eye(2, dtype=np.float32)
EXAMPLE_VALUE = np.array([[10], [20]], np.float32)
EXAMPLE_WEIGHTS = (0.330238, 0.669762)
EXAMPLE_RESULT = 16.69762


@dataclass(frozen=True, slots=True)
class Findings:
    """Whether the worked example came out right, and the outcome of each workload."""

    example_holds: bool
    outcomes: tuple[Outcome, ...]

    @property
    def wrong(self) -> list[str]:
        """What did not hold, by name."""
        wrong = [o.name for o in self.outcomes if not o.accuracy.holds]
        return wrong if self.example_holds else ["the worked example", *wrong]

    def to_dict(self) -> dict[str, object]:
        """The same as plain data; times in seconds, ratios are a contender's time over ours."""
        return {
            "ok": not self.wrong,
            "wrong": self.wrong,
            "workloads": [outcome.to_dict() for outcome in self.outcomes],
        }


def run(
    console: Console | None = None,
    workloads: Mapping[str, AttentionWorkload] | None = None,
    seconds: float = SECONDS,
    advance: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Runs the demo, by default on the demo suite, prints on the console what it finds as it does, and
    tells ``advance`` of each workload as it begins.

    Raises InvalidValueError for a workload larger than memory.
    """
    console = console or Console()
    workloads = suite("demo") if workloads is None else workloads
    for workload in workloads.values():
        require_memory(workload)
    if importlib.util.find_spec("torch"):
        # First, so that everything runs on torch's thread pool, as it would in a torch program.
        import torch  # noqa: F401
    console.print(_hardware(), highlight=False)
    example_holds = _worked_example(console)
    outcomes = []
    for name, workload in workloads.items():
        advance(name)
        outcomes.append(measure(name, workload, seconds))
        console.print(f"{name}: {outcomes[-1].kernel}", highlight=False, markup=False)
    findings = Findings(example_holds, tuple(outcomes))
    _show(console, findings)
    return findings


def _show(console: Console, findings: Findings) -> None:
    console.print("`tvm-attention explain` shows every record considered.", highlight=False)
    console.print(_table(findings.outcomes))
    for outcome in findings.outcomes:
        for name, reason in outcome.left_out.items():
            console.print(f"{outcome.name}: without {name}, {reason}", highlight=False)
    wrong = ", ".join(findings.wrong)
    verdict = f"[red]wrong: {wrong}" if wrong else "[green]every check held"
    console.print(verdict, highlight=False)


def _worked_example(console: Console) -> bool:
    """Prints softmax(Q K^T / sqrt(2)) V of the worked example; whether it is what it should be."""
    attention = tvm_attention.scaled_dot_product_attention
    weights = np.asarray(attention(EXAMPLE_QUERY, EXAMPLE_KEY, np.eye(2, dtype=np.float32)))[0]
    result = float(np.asarray(attention(EXAMPLE_QUERY, EXAMPLE_KEY, EXAMPLE_VALUE))[0, 0])
    console.print(
        f"Q=[[1, 2]], K=I, V=[[10], [20]]: weights {weights[0]:.4f} and {weights[1]:.4f}, "
        f"result {result:.3f}",
        highlight=False,
        markup=False,
    )
    close = np.allclose(weights, EXAMPLE_WEIGHTS, rtol=0, atol=2e-6)
    return bool(close) and abs(result - EXAMPLE_RESULT) <= 1e-5


def _hardware() -> str:
    target = detect_target()
    sizes = (("L1d", target.l1d), ("L2", target.l2), ("L3", target.l3))
    caches = ", ".join(f"{name} {size // 1024} KiB" for name, size in sizes if size)
    pool = launcher()
    return (
        f"{target.model or target.micro_architecture}: {target.name} ({target.isa}), "
        f"{target.cores} cores, {caches or 'caches unknown'}; "
        f"{pool.max_threads()} threads on {pool.name}"
    )


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        title="Attention, float32",
        caption="others: their time over ours, median of rounds (interquartile range)",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("workload", overflow="fold")
    for column in ("max error", "ours ms", f"{TORCH} / ours", f"{NUMPY} / ours"):
        table.add_column(column, justify="right", overflow="fold")
    for outcome in outcomes:
        found, rounds = outcome.accuracy, outcome.rounds
        mark = "[green]ok" if found.holds else "[red]WRONG"
        table.add_row(
            f"{outcome.name}\n[dim]{shape_text(outcome.workload)}",
            f"{found.max_error:.1e}\n{mark}",
            f"{rounds.time(OURS).median * 1e3:.3g}",
            *(_ratio(rounds, name) for name in (TORCH, NUMPY)),
        )
    return table


def _ratio(rounds: Rounds, name: str) -> str:
    if name not in rounds.seconds:
        return "-"
    quartiles = rounds.ratio(name, OURS)
    return f"{quartiles.median:.2f}\n[dim]{quartiles.q1:.2f}-{quartiles.q3:.2f}"
