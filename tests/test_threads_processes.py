"""Pools of threads in processes of their own: forks, exits, torch imported meanwhile."""

from __future__ import annotations

import pytest
from fresh_process import PRELUDE, run_script


def test_without_openmp_our_own_pool_is_used_until_torch_is_imported() -> None:
    script = """
assert "torch" not in sys.modules
print(launcher().name, launcher().max_threads(), workers())
import torch
torch.set_num_threads(2)
print(launcher().name.split(":")[0], launcher().max_threads())
run()
torch.set_num_threads(1)
assert run() == {threading.get_ident()}
"""
    out = run_script(PRELUDE, script, TVM_ATTENTION_NUM_THREADS="3").splitlines()
    assert out == ["own pool 3 2", "openmp 2"]


def test_one_thread_starts_no_worker() -> None:
    assert run_script(PRELUDE, "print(workers())", TVM_ATTENTION_NUM_THREADS="1") == "0\n"


FORK = """
first = launcher().name
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends a child that hangs
    run(300)
    print(first, "->", launcher().name, launcher().max_threads(), workers(), flush=True)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
run(300)
assert launcher().name == first
"""


def test_a_forked_child_starts_a_pool_of_its_own() -> None:
    out = run_script(PRELUDE, FORK, TVM_ATTENTION_NUM_THREADS="3")
    assert out == "own pool -> own pool 3 2\n"


def test_a_forked_child_does_not_hang_on_openmp() -> None:
    pytest.importorskip("torch")
    torch = "import torch; torch.set_num_threads(2); launcher(); run()"
    first, _, second = run_script(PRELUDE, torch, FORK).strip().partition(" -> ")
    assert first.startswith("openmp: ")
    assert second == ("own pool 2 1" if "libgomp" in first else f"{first} 2 0")


@pytest.mark.parametrize("pause", ["", "time.sleep(0.01)"])
@pytest.mark.parametrize("torch", ["", "import torch; launcher(); run()"])
def test_the_process_ends_cleanly(torch: str, pause: str) -> None:
    """With workers that spin, and with workers that sleep."""
    run_script(PRELUDE, torch, pause, TVM_ATTENTION_NUM_THREADS="3")


def test_workers_may_use_every_processor_after_being_moved() -> None:
    """Launches that find every processor busy, with pauses in which workers fall asleep."""
    script = """
import subprocess
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
try:
    for _ in range(40):
        run(1, 600_000)
        time.sleep(0.0002)
finally:
    for process in busy:
        process.kill()
        process.wait()
time.sleep(0.2)
tasks = {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}
assert tasks == {frozenset(os.sched_getaffinity(0))}
"""
    run_script(PRELUDE, script, TVM_ATTENTION_NUM_THREADS="3")
