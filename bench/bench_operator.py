"""python bench/bench_operator.py --threads 2 --json FILE: what torch's dispatcher costs a call.

Each operator of torch.ops.tvm_attention, called by name, in turns with the direct call of the same
function; and torch's own function while it is routed to ours. The tensors are small, so that little
but the call itself is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from rich.table import Table

import tvm_attention as ta
import tvm_attention.torch
from bench.cases import perform
from bench.command import THREADS
from tvm_attention.commands.arguments import OneLineParser, positive
from tvm_attention.commands.bar import stepped
from tvm_attention.interleaved import Contender, Quartiles, interleave

SHAPE = (1, 4, 16, 64)
Call = Callable[[], object]
Case = tuple[str, Call, Call]
"""Its name, the call through torch's dispatcher, and the direct one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write the results; 2 for a file that cannot be written."""
    options = _parser().parse_args(arguments)
    return perform(options, lambda: _measured(options), _table, shape=SHAPE)


@torch.no_grad()
def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = [_measure(*case, options.seconds) for case in stepped(_cases(), lambda c: c[0])]
    with tvm_attention.torch.enabled():
        return rows + [_measure(*case, options.seconds) for case in _routed()]


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_operator", description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--seconds", type=positive, default=2.0, help="of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser


def _cases() -> list[Case]:
    rows = SHAPE[2]
    mask = torch.zeros(rows, rows)
    attention, sdpa = (
        torch.ops.tvm_attention.attention,
        torch.ops.tvm_attention.scaled_dot_product_attention,
    )
    causal = {"causal": "bottom_right"}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": causal,
        "causal, scale": {**causal, "scale": 0.1},
        "mask": {"mask": mask},
        "causal, window, softcap, scale": {
            **causal, "window": (8, 0), "softcap": 30.0, "scale": 0.1,
        },
        "sinks": {"sinks": torch.zeros(SHAPE[1])},
    }  # fmt: skip
    torchs: dict[str, dict[str, Any]] = {
        "plain": {},
        "is_causal, scale": {"is_causal": True, "scale": 0.1},
        "attn_mask": {"attn_mask": mask},
    }
    return [
        *(_case(f"attention: {n}", attention, ta.attention, o) for n, o in options.items()),
        *(
            _case(f"scaled_dot_product_attention: {n}", sdpa, ta.scaled_dot_product_attention, o)
            for n, o in torchs.items()
        ),
    ]


def _routed() -> list[Case]:
    """torch's own function, under enabled()."""
    ours, torchs = ta.scaled_dot_product_attention, F.scaled_dot_product_attention
    return [_case("torch.nn.functional, routed", torchs, ours, {"is_causal": True})]


def _case(name: str, operator: Any, direct: Any, options: dict[str, Any]) -> Case:
    tensors = [torch.randn(SHAPE) for _ in range(3)]
    return name, lambda: operator(*tensors, **options), lambda: direct(*tensors, **options)


def _measure(name: str, call: Call, direct: Call, seconds: float) -> dict[str, Any]:
    contenders = [Contender("operator", call), Contender("direct", direct)]
    rounds = interleave(contenders, seconds, least=5)
    ours, other = rounds.seconds["operator"], rounds.seconds["direct"]
    overhead = Quartiles.of([ours[r] - other[r] for r in sorted(ours.keys() & other.keys())])
    return {
        "case": name,
        "seconds": rounds.time("operator").to_dict(),
        "direct": rounds.time("direct").to_dict(),
        "overhead": overhead.to_dict(),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "operator us", "direct us", "overhead us")
    for row in rows:
        spread = row["overhead"]
        table.add_row(
            row["case"], f"{row['seconds']['median'] * 1e6:.2f}",
            f"{row['direct']['median'] * 1e6:.2f}",
            f"{spread['median'] * 1e6:.2f} ({spread['q1'] * 1e6:.2f}-{spread['q3'] * 1e6:.2f})",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    raise SystemExit(main())
