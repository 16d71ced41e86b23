"""Tuning through a tracker on an ARM board that has no compiler: its Python runs under qemu."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from board_servers import (
    Program,
    arm_environment,
    arm_python,
    free_port,
    serve_arguments,
    tracker,
)
from exported_calls import needs_qemu

from tvm_attention.boards import Boards
from tvm_attention.database import TuningLog, match, read_log
from tvm_attention.target import named_target
from tvm_attention.tuning import TuningProgress, tune
from tvm_attention.workload import AttentionWorkload

KEY = "emulated-a72"
WORKLOAD = AttentionWorkload(head_dim=16, query_heads=2, query_length=20, key_length=24)
TRIALS = 6
KILLED_AFTER = 3  # trials

pytestmark = [
    needs_qemu,
    pytest.mark.skipif(
        arm_python() is None,
        reason="needs an ARM Python: .ci/arm-python FOLDER, then ARM_BOARD_PYTHON=FOLDER/python",
    ),
]


class Board:
    """A server under qemu; a new start has another port, as a board may have another address."""

    def __init__(self, folder: Path, address: str) -> None:
        python = arm_python()
        assert python is not None
        self._python, self._address = python, address
        self._environment = arm_environment(python, folder)
        self.start()

    def start(self) -> None:
        arguments = serve_arguments(KEY, free_port(), "--tracker", self._address, "--cores", "0")
        self.program = Program(arguments, [str(self._python)], self._environment)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[str, Board]]:
    with tracker() as address:
        made = Board(tmp_path / "board", address)
        made.program.wait_for("serving")
        yield address, made
        made.program.end()


def test_a_board_that_dies_in_the_middle_is_tuned_on_when_it_is_back(
    board: tuple[str, Board], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    address, server = board
    assert "TVM" in server.program.text()
    log = tmp_path / "cortex_a72" / "tuned.jsonl"
    events: list[str] = []

    def watch(moment: TuningProgress) -> None:
        if moment.trial == KILLED_AFTER and "killed" not in events:
            events.append("killed")
            server.program.kill()
        if moment.note and "missed" not in events:
            assert "killed" in events
            events.append("missed")
            threading.Thread(target=server.start).start()
        if moment.trial > KILLED_AFTER and not moment.note and "back" not in events:
            events.append("back")

    result = tune(
        WORKLOAD, "cortex-a72", trials=TRIALS, log=log, on=Boards(address, KEY, patience=300),
        progress=watch,
    )  # fmt: skip
    assert events == ["killed", "missed", "back"]
    assert not result.stopped
    assert not result.interrupted
    (record,) = read_log(log)
    assert result.records == (record,)
    assert record.target == "cortex_a72"
    assert record.threads == 1
    assert record.provenance["kind"] == "measured"
    assert record.provenance["trials"] == TRIALS
    assert record.provenance["cpus"] == "0"
    assert sum(record.provenance["cores"].values()) == 1
    (outcome,) = result.outcomes
    assert outcome.kept
    # Whoever exports for this core on this machine gets it.
    target = named_target("cortex-a72")
    assert match(WORKLOAD, target, [TuningLog("user tuned", True, (record,))]).record == record
