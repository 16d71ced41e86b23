"""Faults written into CUDA kernels: each makes a check fail, by wrong numbers or as a race that
ThreadSanitizer sees. And the kernels as they are race nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import cuda_faults
import cuda_on_cpu
import pytest
from cuda_on_cpu import ORDERS, UnderThreadSanitizer, code_of
from test_cuda_kernels import FUSED, SEVERAL_WARPS, Array, check, tensors

from tvm_attention.device_code import DeviceCode
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload


def arrays_of(candidate: Candidate) -> tuple[Array, Array, Array]:
    """Several blocks of queries and keys, the last ones a part; decoding, whole rows of the class."""
    dtype = "float16" if candidate.variant == "fused_tensor" else "float32"
    rows, keys = (2, 300) if candidate.variant == "fused_split_kv" else (41, 37)
    return tensors(rows, keys, dims=(16, 16), dtype=dtype)


def source_of(candidate: Candidate) -> str:
    """The source of the kernel that those are given to."""
    query, key, _ = arrays_of(candidate)
    workload = AttentionWorkload(
        head_dim=16, dtype=str(query.dtype), output="attention_and_lse", query_heads=4, kv_heads=2,
        query_length=query.shape[2], key_length=key.shape[2],
    )  # fmt: skip
    return code_of(workload, candidate).source


@contextmanager
def faulty(source: str) -> Iterator[Callable[[int], None]]:
    """Kernels have this source instead of their own; call what is given with the number of a fault."""
    own = cuda_on_cpu.code_of

    def other(workload: AttentionWorkload, candidate: Candidate, arch: str = "sm_80") -> DeviceCode:
        return replace(own(workload, candidate, arch), source=source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_on_cpu, "code_of", other)
        yield lambda number: patch.setattr(cuda_on_cpu, "mutation", number)


def fails(
    candidate: Candidate, order: int, arrays: tuple[Array, Array, Array] | None = None
) -> bool:
    try:
        check(candidate, *(arrays or arrays_of(candidate)), order)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("candidate", SEVERAL_WARPS, ids=str)
def test_missing_barriers_and_waits_are_noticed(candidate: Candidate) -> None:
    """On the CPU, threads between barriers run one after the other."""
    source, faults = cuda_faults.without_waits(source_of(candidate))
    assert faults == 6  # a block of keys has four or five, the sums one
    with faulty(source) as choose:
        assert not any(fails(candidate, order) for order in ORDERS)
        for fault in range(1, faults + 1):
            choose(fault)
            assert any(fails(candidate, order) for order in ORDERS), fault


@pytest.mark.parametrize("candidate", SEVERAL_WARPS, ids=str)
def test_threads_race_only_without_a_barrier(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order they run in: ThreadSanitizer knows what barriers order."""
    monkeypatch.setattr(cuda_on_cpu, "loaded", UnderThreadSanitizer)
    source, faults = cuda_faults.without_waits(source_of(candidate))
    with faulty(source) as choose:
        check(candidate, *arrays_of(candidate), order=2)
        for fault in range(1, faults + 1):
            choose(fault)
            with pytest.raises(AssertionError, match=r"race|error of nan"):
                check(candidate, *arrays_of(candidate))


@pytest.mark.parametrize("candidate", [*SEVERAL_WARPS[1::2], SEVERAL_WARPS[4]], ids=str)
def test_axes_of_threads_that_are_bound_wrong_are_noticed(candidate: Candidate) -> None:
    source, faults = cuda_faults.bound_wrong(source_of(candidate), 12)
    assert faults >= 9
    with faulty(source) as choose:
        assert not fails(candidate, 0)
        for fault in range(1, faults + 1):
            choose(fault)
            assert fails(candidate, 0), fault


# A candidate, a fault of cuda_faults.one_too_far, and rows, keys and heads of a group that show it: the last
# block of keys lacks one, decoding has fewer rows than its class.
LIMITS = [
    (c, fault, shape)
    for several, faults in (
        ((FUSED, SEVERAL_WARPS[3]), ((1, (41, 37, 2)), (2, (41, 37, 2)), (3, (41, 47, 2)))),
        ((SEVERAL_WARPS[4],), ((1, (2, 300, 2)), (3, (2, 319, 2)), (4, (3, 300, 1)))),
    )
    for c in several
    for fault, shape in faults
]  # fmt: skip


@pytest.mark.parametrize(("candidate", "fault", "shape"), LIMITS, ids=str)
def test_limits_that_are_off_by_one_are_noticed(
    candidate: Candidate, fault: int, shape: tuple[int, int, int]
) -> None:
    dtype = "float16" if candidate.variant == "fused_tensor" else "float32"
    rows, keys, group = shape
    arrays = tensors(rows, keys, dims=(16, 16), dtype=dtype, group=group)
    with faulty(cuda_faults.one_too_far(source_of(candidate))) as choose:
        assert not fails(candidate, 0, arrays)
        choose(fault)
        assert fails(candidate, 0, arrays)
