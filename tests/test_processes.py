"""Child processes and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

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
