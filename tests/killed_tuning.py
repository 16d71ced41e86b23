"""A search that is killed at any moment, time and again, and goes on: no trial or record is lost.

``python tests/killed_tuning.py 200`` kills it more often than the tests do, in some four minutes of processor
time. Candidates are not built, and their times made up; journal, cost model and log are real.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NoReturn

import fake_workers
from fake_workers import WORKLOAD, FakeWorkers

import tvm_attention
from tvm_attention import environment
from tvm_attention.database import read_log, require_mergeable
from tvm_attention.target import detect_target
from tvm_attention.tuning import TuningProgress, strategy, this_machine
from tvm_attention.tuning.journal import Journal

TRIALS = 10
# A search is killed after so many of the moments that it reports, and seconds. It has some 16 of them,
# and may lie still for half a second in between.
MOMENTS, SHORT, LONG = 18, 0.02, 0.5
# A narrow space, few candidates to be ranked and one core to do that: a search takes a second.
_NARROW = "x86-64-v2" if platform.machine() == "x86_64" else None
TARGET = replace(detect_target(_NARROW), cores=1)
CHILDREN, STRANGERS = 4, TRIALS


class Killed:
    """Searches of one workload for 1, 2, 3, ... threads, in a folder. What was said to be done must be
    there when the process that said it is dead."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._log = folder / TARGET.name / "tuned.jsonl"
        self._random = Random(seed)
        self.trials: dict[int, int] = {}  # threads -> how many were said
        self.recorded: set[int] = set()
        self.killed_after: Counter[str] = Counter()  # the phase last reported

    def run(self) -> None:
        """One process, which goes on where the last one was killed."""
        pipe, end = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(pipe)
            _tune_on(self._log, max(self.recorded, default=1), end)
        os.close(end)
        moments, longest = self._random.randrange(MOMENTS), self._random.choice((SHORT, LONG))
        said = b""
        while said.count(b"\n") < moments:
            more = os.read(pipe, 1 << 16)
            assert more, "a search failed"
            said += more
        time.sleep(self._random.uniform(0, longest))
        os.kill(process, signal.SIGKILL)
        while more := os.read(pipe, 1 << 16):
            said += more
        os.close(pipe)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        self._note(said.decode())
        self._check()

    def _note(self, said: str) -> None:
        phase = "nothing"
        for line in said.splitlines():
            phase, threads, trial = line.split()
            self.trials[int(threads)] = int(trial)
            if phase == "done":
                self.recorded.add(int(threads))
        self.killed_after[phase] += 1

    def _check(self) -> None:
        records = read_log(self._log) if self._log.exists() else ()
        require_mergeable(self._log)
        assert self.recorded <= {record.threads for record in records}
        for threads, said in self.trials.items():
            trials, ended = Journal(WORKLOAD, TARGET, threads).read()
            assert said <= len(trials) <= TRIALS
            assert len({trial.candidate for trial in trials}) == len(trials)  # none twice
            assert ended is None or threads in {record.threads for record in records}


def _tune_on(log: Path, first: int, pipe: int) -> NoReturn:
    status = 1
    try:
        this_machine.LocalWorkers = FakeWorkers  # type: ignore[misc, assignment]
        fake_workers.TARGET = TARGET
        strategy.CHILDREN, strategy.STRANGERS = CHILDREN, STRANGERS
        for threads in range(first, environment.MAX_THREADS):

            def say(moment: TuningProgress, threads: int = threads) -> None:
                os.write(pipe, f"{moment.phase} {threads} {moment.trial}\n".encode())

            tvm_attention.tune(
                WORKLOAD, TARGET, trials=TRIALS, log=log, num_threads=threads, progress=say
            )
    finally:
        os._exit(status)


def _import_once() -> None:
    """What each of the processes that are forked would take seconds to import."""
    import xgboost  # noqa: F401

    strategy.import_tensor_intrinsics()


def run_rounds(folder: Path, rounds: int, seed: int) -> Killed:
    os.environ[environment.CACHE_DIR] = str(folder / "cache")
    os.environ[environment.LOG_DIR] = str(folder / "logs")
    _import_once()
    killed = Killed(folder, seed)
    for _ in range(rounds):
        killed.run()
    return killed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = run_rounds(Path(name), int(sys.argv[1]), 1)
        print("trials", sum(found.trials.values()))
        print("records", len(found.recorded))
        print("killed after", dict(found.killed_after))
