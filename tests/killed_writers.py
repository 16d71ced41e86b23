"""Writers of the kernel cache, of journals and of tuning logs, killed at any moment.

``python tests/killed_writers.py 200`` goes through more rounds than the tests do.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

from tuning_records import record

from tvm_attention import environment, kernel_cache
from tvm_attention.database import (
    merge_into_log,
    read_log,
    require_mergeable,
    user_log_path,
    user_logs,
)
from tvm_attention.schedules import Candidate
from tvm_attention.target import named_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.workload import AttentionWorkload

WRITERS = 2
LONGEST = 0.08  # seconds until a writer is killed, counted from its first finished write
_CANDIDATE = Candidate.of("row_block", {"query_block": 32})


def _journal() -> Journal:
    return Journal(AttentionWorkload(head_dim=64), named_target("icelake", cores=2), 2)


def _partial_logs() -> list[str]:
    """What writers of the log left behind: neither a log nor its lock."""
    names = os.listdir(user_log_path("icelake").parent)
    return [name for name in names if not name.endswith((".jsonl", ".lock"))]


@dataclass
class Rounds:
    """Rounds in one folder. What a writer has said that it wrote must be there after its death."""

    seed: int
    kernels: dict[str, int] = field(default_factory=dict)  # key -> newest version said
    trials: set[int] = field(default_factory=set)
    records: set[int] = field(default_factory=set)
    found: Counter[str] = field(default_factory=Counter)  # how kills showed

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._next = 1

    def run(self) -> None:
        """Starts writers, kills each, looks at what they left."""
        first, self._next = self._next, self._next + 100 * WRITERS
        writers = [_Writer(first + 100 * n) for n in range(WRITERS)]
        for writer in writers:
            writer.wait_until_it_wrote()
            time.sleep(self._random.uniform(0, LONGEST))
            os.kill(writer.process, signal.SIGKILL)
        for writer in writers:
            for line in writer.said():
                kind, number = line.split()
                self.found["writes"] += 1
                {"trial": self.trials, "record": self.records}.get(kind, set()).add(int(number))
                if kind not in ("trial", "record"):
                    self.kernels[kind] = int(number)
        self._count_traces()
        self._check()

    def _count_traces(self) -> None:
        self.found["logs cut short"] += len(_partial_logs())
        self.found["kernels cut short"] = len(list(environment.cache_directory().glob("write-*")))
        self.found["trials cut short"] += not _journal().path.read_bytes().endswith(b"\n")

    def _check(self) -> None:
        trials, ended = _journal().read()
        assert ended is None
        assert self.trials <= {round(1e6 * (trial.seconds or 0)) for trial in trials}
        assert [log.refusal for log in user_logs()] == [None]
        require_mergeable(user_log_path("icelake"))
        assert _partial_logs() == []
        assert self.records <= {r.threads for r in read_log(user_log_path("icelake"))}
        for key, version in self.kernels.items():
            source = kernel_cache.read(key)
            assert source is not None, key
            assert source == _source(key, int(source.partition(" ")[0]))
            assert int(source.partition(" ")[0]) >= version


class _Writer:
    """A process that writes until it is killed, and says what it has written."""

    def __init__(self, first: int) -> None:
        self._pipe, end = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._pipe)
            _write_on(first, end)
        os.close(end)
        self._said = b""

    def wait_until_it_wrote(self) -> None:
        self._said = os.read(self._pipe, 1 << 16)
        assert self._said, "a writer failed"

    def said(self) -> list[str]:
        """What it wrote until its death."""
        while more := os.read(self._pipe, 1 << 16):
            self._said += more
        os.close(self._pipe)
        _, status = os.waitpid(self.process, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        return self._said.decode().splitlines()


def _write_on(first: int, pipe: int) -> NoReturn:
    status = 1
    try:
        for number in range(first, first + 100):
            merge_into_log(user_log_path("icelake"), [record(threads=number % 4096 + 1)])
            os.write(pipe, f"record {number % 4096 + 1}\n".encode())
            for _ in range(4):
                _journal().add(Trial(_CANDIDATE, number * 1e-6))
                os.write(pipe, f"trial {number}\n".encode())
            key = f"k{first % 100}-{number % 3}-{os.getpid()}"
            kernel_cache.write(key, _source(key, number))
            os.write(pipe, f"{key} {number}\n".encode())
        signal.pause()
    finally:
        os._exit(status)


def _source(key: str, version: int) -> str:
    return f"{version} {key} " + f"%{version} = fadd float {key}\n" * (2000 + version % 4000)


def run_rounds(folder: Path, rounds: int, seed: int) -> Counter[str]:
    """Rounds in folders of twenty each; gives how many writes were finished and how many cut short."""
    found: Counter[str] = Counter()
    for number in range(0, rounds, 20):
        place = folder / str(number)
        os.environ[environment.CACHE_DIR] = str(place / "cache")
        os.environ[environment.LOG_DIR] = str(place / "logs")
        series = Rounds(seed + number)
        for _ in range(min(20, rounds - number)):
            series.run()
        found += series.found
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for what, count in sorted(run_rounds(Path(name), int(sys.argv[1]), 1).items()):
            print(what, count)
