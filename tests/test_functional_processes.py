"""The function in threads, forked children and small memories, and what it leaves of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value, unit_normal

from tvm_attention import functional, runtime, scaled_dot_product_attention

torch = pytest.importorskip("torch")

GUARD = 120.0  # seconds: turns a hang into a failure


def test_the_same_call_twice_is_bit_identical() -> None:
    for rows in (1, 3, 65):
        q, k, v = (unit_normal(2, 4, n, 16, seed=n) for n in (rows, 1500, 1500))
        first = scaled_dot_product_attention(q, k, v).tobytes()
        assert all(scaled_dot_product_attention(q, k, v).tobytes() == first for _ in range(5))
        functional.forget_calls()
        assert scaled_dot_product_attention(q, k, v).tobytes() == first


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0), work(1), ... at once; raises what the first that failed raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(GUARD)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("keys", [40, 3000])
@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_concurrent_calls_do_not_disturb_each_other(
    wrap: Callable[[Array], Any], keys: int
) -> None:
    """Different and equal shapes at once, in kernels with and without a workspace."""
    cases = [query_key_value(rows=1 + n % 3 * 20, keys=keys + n // 2) for n in range(8)]
    expected = [scaled_dot_product_attention(*case) for case in cases]
    for case, result in zip(cases, expected, strict=True):
        assert_right(result, *case)

    def work(number: int) -> None:
        arrays = [wrap(x) for x in cases[number]]
        for _ in range(20):
            found = np.asarray(scaled_dot_product_attention(*arrays))
            np.testing.assert_array_equal(found, expected[number])

    in_threads(8, work)


def test_first_calls_at_once() -> None:
    runtime.forget_kernels()
    functional.forget_calls()

    def work(number: int) -> None:
        q, k, v = query_key_value(rows=(1, 30)[number % 2], keys=50)
        assert_right(scaled_dot_product_attention(q, k, v), q, k, v)

    in_threads(6, work)


def exit_status_of_fork(work: Callable[[], None]) -> int:
    """Of a forked child that runs ``work``: 0 if it returned."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    for _ in range(int(GUARD / 0.01)):  # looks, not seconds: the whole machine may have paused
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_forked_children_compute(wrap: Callable[[Array], Any]) -> None:
    """After the parent has used its thread pool; remembered calls, and kernels new to the child."""
    torch.zeros(500, 500) @ torch.zeros(500, 500)
    known = query_key_value(rows=40)
    scaled_dot_product_attention(*map(wrap, known))

    def work() -> None:
        for arrays in (known, query_key_value(rows=2, keys=333), known):
            found = scaled_dot_product_attention(*map(wrap, arrays))
            assert_right(np.asarray(found), *arrays)

        def grandchild() -> None:
            found = scaled_dot_product_attention(*map(wrap, known))
            assert_right(np.asarray(found), *known)

        assert exit_status_of_fork(grandchild) == 0

    for _ in range(3):
        assert exit_status_of_fork(work) == 0
    assert exit_status_of_fork(lambda: sys.exit(3)) == 1  # a child that fails is noticed
    assert_right(np.asarray(scaled_dot_product_attention(*map(wrap, known))), *known)


def test_the_process_is_left_as_it_was() -> None:
    before = os.sched_getaffinity(0), torch.get_num_threads(), sys.excepthook
    scaled_dot_product_attention(*query_key_value(rows=40))
    scaled_dot_product_attention(*map(torch.from_numpy, query_key_value(rows=40)))
    assert (os.sched_getaffinity(0), torch.get_num_threads(), sys.excepthook) == before
    tiny = np.array([1e-39], np.float32)  # denormal numbers are still numbers
    assert (tiny * np.float32(0.5))[0] > 0
    assert (torch.from_numpy(tiny) * 0.5).item() > 0


MEMORY = """
import sys
import numpy as np
from tvm_attention import AttentionWorkload, load

LENGTH = 16384

def peak():  # kibibytes
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

kernel = load(AttentionWorkload(head_dim=64, query_heads=2, query_length=LENGTH, key_length=LENGTH))
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 2, LENGTH, 64), dtype=np.float32) for _ in range(3))
out = np.full_like(q, np.nan)
kernel(q[:, :, :300], k[:, :, :3000], v[:, :, :3000])  # code, threads and their stacks
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = peak()
kernel(q, k, v, out)
grown = 1024 * (peak() - before)
assert grown <= 1.5 * v.nbytes, f"memory grew by {grown / 2**20:.1f} MiB"
for row in (0, 8191, LENGTH - 1):
    scores = k[0, 1].astype("f8") @ q[0, 1, row].astype("f8") / 8
    weights = np.exp(scores - scores.max())
    expected = weights @ v[0, 1].astype("f8") / weights.sum()
    assert np.abs(out[0, 1, row] - expected).max() < 2e-6, row
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_long_rows_take_no_memory_of_their_own() -> None:
    """2 x 16384 x 16384 scores would be 2 GiB; the value tensor has 8 MiB."""
    child = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
