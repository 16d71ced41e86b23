"""``tvm-attention info``: the hardware, versions, thread pool, kernel cache and logs in use."""

from __future__ import annotations

import argparse
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from tvm_attention import environment, kernel_cache
from tvm_attention.commands.arguments import Commands, add_command, add_json
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, counted, print_json, size_text
from tvm_attention.commands.packages import installed
from tvm_attention.database import TuningLog, shipped_logs, user_logs
from tvm_attention.errors import AttentionError
from tvm_attention.kernel_cache import CacheUse
from tvm_attention.target import HardwareTarget, detect_target

PACKAGES = ("tvm-attention", "apache-tvm", "apache-tvm-ffi", "numpy", "xgboost", "torch")


@dataclass(frozen=True, slots=True)
class Logs:
    """Records of some logs by target, and why logs were refused."""

    records: dict[str, int]
    refused: tuple[str, ...]

    @classmethod
    def of(cls, logs: Iterable[TuningLog]) -> Logs:
        logs = list(logs)
        counts = Counter(record.target for log in logs for record in log.records)
        refused = tuple(log.refusal for log in logs if log.refusal is not None)
        return cls(dict(sorted(counts.items())), refused)


@dataclass(frozen=True, slots=True)
class Installation:
    """What ``info`` shows. ``threads`` is None where ``pool`` says why kernels cannot run."""

    target: HardwareTarget
    versions: dict[str, str | None]
    pool: str
    threads: int | None
    cache: CacheUse
    user_logs: Logs
    shipped_logs: Logs

    def to_dict(self) -> dict[str, object]:
        """Plain data; sizes in bytes, a version that is None is not installed."""
        return {
            "target": {**asdict(self.target), "features": sorted(self.target.features)},
            "versions": self.versions,
            "threads": {"pool": self.pool, "count": self.threads},
            "kernel_cache": {**asdict(self.cache), "directory": str(self.cache.directory)},
            "logs": {
                "directory": str(environment.log_directory()),
                "user": asdict(self.user_logs),
                "shipped": asdict(self.shipped_logs),
            },
        }


def add(commands: Commands) -> None:
    """The parser of ``info``."""
    add_json(add_command(commands, "info", "show the hardware, versions, caches and logs", run))


def run(options: argparse.Namespace) -> int:
    """Shows the installation."""
    found = look()
    if options.json:
        print_json(found.to_dict())
    else:
        console().print(_table(found))
    return OK


def look() -> Installation:
    """The installation as it is. Raises an AttentionError for a bad environment variable."""
    environment.num_threads()  # so that a bad number is the error, and not what it keeps from running
    pool, threads = _pool()
    return Installation(
        target=detect_target(),
        versions={"Python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        pool=pool,
        threads=threads,
        cache=kernel_cache.use(),
        user_logs=Logs.of(user_logs()),
        shipped_logs=Logs.of(shipped_logs()),
    )


def _version(package: str) -> str | None:
    """That of a package; xgboost may be there under the name of its smaller edition."""
    return installed(package) or (installed("xgboost-cpu") if package == "xgboost" else None)


def _pool() -> tuple[str, int | None]:
    from tvm_attention.threads import launcher

    try:
        found = launcher()
        return found.name, found.max_threads()
    except (AttentionError, ImportError, OSError) as error:
        return f"kernels cannot run: {error}; see tvm-attention doctor", None


def _table(found: Installation) -> Table:
    cache = found.cache
    rows = {
        "hardware": _hardware(found.target),
        "versions": ", ".join(f"{p} {v or 'not installed'}" for p, v in found.versions.items()),
        "threads": _threads(found),
        "kernel cache": (
            f"{cache.directory}: {counted(cache.kernels, 'kernel')}, {size_text(cache.size)} "
            f"of at most {size_text(cache.limit)}"
        ),
        "your logs": f"{environment.log_directory()}: {_counts(found.user_logs)}",
        "shipped logs": _counts(found.shipped_logs),
    }
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(Text(name, style="bold"), Text(text, overflow="fold"))
    for reason in (*found.user_logs.refused, *found.shipped_logs.refused):
        table.add_row(Text("refused", style="red"), Text(reason, overflow="fold"))
    return table


def _hardware(target: HardwareTarget) -> str:
    sizes = (("L1d", target.l1d), ("L2", target.l2), ("L3", target.l3))
    caches = ", ".join(f"{name} {size_text(size)}" for name, size in sizes if size)
    return (
        f"{target.model or target.micro_architecture}: target {target.name} ({target.isa}), "
        f"{target.cores} cores, {caches or 'caches unknown'}"
    )


def _threads(found: Installation) -> str:
    if found.threads is None:
        return found.pool
    torch = "; in a process with torch, torch's pool" if found.versions["torch"] else ""
    return f"{found.threads} on {found.pool}{torch}"


def _counts(logs: Logs) -> str:
    return ", ".join(f"{t} {counted(n, 'record')}" for t, n in logs.records.items()) or "no records"
