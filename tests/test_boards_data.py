"""What goes between tuning and boards as text, and what is read of a board's cores."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_records import record

from tvm_attention.boards import tracker
from tvm_attention.boards.address import Address, checked_key
from tvm_attention.boards.description import BoardDescription, describe_this_board, governors
from tvm_attention.boards.gpu_description import GpuDescription
from tvm_attention.boards.requests import CONFIRM, MEASURE, Request, answer_of, answer_text
from tvm_attention.boards.tracker import Tracker, greets_as_tracker
from tvm_attention.caches import cpu_list, cpu_numbers
from tvm_attention.database import format_log, parse_log
from tvm_attention.errors import AttentionError, InvalidValueError, TuningError
from tvm_attention.processor import core_kinds, read_processor
from tvm_attention.schedules import Candidate
from tvm_attention.tuning.trials import Finalist
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=64, kv_heads=2, causal="bottom_right", mask="bool")
CANDIDATE = Candidate.of("running", {"key_block": 64, "query_block": 12})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("pi:9190", "pi", 9190),
        (" 10.0.0.7:1 ", "10.0.0.7", 1),
        ("[fe80::1]:65535", "fe80::1", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.of(text)
    assert address == Address(host, port)
    assert Address.of(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "pi", ":1", "pi:", "pi:0", "pi:65536", "pi:-1", "fe80::1:9190", "a b:1", "pi:1e3", "[]:1"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidValueError, match="expected"):
        Address.of(text)


@pytest.mark.parametrize("key", ["", "a b", "a:b", "x" * 65, "ä", "a\n"])
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(InvalidValueError, match="key: expected"):
        checked_key(key)
    assert checked_key("pi-4_b.1+") == "pi-4_b.1+"


GPU = GpuDescription(model="Orin", arch="sm_87", cuda="12.6", memory=1 << 32)


def test_a_description_comes_back_as_it_was() -> None:
    found = describe_this_board()
    for described in (found, replace(found, gpu=GPU), replace(found, gpu_problem="no device")):
        assert BoardDescription.from_json(described.to_json()) == described
    with_gpu = replace(found, gpu=GPU).part("cuda")
    assert with_gpu is not None
    assert (with_gpu.name, with_gpu.model) == ("cuda-sm_87", "Orin")
    assert found.part("cuda") is None
    assert replace(found, gpu=replace(GPU, arch="sm_52")).part("cuda") is None
    assert found.part("x86") == found.hardware
    assert str(GPU) == "Orin: compute capability 8.7, driver for CUDA 12.6, 4 GiB free"
    assert cpu_numbers(found.cpus)
    assert sum(found.cores.values()) >= found.hardware.cores


@pytest.mark.parametrize(
    "changed",
    [
        {"protocol": 1}, {"gpu": {}}, {"gpu_problem": 3},
        {"protocol": None}, {"library": 3}, {"tvm": "a\nb"}, {"memory": -1},
        {"memory": True},
        {"cores": []}, {"cores": {"a b": 1}}, {"cores": {"m": 0}}, {"load": "low"}, {"load": float("nan")},
        {"governors": "on"}, {"governors": ["a b"]}, {"hardware": {}}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_description(changed: dict[str, Any]) -> None:
    values = json.loads(describe_this_board().to_json()) | changed
    with pytest.raises(TuningError, match="board: expected"):
        BoardDescription.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "riscv"}, {"isa": "x86-64-v9"}, {"kind": []}, {"cores": 0}, {"l1d": -1}, {"model": "a\x1b"},
        {"features": "avx"}, {"features": [1]}, {"name": "../x"}, {"micro_architecture": None}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_hardware(changed: dict[str, Any]) -> None:
    values = json.loads(describe_this_board().to_json())
    values["hardware"] |= changed
    with pytest.raises(TuningError, match="board: expected"):
        BoardDescription.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "changed",
    [
        {"arch": "../x"},
        {"arch": 87},
        {"cuda": "new"},
        {"memory": -1},
        {"model": "a\x1b"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_gpu(changed: dict[str, Any]) -> None:
    values = json.loads(replace(describe_this_board(), gpu=GPU).to_json())
    values["gpu"] |= changed
    with pytest.raises(TuningError, match="board: expected"):
        BoardDescription.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 60000, "x" * 70000])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(TuningError, match="board: expected"):
        BoardDescription.from_json(text)


@pytest.mark.parametrize("best", [math.inf, 1e-3])
def test_requests_come_back_as_they_were(best: float) -> None:
    one = Request(MEASURE, ("kernel-1.so",), WORKLOAD, (CANDIDATE,), 4, 60.0, best)
    for asked in (one, replace(one, on_gpu=True)):
        assert Request.from_json(asked.to_json()) == asked
    both = replace(one, task=CONFIRM, libraries=("kernel-2.so", "kernel-3.so"))
    assert Request.from_json(both.to_json()) == both


@pytest.mark.parametrize("changed", [{"task": "run"}, {"libraries": ("../etc/passwd",)}])
def test_what_is_no_request(changed: dict[str, Any]) -> None:
    one = Request(MEASURE, ("kernel-1.so",), WORKLOAD, (CANDIDATE,), 4, 60.0)
    with pytest.raises(InvalidValueError, match="request: expected"):
        Request.from_json(replace(one, **changed).to_json())


def test_answers_come_back_as_they_were() -> None:
    assert answer_of(MEASURE, answer_text((1.5e-3, ""))) == (1.5e-3, "")
    assert answer_of(MEASURE, answer_text((None, "timed out"))) == (None, "timed out")
    finalists = [Finalist(1e-3, 1.0, 0.9, 1.1), Finalist(2e-3, 2.0, 1.9, 2.2)]
    assert answer_of(CONFIRM, answer_text((finalists, ""))) == (finalists, "")
    assert answer_of(MEASURE, '{"value": null, "error": "a\\u001bb"}') == (None, "a b")


@pytest.mark.parametrize(
    "text", ["", "{}", "7", '{"value": -1, "error": ""}', '{"value": Infinity, "error": ""}',
             '{"value": "x", "error": ""}', '{"value": [1], "error": ""}'],
)  # fmt: skip
def test_what_is_no_answer(text: str) -> None:
    for task in (MEASURE, CONFIRM):
        with pytest.raises(ValueError):  # noqa: PT011
            answer_of(task, text)


BIG_LITTLE = "\n\n".join(
    f"processor\t: {n}\nFeatures\t: fp asimd crc32{more}\nCPU implementer\t: 0x41\nCPU part\t: {part}"
    for n, part, more in [(n, "0xd05", "") for n in range(4)]
    + [(n, "0xd0b", " asimddp") for n in range(4, 6)]
)


def test_the_processor_is_that_of_the_cores_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_processor("aarch64", BIG_LITTLE)
    assert whole.micro_architecture == "cortex_a55"
    big = read_processor("aarch64", BIG_LITTLE, cpus={4, 5})
    assert big.micro_architecture == "cortex_a76"
    assert big.features - whole.features == {"dotprod"}
    assert read_processor("aarch64", BIG_LITTLE, cpus={99}) == whole
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(BIG_LITTLE)
    assert core_kinds({0, 1, 5}, cpuinfo) == {"cortex_a55": 2, "cortex_a76": 1}
    assert core_kinds({0, 1}, tmp_path / "none") == {"aarch64": 2}


@pytest.mark.parametrize("text", ["0", "0-3", "0,2-3,7", "4-7"])
def test_lists_of_processors(text: str) -> None:
    assert cpu_list(cpu_numbers(text)) == text


def test_clock_governors(tmp_path: Path) -> None:
    for cpu, name in enumerate(["ondemand", "performance", "ondemand", "not a name"]):
        folder = tmp_path / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert governors(frozenset({0, 1, 2, 3, 9}), tmp_path) == ("ondemand", "performance")
    assert governors(frozenset({9}), tmp_path) == ()


@contextmanager
def listener(answer: bytes | None) -> Iterator[Address]:
    """A port whose owner answers with these bytes and hangs up, or, without any, is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def accept() -> None:
            try:
                connection, _ = listening.accept()
                kept.append(connection)
                if answer is not None:
                    connection.recv(4)
                    connection.sendall(answer)
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=accept)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


MAGIC = struct.pack("<i", 0x2F271)


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP", MAGIC, MAGIC + b"\x02\0\0\0{}", MAGIC + b"\x05\0\0\0[0,1]", MAGIC + b"\xff" * 9],
)
def test_what_is_no_tracker(answer: bytes) -> None:
    with (
        listener(answer) as address,
        pytest.raises(AttentionError, match=r"expected TVM's tracker"),
    ):
        Tracker(address).boards()


def test_trackers_are_told_from_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(MAGIC) as address:
        assert greets_as_tracker(address)
    with listener(b"") as address:
        assert not greets_as_tracker(address)
    monkeypatch.setattr(tracker, "ANSWER_SECONDS", 0.1)
    with listener(None) as address, pytest.raises(TuningError, match=r"got no answer in 0\.1 s"):
        greets_as_tracker(address)


ORIGIN = {"kind": "measured", "on": "Made-up board", "trials": 8}


@pytest.mark.parametrize(
    "more", [{}, {"cpus": "4-7", "cores": {"cortex_a76": 4}}, {"cpus": "0,2-3"}, {"cores": {}}]
)
def test_records_say_which_cores_measured(more: dict[str, Any]) -> None:
    made = record(provenance={**ORIGIN, **more})
    assert parse_log(format_log([made]), "log") == (made,)


@pytest.mark.parametrize(
    "more",
    [
        {"cpus": "all"}, {"cpus": ""}, {"cpus": 3}, {"cpus": "0," * 100 + "0"}, {"cores": "4 cortex_a76"},
        {"cores": {"A76": 4}}, {"cores": {"cortex_a76": 0}}, {"cores": {"cortex_a76": True}},
        {"cores": {f"core{n}": 1 for n in range(17)}}, {"more": 1},
    ],
    ids=lambda more: str(more)[:40],
)  # fmt: skip
def test_what_is_no_core_of_a_record(more: dict[str, Any]) -> None:
    with pytest.raises(AttentionError, match="provenance"):
        record(provenance={**ORIGIN, **more})
