"""Parallel loops on our own pool and on OpenMP: results, errors, concurrency, numbers of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fresh_process import GUARD
from parallel_kernels import counting_kernel, launch

from tvm_attention import environment
from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.errors import InvalidValueError, KernelBuildError
from tvm_attention.threads import Launcher, launcher, launching
from tvm_attention.threads.native import launch_source
from tvm_attention.threads.openmp import find_openmp, libgomp_paths


@pytest.fixture(params=["own pool", "openmp"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """The process's launcher with four threads on one kind of pool, put back afterwards."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    if request.param == "own pool":
        monkeypatch.setattr(launching, "find_openmp", lambda: None)
    torch.set_num_threads(4)
    here = launcher()
    here.set_num_threads(4)
    assert here.name.startswith(request.param)
    yield here
    monkeypatch.undo()
    torch.set_num_threads(before)
    here.set_num_threads(environment.num_threads())


@pytest.fixture(scope="module")
def kernel() -> Any:
    module = counting_kernel()
    launcher().bind(module)
    return module["main"]


def count(kernel: Any, length: int, times: int) -> set[int]:
    """Runs the kernel, checks that it did every element once each time, gives the threads seen."""
    counts, threads = np.zeros(length, "int32"), np.zeros(length, "int64")
    seen: set[int] = set()
    for _ in range(times):
        kernel(counts, threads, length)
        seen.update(threads.tolist())
    assert counts.tolist() == [times] * length
    return seen


def test_every_element_is_computed_once_in_many_launches(pool: Launcher, kernel: Any) -> None:
    threads = count(kernel, 64, 10_000)
    assert threading.get_ident() in threads
    assert len(threads) <= pool.max_threads() == 4
    for length in (1, 2, 3, 5, 1000):
        count(kernel, length, 100)


def test_tasks_run_at_the_same_time(pool: Launcher) -> None:
    meeting = threading.Barrier(4)
    threads = set()

    def task(number: int, tasks: int) -> int:
        meeting.wait(GUARD)
        threads.add(threading.get_native_id())
        return 0

    for _ in range(3):
        assert launch(task) == 0
    assert len(threads) >= 4


@pytest.mark.parametrize("asked", [0, 1, 3, 4, 11])
def test_number_of_tasks(pool: Launcher, asked: int) -> None:
    ran: list[tuple[int, int]] = []

    def task(number: int, tasks: int) -> int:
        ran.append((number, tasks))
        return 0

    assert launch(task, asked) == 0
    tasks = asked or 4
    assert sorted(ran) == [(i, tasks) for i in range(tasks)]


def test_one_thread_wakes_no_worker(pool: Launcher, kernel: Any) -> None:
    pool.set_num_threads(1)
    assert pool.max_threads() == 1
    assert count(kernel, 64, 100) == {threading.get_ident()}


def test_a_failing_task_gives_its_code_and_the_others_still_run(pool: Launcher) -> None:
    ran = []

    def task(number: int, tasks: int) -> int:
        ran.append(number)
        return 7 if number == 2 else 0

    for _ in range(20):
        ran.clear()
        assert launch(task, 6) == 7
        assert sorted(ran) == list(range(6))
    assert launch(lambda number, tasks: 0) == 0


@pytest.mark.parametrize("place", [0, 30, 63])
def test_an_error_in_a_worker_is_raised_in_the_caller(
    pool: Launcher, kernel: Any, place: int
) -> None:
    counts, threads = np.zeros(64, "int32"), np.zeros(64, "int64")
    counts[place] = -1
    for _ in range(50):
        with pytest.raises(Exception, match="negative count"):
            kernel(counts, threads, 64)
    count(kernel, 64, 1)


def test_a_loop_inside_a_task_runs_serially(pool: Launcher) -> None:
    inner: list[tuple[int, int, bool]] = []

    def outer(number: int, tasks: int) -> int:
        me = threading.get_native_id()

        def task(inner_number: int, inner_tasks: int) -> int:
            inner.append((number, inner_number, threading.get_native_id() == me))
            return 0

        return launch(task, 3)

    assert launch(outer, 4) == 0
    assert sorted(inner) == [(i, j, True) for i in range(4) for j in range(3)]


def test_python_threads_may_launch_at_the_same_time(pool: Launcher, kernel: Any) -> None:
    failures: list[BaseException] = []

    def run(length: int) -> None:
        try:
            count(kernel, length, 1500)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in (3, 17, 64, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_affinity_stays(pool: Launcher, kernel: Any) -> None:
    before = os.sched_getaffinity(0)
    count(kernel, 64, 200)
    assert os.sched_getaffinity(0) == before


def test_torch_decides_the_number_of_threads() -> None:
    torch = pytest.importorskip("torch")
    before, here = torch.get_num_threads(), launcher()
    try:
        here.set_num_threads(None)
        for n in (1, 3):
            torch.set_num_threads(n)
            assert here.max_threads() == n
        here.set_num_threads(2)
        assert here.max_threads() == 2
        torch.set_num_threads(1)
        assert here.max_threads() == 1
    finally:
        torch.set_num_threads(before)
        here.set_num_threads(environment.num_threads())


@pytest.mark.parametrize("count", [0, -1, environment.MAX_THREADS + 1])
def test_numbers_of_threads_that_are_refused(count: int) -> None:
    with pytest.raises(InvalidValueError, match="expected 1 to"):
        launcher().set_num_threads(count)


def test_a_module_without_the_bind_function_is_refused() -> None:
    with pytest.raises(KernelBuildError, match="bind_function"):
        launcher().bind(counting_kernel(bindable=False))


def test_the_openmp_library_of_torch_is_found() -> None:
    torch = pytest.importorskip("torch")
    found = find_openmp()
    assert found is not None
    assert found.count() == torch.get_num_threads()
    if "libgomp" in found.path:
        assert found.path in libgomp_paths()


@pytest.mark.parametrize(("processor", "instruction"), [("x86_64", "pause"), ("aarch64", "yield")])
def test_the_launch_function_compiles_for_every_processor(
    tmp_path: Path, processor: str, instruction: str
) -> None:
    ffi = load_tvm_libraries()
    target = f'{{"kind": "llvm", "mtriple": "{processor}-linux-gnu"}}'
    empty = ffi.get_global_func("codegen.LLVMModuleCreate")(target, "launch")
    text = ffi.get_global_func("ffi.ModuleInspectSource")(empty, "ll") + launch_source(processor)
    (tmp_path / "launch.ll").write_text(text)
    ffi.load_module(str(tmp_path / "launch.ll")).write_to_file(str(tmp_path / "launch.s"), "s")
    assert instruction in (tmp_path / "launch.s").read_text().split()
