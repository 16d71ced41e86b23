"""python bench/bench_low_precision.py --threads 2 --json FILE: suite core in 16 bits, beside torch.

Ours, ours in float32 and torch's are timed in turns; both results are compared with float64.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from rich.table import Table

import tvm_attention as ta
from bench import machine, results
from bench.command import PROGRAM, THREADS, chosen_workloads
from tvm_attention.accuracy import Accuracy, compare
from tvm_attention.commands.arguments import OneLineParser, positive
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.suites import shape_text
from tvm_attention.workload import AttentionWorkload

DTYPES = ("bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write the results; 1 if a result of ours was wrong, 2 for a name
    that is not known or a file that cannot be written."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _perform(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    chosen = chosen_workloads("core", options.only)
    if options.json:
        results.require_writable(options.json)
    todo = [(n, w, d) for d in DTYPES for n, w in chosen.items()]
    rows = [_measure(*one, options.seconds) for one in stepped(todo, lambda o: f"{o[0]} {o[2]}")]
    means = {d: _geometric_mean([r for r in rows if r["dtype"] == d]) for d in DTYPES}
    try:
        _print(rows, means)
    finally:
        if options.json:
            result = {
                "machine": machine.machine(), "packages": machine.packages(),
                "library": machine.library(), "threads": options.threads,
                "date": datetime.date.today().isoformat(), "workloads": rows,
                "geometric_mean_torch_over_ours": means,
            }  # fmt: skip
            results.write(result, options.json)
    return 0 if all(row["holds"] for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_low_precision", description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument(
        "--seconds", type=positive, default=1.0, help="of each contender and workload"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of the suite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser


def _measure(name: str, w: AttentionWorkload, dtype: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    assert w.kv_heads is not None
    assert w.value_dim is not None
    shapes = (
        (w.batch, w.query_heads, w.query_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.value_dim),
    )
    full = [torch.randn(shape) for shape in shapes]
    half = [x.to(getattr(torch, dtype)) for x in full]
    causal, grouped = w.causal is not None, w.group > 1

    def call(function: Any, tensors: list[Any]) -> Any:
        return function(*tensors, is_causal=causal, enable_gqa=grouped)

    ours, torchs = ta.scaled_dot_product_attention, F.scaled_dot_product_attention
    error, torch_error = (_error(call(f, half), half, w, dtype) for f in (ours, torchs))
    contenders = [
        Contender("ours", lambda: call(ours, half)), Contender("float32", lambda: call(ours, full)),
        Contender("torch", lambda: call(torchs, half)),
    ]  # fmt: skip
    rounds = interleave(contenders, seconds * len(contenders), least=5)
    return {
        "workload": name, "shape": shape_text(w), "dtype": dtype,
        "seconds": rounds.time("ours").to_dict(),
        "torch": rounds.ratio("torch", "ours").to_dict(),
        "float32": rounds.ratio("float32", "ours").to_dict(),
        "max_error": error.max_error, "torch_max_error": torch_error.max_error,
        "holds": error.holds,
    }  # fmt: skip


def _error(result: Any, inputs: list[Any], w: AttentionWorkload, dtype: str) -> Accuracy:
    out, query, key, value = (
        x.contiguous().view(torch.int16).numpy().view(numpy_dtype(dtype)) for x in (result, *inputs)
    )
    return compare(out, query, key, value, replace(w, dtype=dtype))


def _geometric_mean(rows: list[dict[str, Any]]) -> float:
    return math.exp(sum(math.log(r["torch"]["median"]) for r in rows) / len(rows))


def _print(rows: list[dict[str, Any]], means: dict[str, float]) -> None:
    columns = (
        "dtype",
        "workload",
        "ms",
        "torch / ours",
        "float32 / ours",
        "error",
        "torch's error",
    )
    table = Table(*columns)
    for row in rows:
        table.add_row(
            row["dtype"], f"{row['workload']} ({row['shape']})",
            f"{row['seconds']['median'] * 1e3:.3g}", f"{row['torch']['median']:.2f}",
            f"{row['float32']['median']:.2f}", f"{row['max_error']:.1e}",
            f"{row['torch_max_error']:.1e}",
        )  # fmt: skip
    out = console()
    out.print(table)
    for dtype, mean in means.items():
        out.print(f"{dtype}: torch / ours, geometric mean {mean:.2f}", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
