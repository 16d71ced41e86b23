"""Calls in the processes that programs make: torch's data loaders, pools, and several at once that find
nothing built."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right, query_key_value

from tvm_attention import scaled_dot_product_attention
from tvm_attention.environment import CACHE_DIR

torch = pytest.importorskip("torch")

GUARD = 300.0  # seconds: turns a hang into a failure
ROWS = (40, 3, 40, 3)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")


def attended(number: int) -> Any:
    """Attention of the arrays of that number, as a tensor."""
    arrays = query_key_value(rows=ROWS[number])
    return scaled_dot_product_attention(*map(torch.from_numpy, arrays))


class Attended(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> Any:
        return attended(number).numpy()


def right(found: Any, number: int) -> None:
    assert_right(np.asarray(found), *query_key_value(rows=ROWS[number]))


def test_workers_of_a_data_loader() -> None:
    torch.zeros(500, 500) @ torch.zeros(500, 500)
    for number in range(2):  # the parent's pool and kernels are in use
        right(attended(number), number)
    loader = torch.utils.data.DataLoader(
        Attended(), batch_size=None, num_workers=2, timeout=GUARD, multiprocessing_context="fork"
    )
    for _ in range(2):  # workers are made anew
        for number, found in enumerate(loader):
            right(found, number)
    right(attended(1), 1)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_pool(start: str) -> None:
    right(attended(0), 0)
    with multiprocessing.get_context(start).Pool(2) as pool:
        for number, found in enumerate(pool.map_async(numbers_of, range(len(ROWS))).get(GUARD)):
            right(found, number)


def numbers_of(number: int) -> Any:
    return attended(number).numpy()


COLD = """
import sys
from attention_cases import assert_right, query_key_value
from tvm_attention import scaled_dot_product_attention
print(flush=True)
sys.stdin.read()  # until all are there
arrays = query_key_value(rows=40)
assert_right(scaled_dot_product_attention(*arrays), *arrays)
"""


def test_four_processes_find_nothing_built(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", COLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, CACHE_DIR: str(tmp_path / "cache")},
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
    ends = [process.communicate(timeout=GUARD) for process in started]
    assert [process.returncode for process in started] == [0] * 4, ends
    kernels = [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".ll"]
    assert len(kernels) == 1
