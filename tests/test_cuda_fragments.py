"""The emulated tensor cores (cuda_on_cpu.h) lane by lane, by the tables of fragments in the PTX manual: which
row and column each register of each lane holds (PTX ISA, multiply-accumulate by mma; ldmatrix)."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import OnCPU
from numpy.typing import NDArray

from tvm_attention.cuda.launching import parameter_types
from tvm_attention.cuda.parameters import Parameters
from tvm_attention.device_code import DeviceCode, DeviceFunction
from tvm_attention.workload import AttentionWorkload

Array = NDArray[Any]
LANES = range(32)
_KERNELS = """
extern "C" __global__ void __launch_bounds__(32, 1) multiply(T* query_ptr, T* key_ptr, float* out_ptr) {
  int lane = (int)threadIdx.x;
  uint a[4], b[2];
  memcpy(a, query_ptr + lane * 8, 16), memcpy(b, key_ptr + lane * 4, 8);
  multiply_add(out_ptr + lane * 4, a, b[0], b[1], query_ptr);
}
extern "C" __global__ void __launch_bounds__(32, 1) load(
    ushort* query_ptr, ushort* key_ptr, ushort* out_ptr) {
  int lane = (int)threadIdx.x;
  uint plain[4], transposed[4];
  load_matrices(plain, place_of(query_ptr + lane * 8));
  load_transposed(transposed, place_of(key_ptr + lane * 8));
  memcpy(out_ptr + lane * 16, plain, 16), memcpy(out_ptr + lane * 16 + 8, transposed, 16);
}
extern "C" __global__ void __launch_bounds__(32, 1) weigh(float* query_ptr, T* key_ptr, float* out_ptr) {
  int lane = threadIdx.y * 4 + threadIdx.x;
  multiply_weights<T, 2, 2, 32, 24>(out_ptr + lane * 8, query_ptr + lane * 16, key_ptr);
}
"""


def run(name: str, element: str, query: Array, key: Array, out: Array) -> Array:
    """A kernel on one warp; the three arrays stand for its parameters."""
    source = re.sub(r"\bT\b", element, _KERNELS)
    threads = (4, 8) if name == "weigh" else (32, 1)
    function = DeviceFunction(name, ("query", "key", "out"), threads, 0)
    values = {n: x.ctypes.data for n, x in zip(function.parameters, (query, key, out), strict=True)}
    types = parameter_types(AttentionWorkload(head_dim=16))
    parameters = Parameters(function.parameters, types, values)
    OnCPU(DeviceCode(source, (function,))).launch(function, 1, parameters, 0)
    return out


def a_fragment(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element i of a 16 x 16 matrix A: of mma.m16n8k16 with 16-bit numbers."""
    group, thread = lane >> 2, lane % 4
    row = group if i in (0, 1, 4, 5) else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_fragment(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element i of a 16 x 8 matrix B."""
    return (lane % 4) * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def c_fragment(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element i of a 16 x 8 matrix of sums."""
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def dealt_out(matrix: Array, place: Any, elements: int) -> Array:
    """(lane, element) of a matrix."""
    return np.array([[matrix[place(lane, i)] for i in range(elements)] for lane in LANES])


@pytest.mark.parametrize("element", ["half", "ushort"])
def test_products_of_every_lane(element: str) -> None:
    rng = np.random.default_rng(0)
    shapes = ((16, 16), (16, 8), (16, 8))
    a, b, c = (rng.integers(-99, 100, shape).astype(np.float32) for shape in shapes)

    out = dealt_out(c, c_fragment, 4)
    given = [
        stored(dealt_out(x, place, n), element)
        for x, place, n in ((a, a_fragment, 8), (b, b_fragment, 4))
    ]
    found = run("multiply", element, *given, out)
    np.testing.assert_array_equal(found, dealt_out(c + a @ b, c_fragment, 4))


def test_matrices_that_lanes_load() -> None:
    """Of four matrices of 8 x 8, lane i names row i % 8 of matrix i / 8, and gets two neighbours of row i / 4
    of each; transposed, of column i / 4."""
    numbers = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((32, 2, 4, 2), np.uint16)
    run("load", "ushort", numbers, numbers, out)
    for lane in LANES:
        group, thread = lane >> 2, lane % 4
        for matrix in range(4):
            pair = [2 * thread, 2 * thread + 1]
            assert out[lane, 0, matrix].tolist() == numbers[matrix, group, pair].tolist()
            assert out[lane, 1, matrix].tolist() == numbers[matrix, pair, group].tolist()


def stored(numbers: Array, element: str) -> Array:
    """Float32 numbers of few bits as half or as the bits of bfloat16."""
    if element == "half":
        return numbers.astype(np.float16)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("element", ["half", "ushort"])
def test_weights_are_multiplied_from_where_sums_are(element: str) -> None:
    """Weights of 16 rows and 32 keys lie in threads' registers as the sums of four products of 16 x 8 do, and
    are the first matrices of the products with values, after rounding."""
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 99, (16, 32)).astype(np.float32)
    values = np.zeros((32, 24), np.float32)  # rows of shared memory are longer than those of values
    values[:, :16] = rng.integers(-99, 100, (32, 16))
    registers = np.zeros((32, 2, 8), np.float32)  # (lane, row, key)
    for column in range(4):
        part = dealt_out(weights[:, 8 * column : 8 * column + 8], c_fragment, 4)
        registers[:, :, 2 * column : 2 * column + 2] = part.reshape(32, 2, 2)
    # Halfway between two numbers of 8 and of 11 bits: rounded to the even one.
    registers[0, 0, 0] = weights[0, 0] = 256 + 1 if element == "ushort" else 2048 + 1
    weights[0, 0] -= 1
    out = np.zeros((32, 2, 4), np.float32)
    run("weigh", element, registers, stored(values, element), out)
    expected = weights @ values[:, :16]
    for column in range(2):
        part = dealt_out(expected[:, 8 * column : 8 * column + 8], c_fragment, 4)
        np.testing.assert_array_equal(out[:, :, 2 * column : 2 * column + 2].reshape(32, 4), part)


def test_the_first_of_a_pair_is_in_the_lower_half() -> None:
    """cvt to two numbers puts its first operand into the upper half of the result; mov.b32 the first into the
    lower one."""
    header = files("tvm_attention.cuda").joinpath("tensor_cores.cuh").read_text("utf-8")
    operands = re.findall(
        r'cvt\.rn\.(?:bf16|f16)x2\.f32 %0, %(\d), %(\d);" : "=r"\(pair\) : ([^)]*\), [^)]*\))',
        header,
    )
    assert [(first, second) for first, second, _ in operands] == [("2", "1")] * 2
    assert {given for *_, given in operands} == {'"f"(x), "f"(y)'}
    assert "cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};" in header


def test_turing_takes_two_steps_of_eight() -> None:
    """mma.m16n8k8: A's registers are rows lane / 4 and 8 further at columns 2 (lane % 4) and the next, B's
    rows 2 (lane % 4) and the next at column lane / 4. The header names those of each step."""
    header = files("tvm_attention.cuda").joinpath("tensor_cores.cuh").read_text("utf-8")
    operands = r'm16n8k8\.row.*?"r"\(a\[(\d)\]\), "r"\(a\[(\d)\]\), "r"\(b(\d)\)'
    steps = re.findall(operands, header, re.DOTALL)
    assert len(steps) == 2
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 10, (16, 16)), rng.integers(-9, 10, (16, 8))
    registers = dealt_out(a, a_fragment, 8).reshape(32, 4, 2)
    columns = dealt_out(b, b_fragment, 4).reshape(32, 2, 2)
    total = np.zeros((16, 8), int)
    for first, second, column in steps:
        left, right = np.zeros((16, 8), int), np.zeros((8, 8), int)
        for lane in LANES:
            group, thread = lane >> 2, lane % 4
            pair = slice(2 * thread, 2 * thread + 2)
            left[group, pair] = registers[lane, int(first)]
            left[group + 8, pair] = registers[lane, int(second)]
            right[pair, group] = columns[lane, int(column)]
        total += left @ right
    np.testing.assert_array_equal(total, a @ b)
