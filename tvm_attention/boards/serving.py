"""Starting what boards and the machine between them run: TVM's RPC server and its tracker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from importlib.util import find_spec

from tvm_attention._tvm import import_tvm
from tvm_attention.boards.address import Address
from tvm_attention.boards.service import register
from tvm_attention.boards.tracker import greets_as_tracker
from tvm_attention.caches import cpu_list
from tvm_attention.errors import InvalidValueError, TuningError
from tvm_attention.processes import die_with_parent
from tvm_attention.processor import usable_cpus

SERVER_PORT, TRACKER_PORT = 9090, 9190  # those that TVM's own programs take
_LOOK_SECONDS = 1.0  # between looks for a tracker
_LEAST_SECONDS = 5.0  # that a server runs before it is started again at once


def bind(cpus: Collection[int]) -> None:
    """Have this process and its children run on these logical processors alone. Raises InvalidValueError
    for those that it may not use."""
    usable = usable_cpus()
    if not cpus or not usable >= set(cpus):
        raise InvalidValueError(
            f"cores: expected some of {cpu_list(usable)}, which this process may use, got "
            f"{cpu_list(cpus)}"
        )
    os.sched_setaffinity(0, cpus)


def lend_gpu(number: int) -> None:
    """Have this process and its children see this one GPU of several, as their first."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number)


def serve(
    host: str,
    port: int,
    key: str,
    tracker: Address | None,
    *,
    started: Callable[[int], None],
    waiting: Callable[[str], None],
) -> None:
    """Run a board's server until an interrupt; ``started`` hears of its port. A server that ends is started
    again; while the tracker is not there, it is waited for, and ``waiting`` hears why, once.

    Raises TuningError where no server can listen.
    """
    import_tvm()
    from tvm import rpc

    where = None if tracker is None else (tracker.host, tracker.port)
    while True:
        if tracker is not None:
            _await(tracker, waiting)
        began = time.monotonic()
        try:
            server = rpc.Server(
                host, port, port + 1, tracker_addr=where, key=key, silent=True,
                server_init_callback=register,
            )  # fmt: skip
        except (RuntimeError, ValueError, OSError) as error:
            raise TuningError(
                f"port {port}: expected one that is free, got: {_last_line(error)}; name another by "
                f"--port"
            ) from error
        try:
            started(server.port)
            server.proc.join()
        finally:
            server.terminate()
        time.sleep(max(0.0, _LEAST_SECONDS - (time.monotonic() - began)))


def track(host: str, port: int, started: Callable[[int], None]) -> None:
    """Run a tracker until an interrupt. Raises TuningError where it cannot listen or lacks a package."""
    if find_spec("tornado") is None:
        raise TuningError(
            "TVM's tracker needs the package tornado, which is not installed; pip install tornado"
        )
    import_tvm()
    from tvm.support.popen_pool import PopenWorker

    worker = PopenWorker()
    try:
        worker.send(_start_tracker, (host, port))
        started(worker.recv())
        worker.join()
    except (RuntimeError, ValueError, OSError) as error:
        raise TuningError(
            f"port {port}: expected one that is free, got: {_last_line(error)}; name another by --port"
        ) from error
    finally:
        worker.kill()


def _start_tracker(host: str, port: int) -> int:
    """What tvm.rpc.Tracker does in its child process, which outlives its parent there."""
    from tvm.rpc.tracker import PopenTrackerServerState

    die_with_parent()
    PopenTrackerServerState.current = PopenTrackerServerState(host, port, port + 1, silent=True)
    return port


def _await(tracker: Address, waiting: Callable[[str], None]) -> None:
    """TVM's server looks for its tracker every five seconds, and gives up after a minute."""
    said = False
    while True:
        try:
            if greets_as_tracker(tracker):
                return
            why = f"{tracker}: expected a tracker, got something else"
        except TuningError as error:
            why = str(error)
        if not said:
            waiting(why)
        said = True
        time.sleep(_LOOK_SECONDS)


def _last_line(error: BaseException) -> str:
    """A child's exception comes with its traceback as the message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
