"""Tuning a GPU of another machine, rehearsed: tracker and server are programs on this one; the server finds
the stand-in for NVIDIA's driver (cuda_driver.cc) where a board would have the real one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import gpu_stand_in
import pytest
from board_servers import Program, free_port, serve_arguments, tracker
from cuda_on_cpu import built

from tvm_attention.__main__ import main
from tvm_attention.boards import Boards, boards
from tvm_attention.boards.address import Address
from tvm_attention.boards.boards import described
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.gpu_description import GpuDescription
from tvm_attention.boards.session import Where
from tvm_attention.boards.tracker import Tracker
from tvm_attention.commands import doctor as doctor_command
from tvm_attention.commands import tune as tune_command
from tvm_attention.cuda import compilers
from tvm_attention.database import read_log
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.errors import InvalidValueError, KernelBuildError, TuningError
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import gpu_trials
from tvm_attention.tuning.place import Measurement
from tvm_attention.workload import AttentionWorkload

KEY = "orin"
TEXT = "head_dim=16,query_heads=1,query_length=20,key_length=40"
WORKLOAD = AttentionWorkload.from_text(TEXT)
SMALL = Candidate.of(
    "fused",
    {"row_threads": 4, "column_threads": 8, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
     "vector": 4, "overlap": 0},
)  # fmt: skip


@dataclass
class Board:
    """The tracker's address, and the running server."""

    address: str
    server: Program


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A machine with a GPU of compute capability 8.7, known to a tracker."""
    folder = tmp_path_factory.mktemp("gpu")
    made = built(Path(__file__).with_name("cuda_driver.cc").read_text(), "driver")
    shutil.copy(made, folder / "libcuda.so.1")
    surroundings = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(gpu_stand_in.FOLDER, str(folder))
        address = stack.enter_context(tracker())
        asked = serve_arguments(KEY, free_port(), "--tracker", address, "--gpu", "0")
        server = Program(asked, environment=surroundings)
        stack.callback(server.end)
        server.wait_for("serving")
        where = Tracker(Address.of(address))
        while where.boards()[KEY] < 1:
            time.sleep(0.1)
        yield Board(address, server)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))


def compiled_for_the_stand_in(address: str, key: str, **options: object) -> Boards:
    return Boards(address, key, gpu_compiler=gpu_stand_in.compiler, **options)  # type: ignore[arg-type]


def test_a_server_says_which_gpu_it_lends(board: Board) -> None:
    said = "GPU stand-in 0: compute capability 8.7, driver for CUDA 13.0, 1 GiB free"
    assert said in board.server.text()


def test_a_gpu_is_tuned_over_a_tracker_to_a_stored_record(
    board: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tune_command, "Boards", compiled_for_the_stand_in)
    log = tmp_path / "cuda-sm_87" / "tuned.jsonl"
    asked = [
        "tune",
        "--rpc",
        board.address,
        "--key",
        KEY,
        "--target",
        "cuda-sm_87",
        "--workload",
        TEXT,
    ]
    assert main([*asked, "--trials", "3", "--log", str(log), "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert (outcome["kept"], outcome["trials"]) == (True, 3)
    (record,) = read_log(log)
    assert (record.target, record.expression) == ("cuda-sm_87", CUDA_EXPRESSION_DIGEST)
    assert record.hardware["model"] == "stand-in 0"
    assert record.provenance == {"kind": "measured", "on": "stand-in 0", "trials": 3}
    assert record.threads == 1
    assert record.seconds["tuned"] > 0


def test_doctor_reports_the_gpu_and_runs_a_kernel_on_it(
    board: Board, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_command, "Boards", compiled_for_the_stand_in)
    asked = ["doctor", "--rpc", board.address, "--key", KEY, "--workload", TEXT]
    assert main([*asked, "--target", "cuda", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["checks"]
    found = {c["name"].partition(" ")[2]: c["detail"] for c in printed}
    assert found["GPU"].startswith("stand-in 0: compute capability 8.7, driver for CUDA 13.0")
    assert found["GPU target"] == "cuda-sm_87, compiled here"
    assert found["GPU memory"] == "1 GiB free"
    assert found["kernel"].startswith("built here, right there, ")
    assert not {"triple", "features"} & found.keys()
    assert main([*asked, "--target", "cuda-sm_90"]) == 1
    assert "expected cuda-sm_87, which the GPU of the board" in capsys.readouterr().out


def test_a_bad_candidate_costs_itself_only(board: Board) -> None:
    place = compiled_for_the_stand_in(board.address, KEY)
    hardware = place.hardware("cuda")
    assert (hardware.name, place.threads(hardware)) == ("cuda-sm_87", 1)
    other = SMALL.replace(rows=1, row_threads=8)
    with place.workers(hardware, lambda _: None) as pool:
        (good, _), (unlike, _) = pool.build([(WORKLOAD, hardware, c) for c in (SMALL, other)])
        values, wrong = json.loads(good), json.loads(unlike)
        kernels = {
            "good": good,
            "wrong": json.dumps(wrong | {"code": values["code"]}).encode(),
            "no machine code": json.dumps(values | {"cubin": ""}).encode(),
            "good again": good,
        }
        tasks = [Measurement(kernel, WORKLOAD, SMALL, 1) for kernel in kernels.values()]
        found = dict(pool.measure(tasks, lambda: float("inf")))
        assert [found[n][1] for n in range(4)] == [
            "", "wrong result", f"crashed (exit code {gpu_trials.FAULT})", "",
        ]  # fmt: skip
        assert all(found[n][0] > 0 for n in (0, 3))
        (first, second), error = pool.confirm([good, good], WORKLOAD, [SMALL, SMALL], 1)
        assert (error, first.ratio) == ("", 1.0)
        assert second.ratio > 0


def asked_of(
    found: BoardDescription, monkeypatch: pytest.MonkeyPatch, board: Board
) -> HardwareTarget:
    monkeypatch.setattr(boards, "described", lambda _: ("board:1", found, 0.001))
    return Boards(board.address, KEY).hardware("cuda-sm_87")


def test_what_is_wrong_with_a_gpu_is_said_before_a_trial(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found, _ = described(Where(Address.of(board.address), KEY, True))
    assert found.gpu is not None
    known = {"model": "any", "cuda": "13.0", "memory": 1 << 10}
    monkeypatch.setattr(compilers.compiler(), "major", 13)
    cases: dict[str, tuple[GpuDescription | None, str, type[Exception]]] = {
        "there is no driver": (None, "", TuningError),
        "expected one with a GPU, got none: no device": (None, "no device", TuningError),
        "cuda-sm_52": (GpuDescription(arch="sm_52", **known), "", InvalidValueError),  # type: ignore[arg-type]
        "expected a compiler of CUDA 12": (replace(found.gpu, cuda="12.4"), "", KernelBuildError),
    }
    for words, (gpu, problem, kind) in cases.items():
        pattern = words if words != "there is no driver" else r"libcuda\.so\.1"
        with pytest.raises(kind, match=pattern):
            asked_of(replace(found, gpu=gpu, gpu_problem=problem), monkeypatch, board)
    place = Boards(board.address, KEY)
    small = replace(found, gpu=replace(found.gpu, memory=1 << 10))
    monkeypatch.setattr(boards, "described", lambda _: ("board:1", small, 0.001))
    place.hardware("cuda")
    with pytest.raises(InvalidValueError, match="memory that are free"):
        place.require_memory(WORKLOAD)
