"""A tracker and two boards on this machine, each on its own core, and a small workload for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from board_servers import Program, free_port, serve_arguments, tracker

from tvm_attention._tvm import import_tvm
from tvm_attention.boards.address import Address
from tvm_attention.boards.session import Where
from tvm_attention.boards.tracker import Tracker
from tvm_attention.processor import usable_cpus
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

KEY = "loopback"
TEXT = "head_dim=16,query_heads=2,query_length=20,key_length=24"
WORKLOAD = AttentionWorkload.from_text(TEXT)


@dataclass(frozen=True)
class Servers:
    address: str
    programs: list[Program]
    ports: list[int]

    @property
    def where(self) -> Where:
        return Where(Address.of(self.address), KEY, True)

    def free(self) -> int:
        """Boards that nobody holds, as TVM's own client counts them."""
        import_tvm()
        from tvm import rpc

        host, port = self.address.split(":")
        summary = rpc.connect_tracker(host, int(port)).summary()
        return int(summary["queue_info"][KEY]["free"])


@contextmanager
def two_servers() -> Iterator[Servers]:
    """Both of them ready."""
    cpus = sorted(usable_cpus())
    with ExitStack() as stack:
        address, programs, ports = stack.enter_context(tracker()), [], []
        for number in range(2):
            ports.append(free_port())
            bound = ("--tracker", address, "--cores", str(cpus[number % len(cpus)]))
            programs.append(Program(serve_arguments(KEY, ports[-1], *bound)))
            stack.callback(programs[-1].end)
        for program in programs:
            program.wait_for("serving")
        where = Tracker(Address.of(address))
        while where.boards()[KEY] < 2:
            time.sleep(0.1)
        yield Servers(address, programs, ports)


def candidate(hardware: HardwareTarget) -> Candidate:
    schedules = schedules_for(hardware)
    default: Candidate = schedules.default_candidate(
        WORKLOAD, schedules.machine_parameters(hardware)
    )
    return default
