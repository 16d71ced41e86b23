"""Faults written into the source of CUDA kernels, all at once, of which one at a time is there when the
kernel runs: so that one compilation serves for all. Each must make a check fail."""

from __future__ import annotations

import re

_WAITS = re.compile(r"(__syncthreads|__syncwarp|wait_for_copies)\(\);")
_BINDING = re.compile(r"\(\(int\)threadIdx\.([xy])\)")
_LIMIT = re.compile(r"(<=?) (key_length|query_length|\(group \* query_length\))(?!\w)")


def without_waits(source: str) -> tuple[str, int]:
    """(source, faults): each wait of a kernel left out. Their number is how many there are."""
    return _numbered(_WAITS, source, lambda n, found: f"if (mutation != {n}) {found[0]}")


def bound_wrong(source: str, most: int) -> tuple[str, int]:
    """Stores of a stage whose threads' axes are bound the other way round, at ``most`` places that are far
    apart."""
    lines = source.split("\n")
    stores = [n for n, line in enumerate(lines) if " = " in line and _BINDING.search(line)]
    chosen = stores[:: max(1, -(-len(stores) // most))]
    other = {"x": "y", "y": "x"}
    for number, n in enumerate(chosen, 1):
        lines[n] = _BINDING.sub(
            lambda f, m=number: (  # type: ignore[misc]
                f"((int)(mutation == {m} ? threadIdx.{other[f[1]]} : threadIdx.{f[1]}))"
            ),
            lines[n],
        )
    return "\n".join(lines), len(chosen)


def one_too_far(source: str) -> str:
    """Comparisons with the number of keys (1), of queries (2) and of a group's rows (4), all of either, off
    by one; and whether a block of keys is whole (3)."""
    numbers = {
        ("<", "key_length"): 1, ("<", "query_length"): 2, ("<=", "key_length"): 3,
        ("<", "(group * query_length)"): 4,
    }  # fmt: skip

    def changed(_: int, found: re.Match[str]) -> str:
        fault = numbers.get((found[1], found[2]), 0)
        return f"{found[1]} ({found[2]} + (mutation == {fault} && mutation))"

    return _numbered(_LIMIT, source, changed)[0]


def _numbered(pattern: re.Pattern[str], source: str, change: object) -> tuple[str, int]:
    count = 0

    def changed(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return str(change(count, found))  # type: ignore[operator]

    return pattern.sub(changed, source), count
