"""Cache sizes and cores, from /sys/devices/system/cpu."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of a set of logical processors and their caches in bytes, 0 where unknown.

    ``l1d`` and ``l2`` are one core's share, the smallest where cores differ; ``l3`` is what the
    first processor's cache holds in all.
    """

    count: int
    l1d: int
    l2: int
    l3: int


def read_cores(cpus: Iterable[int], sysfs: Path = Path("/sys")) -> Cores:
    """What sysfs says about these logical processors. Hardware threads of a core count once."""
    root = sysfs / "devices/system/cpu"
    numbers = sorted(cpus)
    siblings = {cpu: _siblings(root, cpu) for cpu in numbers}
    caches = [_caches(root, cpu) for cpu in numbers]
    l1d, l2 = (min((c.get(level, 0) for c in caches), default=0) for level in (1, 2))
    l3 = caches[0].get(3, 0) if caches else 0
    return Cores(max(1, len(set(siblings.values()))), l1d, l2, l3)


def cpu_numbers(text: str) -> frozenset[int]:
    """ "0-2,5" -> {0, 1, 2, 5}; empty for anything else."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return frozenset()
    ranges = (part.split("-") for part in text.split(","))
    return frozenset(n for r in ranges for n in range(int(r[0]), int(r[-1]) + 1))


def cpu_list(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 5} -> "0-2,5"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _caches(root: Path, cpu: int) -> dict[int, int]:
    """Cache level -> bytes of one core's share; of the whole cache from level 3."""
    sizes: dict[int, int] = {}
    for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
        level = _read(index / "level")
        if _read(index / "type") not in ("Data", "Unified") or level not in ("1", "2", "3"):
            continue
        size = _bytes(_read(index / "size"))
        if level != "3":
            sharing = cpu_numbers(_read(index / "shared_cpu_list")) or {cpu}
            size //= len({_siblings(root, other) for other in sharing})
        sizes[int(level)] = size
    return sizes


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The hardware threads of a processor's core."""
    return cpu_numbers(_read(root / f"cpu{cpu}" / "topology/thread_siblings_list")) or frozenset(
        {cpu}
    )


def _bytes(text: str) -> int:
    """ "48K" -> 49152; 0 for anything else."""
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
