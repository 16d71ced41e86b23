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

from tvm_attention.cuda.launching import Parameters, parameter_types
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
  load_matrices(plain, query_ptr + lane * 8), load_transposed(transposed, key_ptr + lane * 8);
  memcpy(out_ptr + lane * 16, plain, 16), memcpy(out_ptr + lane * 16 + 8, transposed, 16);
}
"""


def run(name: str, element: str, query: Array, key: Array, out: Array) -> Array:
    """A kernel on one warp; the three arrays stand for its parameters."""
    source = _KERNELS.replace("T*", f"{element}*").replace("T *", f"{element} *")
    function = DeviceFunction(name, ("query", "key", "out"), (32, 1), 0)
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

    def stored(numbers: Array) -> Array:
        if element == "half":
            return numbers.astype(np.float16)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16 holds such numbers, too

    out = dealt_out(c, c_fragment, 4)
    given = (stored(dealt_out(a, a_fragment, 8)), stored(dealt_out(b, b_fragment, 4)))
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
