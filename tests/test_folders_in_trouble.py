"""Cache and log folders that are read-only, full, oddly named or deleted while they are in use."""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tuning_records import record, several

from tvm_attention import environment, kernel_cache
from tvm_attention.database import merge_into_log, read_log, user_log_path, user_logs
from tvm_attention.schedules import Candidate
from tvm_attention.target import named_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.workload import AttentionWorkload

LOG = "icelake"
TRIAL = Trial(Candidate.of("row_block", {"query_block": 32}), 1e-3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "Ordner mit Leerzeichen, ä und 中"
    monkeypatch.setenv(environment.CACHE_DIR, str(folder / "cache"))
    monkeypatch.setenv(environment.LOG_DIR, str(folder / "logs"))
    return folder


def journal() -> Journal:
    return Journal(AttentionWorkload(head_dim=64), named_target("icelake", cores=2), 2)


def write_all() -> None:
    kernel_cache.write("a", "source")
    journal().add(TRIAL)
    merge_into_log(user_log_path(LOG), [record()])


def assert_all_there() -> None:
    assert kernel_cache.read("a") == "source"
    assert journal().read() == ([TRIAL], None)
    assert [log.records for log in user_logs()] == [(record(),)]


def files(folder: Path) -> set[str]:
    """All below a folder but locks."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.suffix != ".lock"}


def test_odd_names(folder: Path) -> None:
    write_all()
    assert_all_there()


def test_folders_deleted_while_in_use(folder: Path) -> None:
    one = journal()
    for _ in range(2):
        write_all()
        assert_all_there()
        shutil.rmtree(folder)
        assert kernel_cache.read("a") is None
        assert kernel_cache.use().kernels == 0
        assert one.read() == ([], None)
        assert user_logs() == ()
    one.add(TRIAL)
    assert one.read() == ([TRIAL], None)


TRY = """
from test_folders_in_trouble import *
from tvm_attention.errors import TuningError, TuningLogError
assert_all_there()
kernel_cache.write("a", "x" * 3_000_000)
kernel_cache.write("b", "x" * 3_000_000)
assert kernel_cache.read("b") is None
try:
    while True:
        journal().add(TRIAL)
except TuningError as error:
    print(error)
try:
    merge_into_log(user_log_path(LOG), [record(threads=1 + n) for n in range(500)])
except TuningLogError as error:
    print(error)
assert kernel_cache.read("a") == "source"
assert [log.records for log in user_logs()] == [(record(),)]
assert set(journal().read()[0]) == {TRIAL}
"""


def run_in_child(prepare: Callable[[], None]) -> list[str]:
    """TRY's lines in a process in which ``prepare`` was called first."""
    done = subprocess.run(
        [sys.executable, "-c", TRY],
        preexec_fn=prepare,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def be_bound_by_permissions() -> None:
    """So that they hold for root as well, who is about to execute a program."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_folders_that_may_only_be_read(folder: Path) -> None:
    write_all()
    before = files(folder)
    places = [folder, *(p for p in folder.rglob("*"))]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    probe = ["touch", str(folder / "new")]
    try:
        if (
            subprocess.run(
                probe, preexec_fn=be_bound_by_permissions, stderr=subprocess.DEVNULL
            ).returncode
            == 0
        ):
            pytest.skip("root may write everywhere and not give that up")
        said = run_in_child(be_bound_by_permissions)
    finally:
        for place in places:
            place.chmod(0o755)
    assert len(said) == 2
    assert "trials cannot be kept there: Permission denied" in said[0]
    assert "cannot be written" in said[1]
    assert "Permission denied" in said[1]
    assert files(folder) == before
    write_all()
    assert kernel_cache.read("a") == "source"


def leave_little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_no_room(folder: Path) -> None:
    """A file that may not grow stands for a disk that is full: a write ends in the middle."""
    write_all()
    before = files(folder)
    said = run_in_child(leave_little_room)
    assert len(said) == 2
    assert "trials cannot be kept there: File too large; make" in said[0]
    assert "cannot be written" in said[1]
    assert files(folder) == before
    assert not journal().path.read_bytes().endswith(b"\n")
    count = len(journal().read()[0])
    journal().add(TRIAL)  # after a line that was cut short
    assert len(journal().read()[0]) == count + 1
    merge_into_log(user_log_path(LOG), several())
    assert len(read_log(user_log_path(LOG))) == 1 + len(several())


def test_writers_killed_at_any_moment(tmp_path: Path) -> None:
    program = [sys.executable, "killed_writers.py", "6"]
    done = subprocess.run(program, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("writes ")[1].split()[0]) > 12


def test_searches_killed_at_any_moment(tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="the extra dev brings it")
    program = [sys.executable, "killed_tuning.py", "5"]
    done = subprocess.run(program, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("trials ")[1].split()[0]) > 2


def test_a_killed_writer_of_a_log_leaves_nothing_that_stays(folder: Path) -> None:
    path = user_log_path(LOG)
    merge_into_log(path, [record()])
    left = path.with_name(f".{path.name}.{'0123456789abcdef' * 2}")
    other = path.with_name(f".{path.name}.backup")
    left.write_bytes(b"half a rec")
    other.write_bytes(b"of the user")
    assert [log.refusal for log in user_logs()] == [None]
    merge_into_log(path, several())
    assert not left.exists()
    assert other.exists()
