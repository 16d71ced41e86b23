"""Boards that are refused: what is wrong is said before a trial is spent on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_servers import free_port
from local_boards import KEY, TEXT, WORKLOAD, Servers, candidate, two_servers

from tvm_attention.__main__ import main
from tvm_attention.boards import Boards, boards, session
from tvm_attention.boards.boards import described
from tvm_attention.boards.session import BoardSession
from tvm_attention.errors import InvalidValueError, TuningError
from tvm_attention.tuning import tune
from tvm_attention.tuning.journal import journal_directory
from tvm_attention.tuning.place import Measurement, PlaceLostError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with two_servers() as found:
        yield found


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))


def test_what_is_wrong_is_said_before_a_trial(
    servers: Servers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        assert main(["tune", "--workload", TEXT, "--trials", "2", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.out == ""
        return captured.err

    on = ("--rpc", servers.address)
    assert f"which has boards with key {KEY}" in refused(*on, "--key", "other")
    assert "is x86" in refused(*on, "--key", KEY, "--target", "cortex-a72")
    assert "expected both --rpc HOST:PORT and --key KEY" in refused(*on)
    assert "HOST:PORT" in refused("--rpc", "nowhere", "--key", KEY)
    assert "address: expected a port" in refused("--rpc", "nowhere:0", "--key", KEY)
    assert "start `tvm-attention tracker`" in refused(
        "--rpc", f"127.0.0.1:{free_port()}", "--key", KEY
    )
    # A board's own port: it belongs to the tracker's clients.
    assert "refused it" in refused("--rpc", f"127.0.0.1:{servers.ports[0]}", "--key", "other")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "install one" in refused(*on, "--key", KEY)
    assert not journal_directory().exists()


def test_a_server_without_our_functions_is_told_apart(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DESCRIBE", "tvm_attention.board.nothing")
    with pytest.raises(TuningError, match="start `tvm-attention serve` there"):
        BoardSession(servers.where, 5.0)


def test_a_board_too_small_or_of_another_version_is_refused(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, found, seconds = described(servers.where)
    assert 0 < seconds < 60
    answers: dict[str, Any] = {"memory": 1 << 10}
    monkeypatch.setattr(
        boards, "described", lambda _: (address, replace(found, **answers), seconds)
    )
    asked: dict[str, Any] = {"trials": 2, "on": Boards(servers.address, KEY)}
    with pytest.raises(InvalidValueError, match=r"memory that are free"):
        tune(WORKLOAD, **asked)
    for name, what in (("tvm", "apache-tvm"), ("library", "tvm-attention"), ("expression", "expr")):
        answers = {name: "0.1.2"}
        with pytest.raises(
            TuningError, match=rf"expected .*{what}.* got 0\.1\.2; install the same"
        ):
            tune(WORKLOAD, **asked)
    lacking = replace(found.hardware, features=found.hardware.features - {"avx2"})
    answers = {"hardware": lacking}
    with pytest.raises(InvalidValueError, match="lacks avx2"):
        tune(WORKLOAD, "x86-64-v3", **asked)
    assert not journal_directory().exists()


def test_a_board_unlike_the_first_is_passed_over(servers: Servers) -> None:
    place = Boards(servers.address, KEY, patience=0.5)
    hardware = place.hardware(None)
    assert place._found is not None
    where, part = place._found
    other = replace(part, hardware=replace(part.hardware, l2=part.hardware.l2 + 1))
    place._found = (where, other)
    task = Measurement(b"never sent", WORKLOAD, candidate(hardware), 1)
    said = "give boards of another kind a key of their own"
    with (
        place.workers(hardware, lambda _: None) as pool,
        pytest.raises(PlaceLostError, match=said),
    ):
        list(pool.measure([task], lambda: float("inf")))
