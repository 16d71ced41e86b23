"""Boards as the place of measurement: a tracker and two servers on this machine, each on its own core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from board_servers import START_SECONDS
from local_boards import KEY, TEXT, WORKLOAD, Servers, candidate, two_servers

from tvm_attention.__main__ import main
from tvm_attention.boards import Boards
from tvm_attention.boards.linking import kernel_library
from tvm_attention.boards.session import BoardSession
from tvm_attention.commands import doctor_boards
from tvm_attention.database import read_log
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.processor import usable_cpus
from tvm_attention.tuning import TuningProgress, tune, workers
from tvm_attention.tuning.journal import journal_directory, journal_lines, parsed_trials
from tvm_attention.tuning.place import Measurement
from tvm_attention.workload import AttentionWorkload

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")

# A kernel's three functions in TVM's calling convention; what FATE says comes with the first call.
BAD_KERNEL = """
#include <stdint.h>
#include <stdlib.h>
struct any { int32_t type, pad; int64_t value; };
#define ENTRY(name) int name(void *self, struct any *given, int32_t count, struct any *result)
ENTRY(__tvm_ffi_bind_launch) { result->type = 0; return 0; }
ENTRY(__tvm_ffi_workspace) { FATE; result->type = 1; result->value = 0; return 0; }
ENTRY(__tvm_ffi_main) { return 0; }
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with two_servers() as found:
        yield found


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))


def bad_kernel(fate: str, folder: Path) -> bytes:
    source, library = folder / "bad.c", folder / "bad.so"
    source.write_text(BAD_KERNEL)
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-DFATE={fate}", "-o", str(library), str(source)], check=True
    )
    return library.read_bytes()


def test_boards_measure_side_by_side_and_a_bad_candidate_costs_itself_only(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Boards(servers.address, KEY)
    hardware = place.hardware("x86-64-v3")
    assert hardware.name == "x86-64-v3"
    assert hardware.cores == 1
    chosen, tools = candidate(hardware), find_toolchain("x86_64")
    other = AttentionWorkload.from_text(TEXT + ",causal=top_left")
    good = kernel_library(WORKLOAD, hardware, chosen, tools)
    kernels = {
        "good": good,
        "crash": bad_kernel("abort()", tmp_path),
        "wrong": kernel_library(other, hardware, chosen, tools),
        "no kernel": b"no library",
        "good again": good,
    }
    notes: list[str] = []
    with place.workers(hardware, notes.append) as pool:
        tasks = [Measurement(kernel, WORKLOAD, chosen, 1) for kernel in kernels.values()]
        found = {}
        for number, outcome in pool.measure(tasks, lambda: float("inf")):
            found[list(kernels)[number]] = outcome
        assert servers.free() == 0  # each of two processes holds a board
        assert 0 < found.pop("good")[0] < 60
        assert 0 < found.pop("good again")[0] < 60
        assert found.pop("crash") == (None, "crashed (exit code -6)")
        assert found.pop("wrong") == (None, "wrong result")
        assert found.pop("no kernel") == (None, "a kernel's library could not be loaded")
        monkeypatch.setattr(workers, "MEASURE_TIMEOUT", 2.0)
        hanging = [Measurement(bad_kernel("for (;;)", tmp_path), WORKLOAD, chosen, 1)]
        assert list(pool.measure(hanging, lambda: float("inf"))) == [(0, (None, "timed out"))]
    assert set(notes) == {""}


def test_a_workload_is_tuned_and_its_record_says_where(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "x86-64-v3" / "tuned.jsonl"
    failures: dict[str, int] = {}
    result = tune(
        WORKLOAD, "x86-64-v3", trials=3, log=log, on=Boards(servers.address, KEY),
        progress=lambda p: failures.update(p.failures),
    )  # fmt: skip
    assert failures == {}
    (record,) = read_log(log)
    assert result.records == (record,)
    assert record.provenance["kind"] == "measured"
    assert record.provenance["cpus"] in [str(cpu) for cpu in usable_cpus()]
    assert sum(record.provenance["cores"].values()) == 1
    assert record.threads == record.hardware["cores"] == 1


def test_doctor_says_what_a_board_can_do(
    servers: Servers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["doctor", "--rpc", servers.address, "--key", KEY]
    assert main([*asked, "--target", "x86-64-v2", "--workload", TEXT, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"]
    names = [check["name"] for check in printed["checks"]]
    for name in (
        "hardware",
        "versions",
        "triple",
        "features",
        "clock governor",
        "round trip",
        "memory",
    ):
        assert len({n for n in names if n.endswith(f":{n.split(':')[-1]}") and name in n}) == 2
    kernels = [c["detail"] for c in printed["checks"] if c["name"].endswith(" kernel")]
    assert len(kernels) == 2
    assert all(detail.startswith("built here, right there, ") for detail in kernels)
    monkeypatch.setattr(doctor_boards.Tracker, "require", lambda *_: 1)
    assert main([*asked, "--target", "cortex-a72"]) == 1
    text = capsys.readouterr().out
    assert "features: target cortex_a72: expected one that the board" in text
    assert "is x86" in text
    assert main([*asked, "--target", "no-such-core"]) == 1


def test_a_server_whose_session_dies_is_started_again(servers: Servers) -> None:
    where = servers.where
    held = [BoardSession(where, 30.0) for _ in servers.programs]  # both, to be sure of the first
    assert len({one.address for one in held}) == 2
    program = servers.programs[0]
    (server,) = psutil.Process(program.process.pid).children()
    (session_process,) = server.children()
    session_process.kill()
    end = time.monotonic() + START_SECONDS
    while program.text().count("serving key") < 2:
        assert time.monotonic() < end, program.text()
        time.sleep(0.1)
    assert "a session failed" in program.text()
    assert not server.is_running()
    del held
    again = [BoardSession(where, START_SECONDS) for _ in servers.programs]
    assert {one.address.port for one in again} == set(servers.ports)


def test_when_no_board_is_left_the_run_ends_and_keeps_what_was_measured(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of this file: it kills the servers."""

    def watch(moment: TuningProgress) -> None:
        if moment.trial == 1:
            for program in servers.programs:
                program.kill()

    log = tmp_path / "tuned.jsonl"
    result = tune(
        WORKLOAD, trials=3, log=log, on=Boards(servers.address, KEY, patience=2.0), progress=watch
    )
    assert result.stopped.startswith("no board answered for 2 s: ")
    assert result.records == ()
    assert not log.exists()
    (journal,) = journal_directory().rglob("*.jsonl")
    trials, ended = parsed_trials(journal_lines(journal))
    assert 1 <= len(trials) <= 3
    assert ended is None
    assert main(["tune", "--workload", TEXT, "--rpc", servers.address, "--key", KEY]) == 2
    assert "which has no board" in capsys.readouterr().err


def test_importing_boards_loads_no_tvm() -> None:
    code = "import sys, tvm_attention.boards; print({'tvm', 'tvm_ffi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
