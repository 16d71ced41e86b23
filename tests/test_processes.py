"""Child processes, Ctrl-C, and a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tvm_attention.processes import interrupts_kept, process_pool


def _blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_does_not_reach_a_child() -> None:
    pool = process_pool(1)
    try:
        assert pool.schedule(_blocked).result()
        assert pool.schedule(os.getpid).result() != os.getpid()
    finally:
        pool.stop()
        pool.join()
    assert not _blocked()


def _ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    while True:  # until the interpreter has noticed
        time.sleep(0.01)


def _make_another_error(callback: Callable[[], None]) -> None:
    try:
        callback()
    except KeyboardInterrupt:
        raise RuntimeError from None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as it is in a program of its own: one started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_library_makes_another_error_of() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_kept():
        _make_another_error(_ctrl_c)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        _ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="a fault"), interrupts_kept():
        raise RuntimeError("a fault")


def test_in_another_thread_nothing_changes() -> None:
    seen = []

    def run() -> None:
        with interrupts_kept():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


KILLED = """
import multiprocessing, os, signal, time
from tvm_attention.processes import process_pool

pool = process_pool(2)
hanging = [pool.schedule(time.sleep, (3600,)) for _ in range(2)]
while not all(task.running() for task in hanging):
    time.sleep(0.01)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _is_there(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_children_do_not_outlive_a_parent_that_is_killed() -> None:
    """Not even those whose task hangs: nobody is left who would end it."""
    command = [sys.executable, "-c", KILLED]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # of semaphores left behind
    with subprocess.Popen(command, **pipes) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        assert parent.wait() == -signal.SIGKILL
    assert len(children) == 2
    for _ in range(1000):  # looks, not seconds: the whole machine may have paused
        left = [child for child in children if _is_there(child)]
        if not left:
            return
        time.sleep(0.02)
    for child in left:
        os.kill(child, signal.SIGKILL)
    raise AssertionError("children of a process that was killed go on")
