"""The same model with several attentions: equal results, memory and time beside each other."""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tvm_attention.interleaved import Contender, interleave

Call = Callable[[], torch.Tensor]
OURS = "tvm_attention"


def compare(
    title: str, contenders: Mapping[str, Call], seconds: float, allowed: float, console: Console
) -> bool:
    """Prints a row for each contender, the first being what the others are held to; whether all results
    are within ``allowed`` of the first's range of values."""
    table = Table(title=title, title_justify="left")
    table.add_column("attention", no_wrap=True)
    for column in ("difference", "peak memory", "ms", "time / ours"):
        table.add_column(column, justify="right", no_wrap=True)
    expected = next(iter(contenders.values()))()
    span = float(expected.max() - expected.min())
    differences = {
        n: float((call() - expected).abs().max()) / span for n, call in contenders.items()
    }
    del expected
    peaks = {name: peak_bytes(call) for name, call in contenders.items()}
    rounds = interleave([Contender(n, call) for n, call in contenders.items()], seconds, least=3)
    for name in contenders:
        peak, ratio = peaks[name], rounds.ratio(name, OURS)
        table.add_row(
            name,
            f"{differences[name]:.1e}",
            "-" if peak is None else f"{peak / 2**20:.0f} MiB",
            f"{rounds.time(name).median * 1e3:.3g}",
            "1" if name == OURS else f"{ratio.median:.2f} ({ratio.q1:.2f}-{ratio.q3:.2f})",
        )
    console.print(table)
    holds = all(difference <= allowed for difference in differences.values())  # never for a NaN
    verdict = "results are equal" if holds else "results are NOT EQUAL"
    console.print(
        f"{verdict}: the largest difference, over the range of values, may be {allowed:.0e}"
    )
    return holds


def peak_bytes(call: Call) -> int | None:
    """Memory that a call takes beyond what the process has before, at its peak, its result included; a
    call before it has loaded and built what is kept. None where Linux does not let itself be asked."""
    call()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would otherwise hide what is taken
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present from here on
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError):
        return None


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[name].split()[0]) * 1024


def parsed_seconds(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with --seconds, which must be positive."""
    parser.add_argument("--seconds", type=float, default=8.0, help="of timing; default 8")
    options = parser.parse_args()
    if not options.seconds > 0:
        parser.exit(2, f"--seconds: expected a positive number, got {options.seconds}\n")
    return options
