"""Logs, journals and manifests that are damaged or made to harm: errors of ours, and nothing else.

``python tests/test_hostile_files.py 20000`` goes through more of them than the tests do.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import tuning_records
from harmless import nothing_but_reading
from mutated_text import mutated

from tvm_attention import environment, runtime
from tvm_attention.commands.logs import _cells
from tvm_attention.commands.logs_verify import recorded_target
from tvm_attention.database import TuningLog, format_log, shipped_logs, user_logs
from tvm_attention.database.shapes import TARGET_NAME
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import AttentionError
from tvm_attention.export.archive import Archive, ArchiveError
from tvm_attention.export.archive.interface import ABI
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, cut_down, detect_target, named_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.workload import AttentionWorkload

ROUNDS = 300  # of each kind, in the tests
WORKLOADS = [
    AttentionWorkload(head_dim=64, query_length=384, key_length=384),
    AttentionWorkload(head_dim=64, causal=True),
    AttentionWorkload(head_dim=128, query_length=1, key_length=4096),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    return tmp_path


def try_logs(folder: Path, seed: int, rounds: int) -> int:
    """Reads mutated logs as the loader does; gives how many were accepted."""
    rng, accepted = Random(seed), 0
    records = [r for log in shipped_logs() for r in log.records]
    hosts = [detect_target(), named_target("x86-64-v3"), named_target("cortex-a72")]
    for _ in range(rounds):
        record = rng.choice(records)
        data = mutated(format_log([record]), rng)
        file = folder / "logs" / _target(data, record.target) / "mutated.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        (log,) = user_logs()
        if log.refusal is None:
            accepted += 1
            for host in hosts:
                use_log(log, host)
        else:
            assert log.refusal.isprintable()
            assert len(log.refusal) < 1000, log.refusal[:300]
        file.unlink()
    return accepted


def _target(data: bytes, otherwise: str) -> str:
    """The target that a mutated record names, if that can be a folder: such records are accepted."""
    try:
        target = json.loads(data.split(b"\n")[1])["target"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return otherwise
    fits = isinstance(target, str) and TARGET_NAME.fullmatch(target)
    return target if fits else otherwise


def use_log(log: TuningLog, host: HardwareTarget) -> None:
    """What becomes of an accepted log: the choice of a kernel, listing, merging, verification."""
    assert user_logs() == (log,)
    runtime._logs = [log]
    try:
        for workload in WORKLOADS:
            assert "\x1b" not in str(runtime.explain(workload, host))
    finally:
        runtime._logs = None
    for record in log.records:
        assert all(cell.isprintable() for cell in _cells(record, log))
        with suppress(AttentionError):
            recorded_target(record)
    assert format_log(log.records)


def try_journals(_: Path, seed: int, rounds: int) -> int:
    """Reads mutated journals as tuning does; gives how many trials were taken from them."""
    rng, taken = Random(seed), 0
    target = cut_down(detect_target(), detect_target().isa)
    schedules = schedules_for(target)
    machine = schedules.machine_parameters(target)
    space = schedules.design_space(WORKLOADS[0], machine)
    candidates = [c for c in (space.sample(rng) for _ in range(500)) if c is not None]
    journal = Journal(WORKLOADS[0], target, 2)
    for _ in range(rounds):
        journal.start_again()
        for candidate in rng.sample(candidates, 4):
            seconds = rng.choice((1e-3, None))
            journal.add(Trial(candidate, seconds, "" if seconds else "crashed (exit code -11)"))
        journal.end("all trials used")
        journal.path.write_bytes(mutated(journal.path.read_bytes(), rng))
        trials, ended = journal.read()
        assert ended is None or ended.isprintable()
        for trial in trials:
            assert isinstance(trial.candidate, Candidate)
            assert trial.error.isprintable()
            assert trial.seconds is None or 0 < trial.seconds < float("inf")
            space.refusal(trial.candidate)
        taken += len(trials)
    return taken


MANIFEST = {
    "abi": ABI, "architecture": "x86_64", "library": "tvm_attention", "schema": 1, "tvm": "0.27",
    "version": "0.1.0", "kernels": [{"name": "k0", "features": ["avx2"], "workload": {"head_dim": 64}}],
}  # fmt: skip


def try_manifests(folder: Path, seed: int, rounds: int) -> int:
    """Opens archives with mutated manifests whose library is no library; gives how many manifests were
    found good."""
    rng, good = Random(seed), 0
    library = b"no library"
    sha256 = hashlib.sha256(library).hexdigest()
    files = {"shared": {"name": "lib.so", "bytes": len(library), "sha256": sha256}}
    text = json.dumps({**MANIFEST, "files": files}).encode()
    (folder / "lib.so").write_bytes(library)
    for _ in range(rounds):
        (folder / "manifest.json").write_bytes(mutated(text, rng))
        with pytest.raises(ArchiveError) as refused:
            Archive.open(folder)
        good += "the system cannot load it" in str(refused.value)
        assert len(str(refused.value)) < 2000
    return good


def test_a_target_that_is_not_known(folder: Path) -> None:
    """Where the default schedule uses a matrix unit, that of the record's target is asked for."""
    host = named_target("sapphirerapids", cores=2)
    record = tuning_records.record(
        replace(host, name="no_such_target"), workload=WORKLOADS[0], expression=EXPRESSION_DIGEST
    )
    log = TuningLog("user no_such_target/a.jsonl", True, (record,))
    runtime._logs = [log]
    try:
        found = runtime.explain(WORKLOADS[0], host)
    finally:
        runtime._logs = None
    assert found.source.candidate.variant == "matrix"
    assert any("found without a matrix unit" in reason for reason in found.source.reasons)


def watched(attempts: Callable[..., int], folder: Path, seed: int, rounds: int) -> int:
    """What the rounds give; nothing is run, written elsewhere or blown up meanwhile."""
    attempts(folder, seed, 1)  # which imports modules
    with nothing_but_reading(folder):
        return attempts(folder, seed, rounds)


def test_logs(folder: Path) -> None:
    assert 0 < watched(try_logs, folder, 1, ROUNDS) < ROUNDS


def test_journals(folder: Path) -> None:
    assert ROUNDS < watched(try_journals, folder, 2, ROUNDS) < 4 * ROUNDS


def test_manifests(folder: Path) -> None:
    assert 0 < watched(try_manifests, folder, 3, ROUNDS) < ROUNDS


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: eval("1 + 1"),
        lambda folder: pickle.loads(pickle.dumps(Path)),
        lambda folder: (folder.parent / "outside").touch(),
        lambda folder: (folder / ".." / "outside").mkdir(),
        lambda folder: os.system("true"),
        lambda folder: len(b"x" * (200 << 20)),
    ],
)
def test_what_must_not_happen_would_be_seen(harm: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(AssertionError), nothing_but_reading(tmp_path / "folder"):
        harm(tmp_path / "folder")


def main(rounds: int) -> None:
    """Goes through so many mutations of each kind."""
    with tempfile.TemporaryDirectory() as name:
        os.environ[environment.CACHE_DIR] = f"{name}/cache"
        os.environ[environment.LOG_DIR] = f"{name}/logs"
        print("logs accepted:", watched(try_logs, Path(name), 1, rounds))
        print("trials taken:", watched(try_journals, Path(name), 2, rounds))
        print("manifests found good:", watched(try_manifests, Path(name), 3, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
