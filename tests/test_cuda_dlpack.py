"""Arrays of other libraries in a GPU's memory, in and out through DLPack, rehearsed on a stand-in driver."""

from __future__ import annotations

import gc
from typing import Any

import cuda_dlpack
import numpy as np
import pytest
from cuda_dlpack import Array
from test_cuda_driver import machine, stand_in

import tvm_attention
from tvm_attention import reference, runtime
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda import loading
from tvm_attention.cuda.dlpack_arrays import DLPackCudaArrays
from tvm_attention.errors import InvalidTypeError, UnsupportedError
from tvm_attention.workload import AttentionWorkload

__all__ = ["machine", "stand_in"]  # fixtures


@pytest.fixture
def library(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in driver, found by all who ask for the driver."""
    found, _ = machine
    made = loading.driver()
    monkeypatch.setattr(driving, "driver", lambda: made)
    return found


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [Array(rng.standard_normal(s).astype("float32")) for s in shapes]


def journal(library: Any, since: int = 0) -> list[str]:
    return library.stand_in_journal().decode().splitlines()[since:]


def test_arrays_go_in_and_come_out_on_the_librarys_stream(library: Any) -> None:
    q, k, v = arrays((2, 4, 9, 64), (2, 2, 70, 64), (2, 2, 70, 64))
    before = len(journal(library))
    found = tvm_attention.attention(q, k, v, causal="bottom_right", sinks=[0.5, 1.0, -2.0, 0.0])
    assert type(found) is Array
    expected = reference.attention(
        q.held, k.held, v.held, causal="bottom_right", sinks=np.array([0.5, 1.0, -2.0, 0.0])
    )
    assert np.abs(found.held - expected).max() < 1e-5
    assert q.asked == k.asked == v.asked == [cuda_dlpack.current]
    done = journal(library, before)
    assert done == [
        "allocate stream 23",  # the result
        "allocate stream 23", "copy stream 23",  # the sinks
        "device 1 stream 23",
        "free stream 23",
    ]  # fmt: skip
    allocated = library.stand_in_allocated()
    del found
    gc.collect()
    assert library.stand_in_allocated() == allocated - 1  # the receiver let go of the result


def test_a_receiver_on_another_stream_waits_for_ours(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 5, 32), (1, 2, 5, 32))
    made = cuda_dlpack.from_dlpack

    def elsewhere(array: Any) -> Any:
        monkeypatch.setattr(cuda_dlpack, "current", 99)
        return made(array)

    monkeypatch.setattr(cuda_dlpack, "from_dlpack", elsewhere)
    tvm_attention.attention(q, k, v)
    assert "stream 99 waits for 23" in journal(library)


def test_libraries_without_streams_work_on_the_default_one(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(cuda_dlpack, "cuda")
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 5, 32), (1, 2, 5, 32))
    tvm_attention.attention(q, k, v)
    assert q.asked == [1]  # DLPack's number of it
    assert "device 1 stream 0" in journal(library)
    assert "stream 23 waits for 0" in journal(library)


def test_an_output_is_written_in_place(library: Any) -> None:
    q, k, v, out = arrays((1, 2, 3, 32), (1, 2, 5, 32), (1, 2, 5, 32), (1, 2, 3, 32))
    mask = Array(np.random.default_rng(1).random((3, 5)) < 0.7)
    assert tvm_attention.attention(q, k, v, mask=mask, out=out) is out
    expected = reference.attention(q.held, k.held, v.held, mask=mask.held)
    assert np.abs(out.held - expected).max() < 1e-5


def test_no_keys(library: Any) -> None:
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 0, 32), (1, 2, 0, 32))
    out, lse = tvm_attention.attention(q, k, v, sinks=[1.0, 2.0], return_lse=True)
    assert (out.held == 0).all()
    assert lse.held[0, :, 0].tolist() == [1.0, 2.0]


def test_arrays_in_two_places_and_what_is_not_dense_are_refused(library: Any) -> None:
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 5, 32), (1, 2, 5, 32))
    with pytest.raises(UnsupportedError, match=r"key: expected an array on GPU 1 like the query"):
        tvm_attention.attention(q, Array(k.held, device=0), v)
    with pytest.raises(InvalidTypeError, match="key: expected DLPack arrays on a GPU"):
        tvm_attention.attention(q, k.held.tolist(), v)
    turned = Array(np.ascontiguousarray(k.held.swapaxes(2, 3)).swapaxes(2, 3))
    with pytest.raises(UnsupportedError, match="make it contiguous"):
        tvm_attention.attention(q, turned, v)
    with pytest.raises(UnsupportedError, match="sinks: expected an array in cpu memory"):
        tvm_attention.attention(q, k, v, sinks=Array(np.zeros(2, "float32"), device=0))
    kind = DLPackCudaArrays(q)
    with pytest.raises(UnsupportedError, match="copy it to the processor"):
        kind.numbers(kind.opened("query", q))


def test_a_loaded_kernel_takes_them(library: Any) -> None:
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 5, 32), (1, 2, 5, 32))
    found = tvm_attention.load(AttentionWorkload(head_dim=32), "cuda-sm_87")(q, k, v)
    assert np.abs(found.held - reference.attention(q.held, k.held, v.held)).max() < 1e-5
    runtime.forget_kernels()
