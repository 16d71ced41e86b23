"""The checks of ``doctor --rpc``: whether tuning can be done on boards, before any trial is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tvm_attention.boards import Boards, session_tasks
from tvm_attention.boards.address import Address
from tvm_attention.boards.boards import board_process, describe_in
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.parts import ANY_GPU, Part, board_target, gpu_of_board, is_for_gpu
from tvm_attention.boards.requests import MEASURE, Request
from tvm_attention.boards.session import Where, require_alike
from tvm_attention.boards.tracker import NoBoardError, Tracker
from tvm_attention.commands.doctor_checks import Finding
from tvm_attention.errors import AttentionError
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.isa import MACHINES
from tvm_attention.memory_needed import require_memory
from tvm_attention.quantities import counted, seconds_text, size_text
from tvm_attention.schedules import schedules_for
from tvm_attention.suites import Suite
from tvm_attention.target import named_target
from tvm_attention.tuning.workers import MEASURE_TIMEOUT, outcome_of
from tvm_attention.workload import AttentionWorkload

_SMALL = AttentionWorkload(head_dim=16, query_heads=2, query_length=9, key_length=21)
_LEAST_MEMORY = 128 << 20  # bytes: a server, its measuring process and small arrays
_QUIET_LOAD = 0.25  # programs a core
_SLOW_SECONDS = 0.1  # of a round trip: every trial takes some


def examine_boards(
    boards: Boards, target: str | None, workloads: Suite, compilers: dict[str, str]
) -> Iterator[Finding]:
    """Findings about the way to the boards, then about each that is free."""
    try:
        if target is not None and target.strip().lower() != ANY_GPU:
            named_target(target)
        where = boards.where()
    except AttentionError as error:
        yield Finding("way to the boards", False, str(error), "correct the address, key or target")
        return
    count = Tracker(where.address).require(where.key) if where.tracked else 1
    what = f"tracker {where.address}, {counted(count, 'board')} with key {where.key}"
    yield Finding(
        "way to the boards", True, what if where.tracked else f"board {where.address}", ""
    )
    with ExitStack() as held:  # boards that were seen stay held, or one would be seen twice
        for seen in range(count):
            process = held.enter_context(board_process())
            try:
                address, found, seconds = describe_in(process, where)
            except NoBoardError as error:
                left = counted(count - seen, "board")
                advice = "wait until others have finished, or start `tvm-attention serve` again"
                yield Finding("other boards", bool(seen), f"{left} not seen: {error}", advice)
                return
            except AttentionError as error:
                yield Finding("a board", False, str(error), "start `tvm-attention serve` there")
                continue
            yield from _board(found, address, seconds, target, workloads)
            if is_for_gpu(target):
                yield from _gpu(boards, found, address, target, workloads)
            else:
                yield _triple(found, address, compilers)
                yield _features(found, address, target)
            yield _kernel(process, where, boards, found, address, target)


def _board(
    found: BoardDescription,
    address: str,
    seconds: float,
    target: str | None,
    workloads: Suite,
) -> Iterator[Finding]:
    """What a description says."""
    hardware = found.hardware
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.cores.items())
    model = hardware.model or "a processor without a name"
    bound = f"{model}, {hardware.name}, processors {found.cpus} ({kinds})"
    mixed = "" if len(found.cores) == 1 else "serve --cores LIST binds it to cores of one kind"
    yield Finding(f"{address} hardware", True, bound, mixed)
    name = f"{address} versions"
    try:
        require_alike(found, Address.of(address))
        yield Finding(name, True, f"TVM {found.tvm}, tvm-attention {found.library}", "")
    except AttentionError as error:
        yield Finding(name, False, str(error), "install the same on both machines")
    if found.gpu is not None and not is_for_gpu(target):
        yield Finding(f"{address} GPU", True, str(found.gpu), "")
    yield _governor(found, address)
    slow = "" if seconds < _SLOW_SECONDS else "trials take longer; a wired network is faster"
    yield Finding(f"{address} round trip", True, seconds_text(seconds), slow)
    yield _memory(f"{address} memory", found.memory, workloads)
    busy = found.load > _QUIET_LOAD * hardware.cores
    quiet = "stop what else runs there: timings will be rough" if busy else ""
    yield Finding(f"{address} load", True, f"{found.load:g} programs, a minute's mean", quiet)


def _triple(found: BoardDescription, address: str, compilers: dict[str, str]) -> Finding:
    name, architecture = f"{address} triple", MACHINES[found.hardware.kind][0]
    try:
        tools = find_toolchain(architecture, compilers)
    except AttentionError as error:
        return Finding(name, False, f"{found.system}: {error}", "install a compiler to link by")
    return Finding(name, True, f"{found.system}; linked by {tools.compiler[0]}", "")


def _features(found: BoardDescription, address: str, target: str | None) -> Finding:
    name, hardware = f"{address} features", found.hardware
    if target is None:
        return Finding(name, True, f"those of {hardware.name} will be used", "")
    try:
        board_target(found, target, address)
    except AttentionError as error:
        return Finding(name, False, str(error), "name a target that it can run, or none")
    needed = ", ".join(sorted(named_target(target).features)) or "none"
    return Finding(name, True, f"it has all that {target} needs: {needed}", "")


def _governor(found: BoardDescription, address: str) -> Finding:
    name = f"{address} clock governor"
    if not found.governors:
        return Finding(name, True, "the system does not say", "")
    text = ", ".join(found.governors)
    if found.governors == ("performance",):
        return Finding(name, True, text, "")
    steady = "steadier timings: there, as root, write performance to "
    files = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return Finding(name, True, text, steady + files)


def _gpu(
    boards: Boards, found: BoardDescription, address: str, target: str | None, workloads: Suite
) -> Iterator[Finding]:
    """What is tuned on, and whether this machine can compile for it."""
    name = f"{address} GPU"
    try:
        gpu = gpu_of_board(found, address)
    except AttentionError as error:
        yield Finding(name, False, str(error), "choose a board with a GPU, or mend its driver")
        return
    yield Finding(name, True, str(gpu), "")
    yield _memory(f"{address} GPU memory", gpu.memory, workloads)
    try:
        part = boards.part(found, target, address)
    except AttentionError as error:
        yield Finding(f"{address} GPU target", False, str(error), "correct what it names")
        return
    yield Finding(f"{address} GPU target", True, f"{part.target.name}, compiled here", "")


def _memory(name: str, memory: int, workloads: Suite) -> Finding:
    free = f"{size_text(memory)} free"
    try:
        for workload in workloads.values():
            require_memory(workload, memory)
    except AttentionError as error:
        return Finding(name, False, str(error), "choose a smaller workload")
    if memory < _LEAST_MEMORY:
        least = f"expected {size_text(_LEAST_MEMORY)} at least, got {free}"
        return Finding(name, False, least, "stop what else runs there")
    return Finding(name, True, free, "")


def _kernel(
    process: Any,
    where: Where,
    boards: Boards,
    found: BoardDescription,
    address: str,
    target: str | None,
) -> Finding:
    """Whether a kernel that is built here runs right there."""
    name, advice = f"{address} kernel", "mend what failed above; else report it with this output"
    try:
        seconds, error = _performed(process, where, boards.part(found, target, address))
    except AttentionError as problem:
        return Finding(name, False, str(problem), advice)
    if seconds is None:
        return Finding(name, False, f"a kernel that was built here: {error}", advice)
    return Finding(name, True, f"built here, right there, {seconds_text(seconds)} a call", "")


def _performed(process: Any, where: Where, part: Part) -> tuple[float | None, str]:
    schedules = schedules_for(part.target)
    candidate = schedules.default_candidate(_SMALL, schedules.machine_parameters(part.target))
    library = part.build(_SMALL, part.target, candidate)
    request = Request(
        MEASURE, (), _SMALL, (candidate,), part.threads, MEASURE_TIMEOUT, on_gpu=part.on_gpu
    )
    arguments = (where, part.hardware, part.launch, request, [library])
    outcome, error = outcome_of(
        process.schedule(session_tasks.perform, arguments, timeout=2 * MEASURE_TIMEOUT)
    )
    return outcome or (None, error)
