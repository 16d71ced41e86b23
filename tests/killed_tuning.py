"""A search that is killed at any moment, time and again, and goes on: no trial or record is lost.

``python tests/killed_tuning.py 200`` kills it more often than the tests do. Candidates are not built, and
their times made up; journal, cost model and log are real.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NoReturn

from fake_workers import TARGET, WORKLOAD, FakeWorkers, log_path

import tvm_attention
from tvm_attention import environment
from tvm_attention.database import read_log
from tvm_attention.tuning import TuningProgress, strategy, this_machine
from tvm_attention.tuning.journal import Journal

TRIALS = 10
LONGEST = 0.5  # seconds until a search is killed, counted from its first trial


class Killed:
    """Searches of one workload for 1, 2, 3, ... threads, in a folder. What was said to be done must be
    there when the process that said it is dead."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._log = log_path(folder)
        self._random = Random(seed)
        self.trials: dict[int, int] = {}  # threads -> how many were said
        self.recorded: set[int] = set()

    def run(self) -> None:
        """One process, which goes on where the last one was killed."""
        pipe, end = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(pipe)
            _tune_on(self._log, end)
        os.close(end)
        said = b""
        while b"search" not in said:
            more = os.read(pipe, 1 << 16)
            assert more, "a search failed"
            said += more
        time.sleep(self._random.uniform(0, LONGEST))
        os.kill(process, signal.SIGKILL)
        while more := os.read(pipe, 1 << 16):
            said += more
        os.close(pipe)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        self._note(said.decode())
        self._check()

    def _note(self, said: str) -> None:
        for line in said.splitlines():
            phase, threads, trial = line.split()
            self.trials[int(threads)] = int(trial)
            if phase == "done":
                self.recorded.add(int(threads))

    def _check(self) -> None:
        records = read_log(self._log) if self._log.exists() else ()
        assert self.recorded <= {record.threads for record in records}
        for threads, said in self.trials.items():
            trials, ended = Journal(WORKLOAD, TARGET, threads).read()
            assert said <= len(trials) <= TRIALS
            assert len({trial.candidate for trial in trials}) == len(trials)  # none twice
            assert ended is None or threads in {record.threads for record in records}


def _tune_on(log: Path, pipe: int) -> NoReturn:
    status = 1
    try:
        this_machine.LocalWorkers = FakeWorkers  # type: ignore[misc, assignment]
        for threads in range(1, environment.MAX_THREADS):

            def say(moment: TuningProgress, threads: int = threads) -> None:
                os.write(pipe, f"{moment.phase} {threads} {moment.trial}\n".encode())

            tvm_attention.tune(WORKLOAD, trials=TRIALS, log=log, num_threads=threads, progress=say)
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
