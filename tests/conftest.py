"""Every test session has cache and log folders of its own, and draws the same examples each time."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

_FOLDER = "TVM_ATTENTION_TESTS_FOLDER"
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:  # workers inherit it
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tvm_attention_tests")
# Before anything is loaded: a kernel built by one test serves the others, and no record of the user's.
os.environ["TVM_ATTENTION_CACHE_DIR"] = os.path.join(os.environ[_FOLDER], "cache")
_LOGS = "logs-" + os.environ.get("PYTEST_XDIST_WORKER", "")
os.environ["TVM_ATTENTION_LOG_DIR"] = os.path.join(os.environ[_FOLDER], _LOGS)
for _variable in ("ARCHIVE", "CACHE_LIMIT_MB", "NUM_THREADS", "TARGET"):
    os.environ.pop(f"TVM_ATTENTION_{_variable}", None)
# The reference computes many small products: NumPy's threads would only get in the kernels' way.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Threads of OpenMP sleep between loops: where other tests keep all cores busy, those that spin take the time
# of the very thread that they wait for, milliseconds a call.
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["HF_HUB_OFFLINE"] = "1"  # models are made here or come in a package

settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


def pytest_unconfigure() -> None:
    if not _IS_WORKER:
        shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)


# Files whose tests compute with the same kernels: what one of them loaded serves the others.
_OF_ONE_WORKER = ("test_hidden_keys.py", "test_variant_options.py")
# What takes a minute or more is begun first, so that no worker is left alone with it at the end.
_LONG = (
    "test_shipped_arm_kernels.py", *_OF_ONE_WORKER, "test_compute.py", "test_transformers.py",
    "test_attention.py", "test_arm_kernels.py", "test_boards.py", "test_kv_cache.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _LONG)


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _OF_ONE_WORKER[0] if file.endswith(_OF_ONE_WORKER) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    return _ByFile(config, log)


@pytest.fixture
def no_calls_remembered() -> Iterator[None]:
    """None is known when a test begins, nor left by it."""
    from tvm_attention import functional

    functional.forget_calls()
    yield
    functional.forget_calls()


@pytest.fixture(autouse=True)
def _thread_counts() -> Iterator[None]:
    """Puts back what a test set for the whole process."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if before is not None:
        torch.set_num_threads(before)
    launching = sys.modules.get("tvm_attention.threads.launching")
    launcher = getattr(launching, "_launcher", None)
    if launcher is not None and launcher._limit is not None:
        launcher.set_num_threads(None)
