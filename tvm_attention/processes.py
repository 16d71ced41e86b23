"""Child processes: Ctrl-C is their parent's, where it stays a KeyboardInterrupt, and so is their end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl, Linux


def die_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, however it does."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def process_pool(workers: int, initializer: Callable[[], None] | None = None) -> Any:
    """A pebble.ProcessPool of spawned processes (a fork would copy the state of threads that it does
    not copy). Ctrl-C is for the parent, which then stops them. They are killed when the thread that
    makes the pool ends, also where its process is killed: nobody would watch over their tasks."""
    from pebble import ProcessPool

    resource_tracker.ensure_running()  # the first child would start it, which unblocks signals
    # A child blocks what the thread that starts it blocks. Pebble's own threads do so for good, and
    # from a child's first moment; pebble would have it ignore Ctrl-C only after its first imports.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        context = multiprocessing.get_context("spawn")
        pool: Any = ProcessPool(
            workers, context=context, initializer=_begin, initargs=(os.getpid(), initializer)
        )
        if not pool.active:  # asking starts its threads
            raise RuntimeError("expected a pool that starts")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pool


def _begin(parent: int, initializer: Callable[[], None] | None) -> None:
    die_with_parent()
    if os.getppid() != parent:  # it was gone before that
        os._exit(1)
    if initializer is not None:
        initializer()


def end(*pools: Any) -> None:
    """Stop pools of processes, whatever they are at, and wait until they are gone."""
    for pool in pools:
        pool.stop()
        pool.join()


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Whatever Ctrl-C leads to within is a KeyboardInterrupt: TVM makes a RuntimeError of one that
    leaves a callback. In another thread than the main one, which Ctrl-C never interrupts, nothing."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
