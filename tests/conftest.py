"""Every test session has cache and log folders of its own, and draws the same examples each time."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

_FOLDER = tempfile.mkdtemp(prefix="tvm_attention_tests")
# Before anything is loaded: a kernel built by one test serves the others, and no record of the user's.
os.environ["TVM_ATTENTION_CACHE_DIR"] = os.path.join(_FOLDER, "cache")
os.environ["TVM_ATTENTION_LOG_DIR"] = os.path.join(_FOLDER, "logs")
for _variable in ("ARCHIVE", "CACHE_LIMIT_MB", "NUM_THREADS", "TARGET"):
    os.environ.pop(f"TVM_ATTENTION_{_variable}", None)
# The reference computes many small products: NumPy's threads would only get in the kernels' way.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
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


@pytest.fixture(scope="session", autouse=True)
def _folders() -> Iterator[None]:
    yield
    shutil.rmtree(_FOLDER, ignore_errors=True)


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
