"""From torch tensors on a GPU to a launch, rehearsed: the driver is a stand-in (cuda_driver.cc), the GPU's
memory the processor's, the kernel the one that a GPU would run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu import built, library, own_part

import tvm_attention
from tvm_attention import kernel_cache, reference, runtime
from tvm_attention.arrays import TorchCudaTensors
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda import loading
from tvm_attention.cuda.machine_code import MachineCode
from tvm_attention.device_code import DeviceCode
from tvm_attention.errors import InvalidTypeError, KernelBuildError, UnsupportedError
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

DEVICE, STREAM = 1, 4711


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    device = property(lambda self: torch.device("cuda", DEVICE))  # type: ignore[assignment]


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return torch.randn(*shape).to(dtype).as_subclass(OnGPU)


class Compiler:
    """Makes machine code for the stand-in; counts."""

    name = "the stand-in's compiler"
    major = None

    def __init__(self) -> None:
        self.calls = 0

    def machine_code(self, source: str, arch: str) -> MachineCode:
        self.calls += 1
        return MachineCode(arch, str(library(own_part(source))).encode() + b"\0", {})


@pytest.fixture(scope="module")
def stand_in() -> Any:
    text = Path(__file__).with_name("cuda_driver.cc").read_text()
    found = ctypes.CDLL(str(built(text, "driver")))
    found.stand_in_journal.restype = ctypes.c_char_p
    return found


@pytest.fixture
def machine(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Any, Compiler]]:
    """A machine with a GPU of compute capability 8.7: (its driver, its compiler)."""

    class Stream:
        cuda_stream = STREAM

    made, compiler = driving.Driver(stand_in), Compiler()
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(loading, "driver", lambda: made)
    monkeypatch.setattr(loading, "compiler", lambda: compiler)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 7))
    monkeypatch.setattr(
        TorchCudaTensors, "uploaded", lambda self, n, like: torch.from_numpy(n).as_subclass(OnGPU)
    )
    runtime.forget_kernels()
    yield stand_in, compiler
    runtime.forget_kernels()


def assert_right(found: Any, q: Any, k: Any, v: Any, **options: Any) -> None:
    assert type(found) is OnGPU
    arrays = [np.asarray(torch.Tensor.float(x).as_subclass(torch.Tensor)) for x in (q, k, v)]
    expected = reference.attention(*arrays, **options)
    error = np.abs(np.asarray(found.as_subclass(torch.Tensor).float()) - expected).max()
    assert error <= 2e-3 if q.dtype != torch.float32 else error <= 1e-5


def test_tensors_on_a_gpu_are_served_by_its_kernel_on_the_callers_stream(machine: Any) -> None:
    library, compiler = machine
    before = library.stand_in_journal().count(b"\n")
    q, k, v = on_gpu(2, 4, 9, 64), on_gpu(2, 2, 70, 64), on_gpu(2, 2, 70, 64)
    assert_right(
        tvm_attention.attention(q, k, v, causal="bottom_right"), q, k, v, causal="bottom_right"
    )
    assert_right(
        tvm_attention.attention(q, k, v, causal="bottom_right"), q, k, v, causal="bottom_right"
    )
    assert compiler.calls == 1
    launches = library.stand_in_journal().splitlines()[before:]
    assert launches == [b"device 1 stream 4711"] * 2
    assert library.stand_in_contexts() == 0  # what was current is so again


def test_decoding_and_small_arrays(machine: Any) -> None:
    q, k, v = on_gpu(2, 4, 1, 64), on_gpu(2, 2, 70, 64), on_gpu(2, 2, 70, 64)
    lengths, sinks = [70, 33], [0.5, 1.0, -2.0, 0.0]
    found = tvm_attention.attention(q, k, v, kv_lengths=lengths, sinks=sinks)
    assert_right(found, q, k, v, kv_lengths=np.array(lengths), sinks=np.array(sinks))


def test_a_graph_copies_nothing_from_the_processor(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = on_gpu(2, 4, 1, 64), on_gpu(2, 2, 70, 64), on_gpu(2, 2, 70, 64)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UnsupportedError, match="captured into a graph"):
        tvm_attention.attention(q, k, v, sinks=[0.5, 1.0, -2.0, 0.0])
    sinks = torch.tensor([0.5, 1.0, -2.0, 0.0]).as_subclass(OnGPU)
    found = tvm_attention.attention(q, k, v, sinks=sinks)
    assert_right(found, q, k, v, sinks=np.asarray(sinks.as_subclass(torch.Tensor)))


def test_a_grid_has_so_many_blocks_at_most(machine: Any) -> None:
    workload, target = AttentionWorkload(head_dim=32), named_target("cuda-sm_87")
    candidate = runtime.select(workload, target).candidate
    loaded = loading.driver().load(*loading.built(workload, target, candidate), DEVICE)
    with pytest.raises(UnsupportedError, match="split the batch"):
        loaded.launch(loaded.code.functions[0], 1 << 31, None, STREAM)


def test_kernels_are_kept_on_disk(machine: Any) -> None:
    _, compiler = machine
    q, k, v = (on_gpu(1, 2, 20, 32) for _ in range(3))
    tvm_attention.attention(q, k, v)
    runtime.forget_kernels()
    assert_right(tvm_attention.attention(q, k, v), q, k, v)
    assert compiler.calls == 1
    for path in kernel_cache.use().directory.glob("*.ll"):
        path.write_text("damaged")
    runtime.forget_kernels()
    assert_right(tvm_attention.attention(q, k, v), q, k, v)
    assert compiler.calls == 2


def test_a_mask_and_an_output_are_used_in_place(machine: Any) -> None:
    q, k, v = on_gpu(1, 2, 20, 32), on_gpu(1, 2, 30, 32), on_gpu(1, 2, 30, 32)
    mask = (torch.rand(20, 30) < 0.7).as_subclass(OnGPU)
    out = on_gpu(1, 2, 20, 32)
    assert tvm_attention.attention(q, k, v, mask=mask, out=out) is out
    assert_right(out, q, k, v, mask=np.asarray(mask.as_subclass(torch.Tensor)))


def test_no_keys_with_sinks(machine: Any) -> None:
    q, k, v = on_gpu(1, 2, 3, 32), on_gpu(1, 2, 0, 32), on_gpu(1, 2, 0, 32)
    out, lse = tvm_attention.attention(q, k, v, sinks=[1.0, 2.0], return_lse=True)
    assert (out == 0).all()
    assert lse[0, :, 0].tolist() == [1.0, 2.0]


def test_tensors_in_two_places_are_refused(machine: Any) -> None:
    q, k = on_gpu(1, 2, 20, 32), on_gpu(1, 2, 30, 32)
    with pytest.raises(UnsupportedError, match="cuda:1 like the query"):
        tvm_attention.attention(q, k, torch.randn(1, 2, 30, 32))
    with pytest.raises(UnsupportedError, match="on the cpu"):
        tvm_attention.attention(torch.randn(1, 2, 20, 32), k, k)


def test_a_kernel_of_a_gpu_takes_no_arrays_of_the_processor(machine: Any) -> None:
    kernel = tvm_attention.load(AttentionWorkload(head_dim=32), "cuda-sm_87")
    x = np.zeros((1, 2, 3, 32), np.float32)
    with pytest.raises(InvalidTypeError, match="array with DLPack on a GPU"):
        kernel(x, x, x)


def test_a_kernel_of_another_compute_capability_is_refused(machine: Any) -> None:
    kernel = tvm_attention.load(AttentionWorkload(head_dim=32), "cuda-sm_80")
    q = on_gpu(1, 2, 3, 32)
    with pytest.raises(UnsupportedError, match=r"expected sm_80.*got sm_87"):
        kernel(q, q, q)


def test_a_driver_that_fails_is_named(stand_in: Any) -> None:
    made = driving.Driver(stand_in)
    with pytest.raises(
        KernelBuildError, match="cuCtxPopCurrent_v2 failed with error 201: invalid device"
    ):
        made.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def test_machine_code_of_a_newer_compiler_is_named(stand_in: Any) -> None:
    code = DeviceCode("", ())
    with pytest.raises(KernelBuildError, match=r"cuModuleLoadData.*the driver is for CUDA 13\.0"):
        driving.Driver(stand_in).load(code, b"/there/is/none\0", DEVICE)


def test_a_process_that_is_forked_has_no_driver(stand_in: Any) -> None:
    """As with the real one: the stand-in notices what would fail on a GPU alone."""
    driving.Driver(stand_in)
    child = os.fork()
    if child == 0:
        try:
            driving.Driver(stand_in)
        except KernelBuildError as error:
            os._exit("error 3" in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "_NAMES", ("libcuda_that_is_not_there.so",))
    driving.driver.cache_clear()
    with pytest.raises(UnsupportedError, match="expected NVIDIA's driver"):
        driving.driver()
    driving.driver.cache_clear()
