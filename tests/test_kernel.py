"""Kernels: where results are written, which outputs are refused, what a kernel says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dlpack_arrays
import numpy as np
import pytest
from attention_cases import Array, Guarded, assert_right, inputs, kernel_of, poisoned
from numpy.lib.stride_tricks import as_strided

from tvm_attention import Kernel, load, reference
from tvm_attention.arrays import NumPyArrays
from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from tvm_attention.prepared import PreparedCall
from tvm_attention.schedules import schedules_for
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")

CASE = AttentionWorkload(
    head_dim=16, value_dim=24, query_heads=4, kv_heads=2, query_length=20, key_length=30
)
OUT = (1, 4, 20, 24)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    target = detect_target()
    schedules = schedules_for(target)
    return kernel_of(CASE, schedules.default_candidate(CASE, schedules.machine_parameters(target)))


@pytest.fixture
def no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no kernel may run."""

    def run(*arguments: Any) -> None:
        raise AssertionError("a kernel ran")

    monkeypatch.setattr(PreparedCall, "run", run)


def test_results_are_written_into_out_and_returned(kernel: Kernel) -> None:
    q, k, v = inputs(CASE)
    out = Guarded(OUT)
    assert kernel(q, k, v, out.array) is out.array
    assert_right(out.array, q, k, v)
    out.assert_untouched_outside()
    tensors = [torch.from_numpy(x) for x in (q, k, v, poisoned(OUT))]
    assert kernel(*tensors[:3], out=tensors[3]) is tensors[3]
    np.testing.assert_array_equal(tensors[3].numpy(), out.array)
    foreign = dlpack_arrays.Array(poisoned(OUT))
    assert kernel(*map(dlpack_arrays.Array, (q, k, v)), out=foreign) is foreign
    np.testing.assert_array_equal(foreign.held, out.array)


STORED: dict[str, Callable[[Array], Array]] = {
    "heads inside": lambda x: x.reshape(1, 20, 4, 24).transpose(0, 2, 1, 3),
    "padded rows": lambda x: np.full((1, 4, 20, 29), np.nan, np.float32)[..., 2:26],
    "reversed rows": lambda x: x[:, :, ::-1],
    "reversed heads": lambda x: x[:, ::-1],
    "unaligned": lambda x: np.frombuffer(bytearray(4 * x.size + 1), np.float32, offset=1).reshape(
        x.shape
    ),
}


@pytest.mark.parametrize("layout", STORED)
def test_results_are_written_in_any_layout(kernel: Kernel, layout: str) -> None:
    q, k, v = inputs(CASE)
    out = STORED[layout](poisoned(OUT))
    out[...] = np.nan
    assert kernel(q, k, v, out) is out
    assert_right(out, q, k, v)


def test_results_are_written_without_leading_axes(kernel: Kernel) -> None:
    q, k, v = (x[0, :2] for x in inputs(CASE))
    out = poisoned((2, 20, 24))
    kernel(q, k, v, out)
    assert_right(out[:, None], q[:, None], k[:, None], v[:, None])
    row = poisoned((20, 24))
    kernel(q[1], k[1], v[1], row)
    np.testing.assert_array_equal(row, out[1])


def test_outputs_with_nothing_to_compute_or_to_see(kernel: Kernel) -> None:
    q, k, v = inputs(CASE)
    out = poisoned((1, 4, 0, 24))
    assert kernel(q[:, :, :0], k, v, out) is out
    for wrap in (np.asarray, torch.from_numpy, dlpack_arrays.Array):
        out = poisoned(OUT)
        kernel(*map(wrap, (q, k[:, :, :0], v[:, :, :0])), out=wrap(out))
        np.testing.assert_array_equal(out, np.zeros(OUT))


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def with_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    return as_strided(np.zeros(9999, np.float32), shape, tuple(4 * s for s in strides))


BAD_OUTPUTS: dict[str, tuple[Any, type[AttentionError], str]] = {
    "other length": (poisoned((1, 4, 21, 24)), InvalidValueError, r"shape \(1, 4, 20, 24\), got"),
    "query's shape": (poisoned((1, 4, 20, 16)), InvalidValueError, r"got \(1, 4, 20, 16\)"),
    "axes": (poisoned((4, 20, 24)), InvalidValueError, r"got \(4, 20, 24\)"),
    "float64": (np.zeros(OUT), InvalidTypeError, "float32, got float64"),
    "float16": (np.zeros(OUT, np.float16), InvalidTypeError, "float32, got float16"),
    "byte order": (np.zeros(OUT, ">f4"), InvalidTypeError, "float32, got >f4"),
    "read-only": (read_only(poisoned(OUT)), InvalidValueError, "writable array, got a read-only"),
    "transposed": (
        poisoned((1, 4, 24, 20)).swapaxes(2, 3), InvalidValueError, r"dense last axis, got .*1, 20",
    ),
    "skipping": (poisoned((1, 4, 20, 48))[..., ::2], InvalidValueError, "dense last axis, got"),
    "backwards": (poisoned(OUT)[..., ::-1], InvalidValueError, "dense last axis, got"),
    "repeated rows": (with_strides(OUT, (0, 24, 0, 1)), InvalidValueError, "distinct elements"),
    "repeated heads": (with_strides(OUT, (0, 0, 24, 1)), InvalidValueError, "distinct elements"),
    "rows into rows": (with_strides(OUT, (0, 480, 23, 1)), InvalidValueError, "distinct elements"),
    "heads into heads": (with_strides(OUT, (0, 96, 24, 1)), InvalidValueError, "distinct elem"),
    "torch": (torch.zeros(OUT), InvalidTypeError, r"NumPy arrays like the query, got torch\.Tens"),
    "a list": ([[0.0]], InvalidTypeError, r"NumPy arrays like the query, got builtins\.list"),
}  # fmt: skip


@pytest.mark.usefixtures("no_call")
@pytest.mark.parametrize("what", BAD_OUTPUTS)
def test_outputs_that_are_refused(kernel: Kernel, what: str) -> None:
    out, error, message = BAD_OUTPUTS[what]
    with pytest.raises(error, match=f"^out: expected .*{message}"):
        kernel(*inputs(CASE), out=out)


@pytest.mark.usefixtures("no_call")
def test_outputs_of_torch_that_are_refused(kernel: Kernel) -> None:
    q, k, v = map(torch.from_numpy, inputs(CASE))
    refused = [
        (torch.zeros(OUT, requires_grad=True), UnsupportedError, " requires grad"),
        (torch.zeros(OUT, device="meta"), UnsupportedError, "got torch.strided on meta"),
        (torch.zeros(OUT, dtype=torch.bfloat16), InvalidTypeError, "got bfloat16"),
        (torch.zeros(24).expand(OUT), InvalidValueError, "distinct elements"),
        (poisoned(OUT), InvalidTypeError, r"torch tensors like the query, got numpy\.ndarray"),
    ]
    for out, error, message in refused:
        with pytest.raises(error, match=f"^out.*{message}"):
            kernel(q, k, v, out=out)
    foreign = dlpack_arrays.Array(read_only(poisoned(OUT)))
    with pytest.raises(InvalidValueError, match=r"^out: .*read-only"):
        kernel(*map(dlpack_arrays.Array, inputs(CASE)), out=foreign)


@pytest.mark.usefixtures("no_call")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy, dlpack_arrays.Array])
def test_outputs_in_the_memory_of_an_input_are_refused(
    kernel: Kernel, wrap: Callable[[Array], Any], place: int
) -> None:
    arrays = list(inputs(CASE))
    memory = np.zeros(10_000, np.float32)
    size = arrays[place].size
    out = memory[4000 : 4000 + 4 * 20 * 24].reshape(OUT)
    for shift in (1 - size, 7, 4 * 20 * 24 - 1):  # the first element, the middle, the last element
        start = 4000 + shift
        shared = memory[start : start + size].reshape(arrays[place].shape)
        for array in (shared, shared[:, :, ::-1])[: 1 if wrap is torch.from_numpy else 2]:
            arrays[place] = array
            with pytest.raises(InvalidValueError, match=r"own, got memory of (query|key|value)"):
                kernel(*map(wrap, arrays), out=wrap(out))


def test_outputs_next_to_an_input_are_written(kernel: Kernel) -> None:
    q, k, v = inputs(CASE)
    memory = np.full(q.size + 4 * 20 * 24 + v.size, np.nan, np.float32)
    before, out, after = np.split(memory, [q.size, q.size + 4 * 20 * 24])
    before[...], after[...] = q.ravel(), v.ravel()
    query, value = before.reshape(q.shape), after.reshape(v.shape)
    kernel(query, k, value, out.reshape(OUT))
    assert_right(out.reshape(OUT), q, k, v)
    np.testing.assert_array_equal(query, q)
    np.testing.assert_array_equal(value, v)


@pytest.mark.usefixtures("no_call")
def test_other_head_dimensions_than_the_kernels_are_refused(kernel: Kernel) -> None:
    q, k, v = inputs(CASE)
    for bad in ((q[..., :8], k[..., :8], v), (q, k, v[..., :16])):
        with pytest.raises(InvalidValueError, match=r"expected 16 and value 24.*got .*load one"):
            kernel(*bad)


@pytest.mark.usefixtures("no_call")
def test_more_rows_than_a_decoding_kernels_are_refused() -> None:
    case = AttentionWorkload(head_dim=16, query_heads=4, kv_heads=2, query_length=1, key_length=40)
    q, k, v = inputs(case.with_lengths(2, 40))
    with pytest.raises(
        InvalidValueError, match=r"at most 2 rows a key-value head.*got 4; load one"
    ):
        load(case)(q, k, v)


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
def test_causal_kernels_with_more_queries_and_with_more_keys(causal: str) -> None:
    case = AttentionWorkload(head_dim=16, causal=causal, query_heads=2, query_length=30)
    kernel = load(case)
    for rows, columns in ((30, 50), (50, 30), (30, 30), (33, 1)):
        q, k, v = inputs(case.with_lengths(rows, columns))
        out = poisoned((1, 2, rows, 16))
        kernel(q, k, v, out)
        assert_right(out, q, k, v, causal=causal, what=f"{rows}x{columns}")
        unseen = max(0, rows - columns) if causal == "bottom_right" else 0
        assert not out[:, :, :unseen].any()


def test_scales_of_a_kernel(kernel: Kernel) -> None:
    q, k, v = inputs(CASE)
    for scale in (0.0, -0.2, 0.2, 1e-30, 0, np.float32(0.1)):
        out = poisoned(OUT)
        kernel(q, k, v, out, scale=scale)
        assert_right(out, q, k, v, scale=float(scale))
        np.testing.assert_array_equal(kernel(q, k, v, scale=scale), out)
    assert_right(kernel(q, k, v), q, k, v)
    with pytest.raises(InvalidValueError, match=r"scale: .*got nan"):
        kernel(q, k, v, scale=float("nan"))


def test_a_kernel_reads_in_place_without_copies(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = inputs(CASE, "heads inside")
    monkeypatch.delattr(NumPyArrays, "dense")
    out = poisoned(OUT)
    kernel(q, k, v, out)
    assert_right(out, q, k, v)


def test_source_of_a_default_schedule(kernel: Kernel) -> None:
    source = kernel.source
    assert source.kind == "default"
    assert str(source) == f"default schedule ({source.candidate})"
    assert repr(kernel) == f"Kernel({source})"
    assert kernel.workload is CASE


def test_a_kernel_for_any_mask_serves_masks_of_every_layout() -> None:
    kernel = load(replace(CASE, mask="bool"))
    per_key = load(replace(CASE, mask="bool", mask_per_key=True))
    q, k, v = inputs(CASE)
    full = np.random.default_rng(4).random((20, 30)) < 0.7
    for mask in (full, np.asfortranarray(full), full[:1], full[:, :1]):
        expected = reference.attention(q, k, v, mask=mask)
        np.testing.assert_allclose(kernel(q, k, v, mask=mask), expected, atol=1e-5)
    expected = reference.attention(q, k, v, mask=full[:1])
    np.testing.assert_allclose(per_key(q, k, v, mask=full[:1]), expected, atol=1e-5)
    for narrow in (per_key, load(replace(CASE, mask="bool", mask_dense=True))):
        with pytest.raises(InvalidValueError, match=r"options: expected .*mask (per key|dense)"):
            narrow(q, k, v, mask=np.asfortranarray(full))
