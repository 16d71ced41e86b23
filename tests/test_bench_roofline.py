import numpy as np
import pytest

from bench import machine_kernels
from bench.problem import aligned
from bench.roofline import READ_PEAK, Roofline, compile_kernel, vector_shape
from tvm_attention.target import detect_target, named_target


def test_multiply_add_computes_what_is_counted():
    kernel = compile_kernel(machine_kernels.multiply_add(2, 3, 4, 5), detect_target().llvm())
    out = aligned((2, 3, 4))
    kernel(0.5, 1.0, out)
    expected = 0.5
    for _ in range(5):
        expected = expected * 0.5 + 1.0
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("streams", [1, 2])
def test_read_touches_every_element(streams):
    kernel = compile_kernel(machine_kernels.read(2, streams, 2, 4), detect_target().llvm())
    data, out = aligned((2, streams, 7, 2, 4)), aligned((2, streams, 2, 4))
    data[:] = np.arange(data.size).reshape(data.shape)
    kernel(data, out)
    np.testing.assert_array_equal(out, data.sum(axis=2))


def test_ceilings_count_their_work():
    roofline = Roofline(threads=1)
    memory = aligned((100_003,))
    memory[:] = 1
    reads = roofline.read_peak(memory)
    assert reads.contender.name == READ_PEAK
    assert memory.nbytes - 4 * 1024 < reads.work <= memory.nbytes
    reads.contender.call()
    fma = roofline.fma_peak()
    lanes, chains = vector_shape(detect_target())
    assert fma.work == 2 * lanes * chains * 1_000_000
    fma.contender.call()


@pytest.mark.parametrize(
    ("name", "lanes"), [("x86-64-v2", 4), ("x86-64-v3", 8), ("x86-64-v4", 16), ("aarch64", 4)]
)
def test_vectors_fit_the_registers(name, lanes):
    assert vector_shape(named_target(name))[0] == lanes
    assert vector_shape(named_target(name))[1] >= 8
