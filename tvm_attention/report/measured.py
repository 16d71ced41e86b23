"""The sections on what was measured: the roofline, and speed against peers."""

from __future__ import annotations

import math

from tvm_attention.quantities import counted
from tvm_attention.report.contents import Contents
from tvm_attention.report.figures import roofline, speeds
from tvm_attention.report.html import Cell, details, escape, figure, section, table
from tvm_attention.report.results import MODES, Measurement, ResultFile

_MEASURE = "python bench/bench_attention.py --suite core --json FILE, then --results FILE here."


def roofline_section(contents: Contents) -> str:
    """One figure: of the results of attention alone that have the machine's ceilings, those of the most
    rounds."""
    title = "Roofline"
    usable = [r for r in contents.results if r.mode == "attention" and r.measurements]
    if not usable:
        return section("roofline", title, _nothing(contents))
    result = max(usable, key=_worth)
    caption = (
        f"{origin(result)}. Each point is a workload: its operations a second against its operations a "
        f"byte of the four tensors. Lines are what the machine did in the same rounds: multiply-adds of "
        f"its vector units, which a matrix unit may exceed, and reads."
    )
    rows = table(
        ("workload", "batch x heads x queries x keys x dim", "ms", "GFLOP/s", "operations a byte",
         "of the machine"),
        (_row(m) for m in result.measurements),
    )  # fmt: skip
    picture = figure(roofline("roofline", result), caption)
    return section("roofline", title, picture, details("the numbers", rows))


def speed_section(contents: Contents) -> str:
    """One figure of all results with peers, the geometric means, and every number."""
    title = "Speed against peers, by length"
    order = list(MODES)
    results = sorted((r for r in contents.results if r.peers), key=lambda r: order.index(r.mode))
    if not results:
        return section("speed", title, _nothing(contents))
    caption = (
        "A peer's time over ours within each round, median with a bar from quartile to quartile: above "
        "1 ours is faster, in the grey it is slower. Filled markers are prefill, hollow ones decoding (one "
        "query, or few). When, and on what each was measured is with the numbers below."
    )
    means = table(
        ("measured", "peer", "geometric mean of its time / ours", "workloads", "ours slower on"),
        (_mean(r, peer) for r in results for peer in r.peers),
    )
    numbers = [
        details(
            f"the numbers: {MODES[r.mode]}, {', '.join(r.peers)} ({r.path.name})",
            f"<p>{escape(origin(r))}.</p>\n{_ratios(r)}",
        )
        for r in results
    ]
    return section("speed", title, figure(speeds("speeds", results), caption), means, *numbers)


def origin(result: ResultFile) -> str:
    """On what, when and with what a result was measured."""
    peers = [f"{p} {result.packages[p]}" for p in result.peers if p in result.packages]
    versions = f", {', '.join(peers)}" if peers else ""
    return (
        f"Suite {result.suite}, {MODES[result.mode]}, {result.threads} threads, on {result.model} "
        f"({result.target}), {result.date}, commit {result.commit}{versions}"
    )


def _worth(result: ResultFile) -> tuple[bool, int]:
    ceilings = result.fma_peak is not None or result.read_peaks is not None
    return ceilings, sum(m.rounds for m in result.measurements)


def _nothing(contents: Contents) -> str:
    refused = "".join(f'<p class="worse">{escape(reason)}</p>' for reason in contents.refused)
    return (
        f"<p>No measurements were given. Measure with <code>{escape(_MEASURE)}</code></p>{refused}"
    )


def _row(m: Measurement) -> tuple[Cell | str, ...]:
    share = "-"
    if m.ceiling is not None:
        what = "of the multiply-adds" if m.limit == "fma" else "of the read bandwidth"
        share = f"{m.ceiling:.0f} {'GFLOP/s' if m.limit == 'fma' else 'GB/s'} {what}"
    return (
        m.name,
        m.shape,
        Cell(f"{m.seconds.median * 1e3:.3g}", "number"),
        Cell(f"{m.gflops:.0f}", "number"),
        Cell(f"{m.intensity:.3g}", "number"),
        share,
    )


def _mean(result: ResultFile, peer: str) -> tuple[Cell | str, ...]:
    ratios = {m.name: m.peers[peer].median for m in result.measurements if peer in m.peers}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    lost = [name for name, ratio in ratios.items() if ratio < 1]
    return (
        f"{MODES[result.mode]}, suite {result.suite}, {counted(result.threads, 'thread')}",
        peer,
        Cell(f"{mean:.2f}", f"number {_kind(mean)}"),
        Cell(str(len(ratios)), "number"),
        Cell(", ".join(lost) or "none", "long"),
    )


def _ratios(result: ResultFile) -> str:
    rows: list[tuple[Cell | str, ...]] = []
    for m in result.measurements:
        cells = []
        for peer in result.peers:
            s = m.peers.get(peer)
            text = "-" if s is None else f"{s.median:.2f} ({s.q1:.2f}-{s.q3:.2f})"
            cells.append(Cell(text, "number" if s is None else f"number {_kind(s.median)}"))
        ours = Cell(f"{m.seconds.median * 1e3:.3g}", "number")
        rows.append((m.name, m.shape, ours, *cells))
    return table(("workload", "shape", "ours ms", *result.peers), rows)


def _kind(ratio: float) -> str:
    return "better" if ratio >= 1 else "worse"
