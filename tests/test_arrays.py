"""Kinds of arrays: what is read of them, what is refused, what results are made of."""

from __future__ import annotations

from typing import Any

import dlpack_arrays
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.arrays import DLPackArrays, NumPyArrays, TorchTensors, is_dense, kind_of
from tvm_attention.errors import InvalidTypeError, UnsupportedError

torch = pytest.importorskip("torch")

ROWS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (-3, 1), True),
        ((2, 3), (0, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (3, -1), False),
        ((2, 3), (3, 0), False),
        ((2, 1), (3, 77), True),
        ((2, 0), (3, 77), True),
        ((2, 1), (0, 0), False),
        ((0, 2), (0, 0), True),
    ],
)
def test_what_a_kernel_reads_in_place(
    shape: tuple[int, ...], strides: tuple[int, ...], dense: bool
) -> None:
    assert is_dense(shape, strides) is dense


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (ROWS, NumPyArrays),
        (torch.zeros(2, 3), TorchTensors),
        (torch.nn.Parameter(torch.zeros(2, 3)), TorchTensors),
        (dlpack_arrays.Array(ROWS), DLPackArrays),
        ([[1.0]], None),
        (1.0, None),
        (None, None),
        ("query", None),
        (np.float32(1.0), None),
    ],
    ids=lambda x: type(x).__name__,
)
def test_kind_of(array: Any, kind: type | None) -> None:
    if kind is not None:
        assert type(kind_of(array)) is kind
        return
    with pytest.raises(InvalidTypeError, match=r"query: expected a NumPy array.*got \w+"):
        kind_of(array)


@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors(), DLPackArrays()])
def test_other_kinds_are_refused_by_name(kind: Any) -> None:
    others: list[Any] = [[[1.0]], None, 1.0]
    if not isinstance(kind, DLPackArrays):
        others += [dlpack_arrays.Array(ROWS)]
        others += [ROWS if isinstance(kind, TorchTensors) else torch.zeros(2, 3)]
    for other in others:
        with pytest.raises(InvalidTypeError, match=f"key: expected {kind.name}.*got "):
            kind.opened("key", other)


@pytest.mark.parametrize(
    "array",
    [
        ROWS,
        ROWS[::-1],
        ROWS[:, ::2],
        ROWS.transpose(2, 0, 1),
        as_strided(ROWS, (3, 4), (0, 4)),
        np.frombuffer(b"\0" * 41, np.float32, offset=1).reshape(2, 5),
    ],
    ids=["dense", "reversed", "rows skipped", "transposed", "repeated", "unaligned"],
)
def test_numpy_strides_are_in_elements(array: np.ndarray) -> None:
    kind = NumPyArrays()
    assert kind.opened("query", array) is array
    assert kind.dtype(array) == "float32"
    view = as_strided(array, kind.shape(array), tuple(4 * s for s in kind.strides(array)))
    assert kind.address(array) == kind.address(view)
    np.testing.assert_array_equal(view, array)


def test_numpy_strides_of_parts_of_an_element_are_never_read_in_place() -> None:
    record = np.zeros(4, [("tag", "i1"), ("rows", "f4", (3,))])
    record["rows"] = np.arange(12).reshape(4, 3)
    kind, field = NumPyArrays(), record["rows"]
    assert not is_dense(kind.shape(field), kind.strides(field))
    copy = kind.dense(field)
    assert kind.strides(copy) == (3, 1)
    np.testing.assert_array_equal(copy, field)


@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors()])
def test_a_dense_copy_equals_its_original(kind: Any) -> None:
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5).transpose(0, 2, 1)
    original = torch.from_numpy(array) if isinstance(kind, TorchTensors) else array
    copy = kind.dense(original)
    assert is_dense(kind.shape(copy), kind.strides(copy))
    assert kind.address(copy) != kind.address(original)
    np.testing.assert_array_equal(np.asarray(copy), array)


LIKE = {
    "dense": ROWS,
    "heads inside": ROWS.transpose(1, 0, 2),
    "last axis outside": ROWS.transpose(2, 0, 1),
    "last axis skipped": ROWS[..., ::2],
    "all repeated": np.broadcast_to(ROWS[:1, :1, :1], (2, 3, 4)),
    "last axis repeated": np.broadcast_to(ROWS[:, :, :1], (2, 3, 4)),
    "no rows": ROWS[:, :0],
}


@pytest.mark.parametrize("layout", LIKE)
@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors()])
def test_results_have_a_dense_last_axis(kind: Any, layout: str) -> None:
    like: Any = LIKE[layout]
    if isinstance(kind, TorchTensors):
        strides = tuple(s // 4 for s in like.strides)
        like = torch.from_numpy(ROWS.copy()).as_strided(like.shape, strides)
    for shape in (tuple(like.shape), (*like.shape[:-1], 7)):
        made = kind.empty(shape, like)
        assert type(kind_of(made)) is type(kind)
        assert kind.shape(made) == shape
        assert kind.dtype(made) == "float32"
        assert is_dense(shape, kind.strides(made)) or 0 in shape
        made[...] = 1.0  # writable, and each element a place of its own
        assert kind.own_kind(made, like) is made


def test_results_keep_the_layout_of_the_query() -> None:
    query = ROWS.transpose(1, 0, 2)
    assert NumPyArrays().empty(query.shape, query).strides == query.strides
    tensor = torch.from_numpy(ROWS).transpose(0, 1)
    assert TorchTensors().empty((3, 2, 4), tensor).stride() == tensor.stride()


def test_results_of_subclasses_are_plain_arrays() -> None:
    class Own(np.ndarray):
        pass

    assert type(NumPyArrays().empty((2, 3), ROWS[0, :2, :3].view(Own))) is np.ndarray
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    made = TorchTensors().empty((2, 3), parameter)
    assert type(made) is torch.Tensor
    assert not made.requires_grad


def test_torch_results_follow_the_query_and_not_the_defaults() -> None:
    query = torch.zeros(2, 3)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            for shape in ((2, 3), (2, 5)):
                made = TorchTensors().empty(shape, query)
                assert made.dtype == torch.float32
                assert made.is_cpu
    finally:
        torch.set_default_dtype(torch.float32)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(1, 3), torch.zeros(2, 3)], layout=layout)


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse CSR)")
@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: torch.zeros(2, 3, device="meta"), "meta"),
        (lambda: torch.zeros(2, 3).to_sparse(), "sparse_coo"),
        (lambda: torch.zeros(2, 3).to_sparse_csr(), "sparse_csr"),
        (lambda: nested(torch.strided), "nested"),
        (lambda: nested(torch.jagged), "nested"),
    ],
    ids=["other device", "sparse", "sparse rows", "nested", "jagged"],
)
def test_torch_tensors_elsewhere_are_refused(make: Any, got: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"value: expected a dense.*got .*{got}.*\.cpu\(\)"):
        TorchTensors().opened("value", make())


def test_torch_negations_that_are_pending_are_refused() -> None:
    pending = torch.zeros(2, 3, dtype=torch.complex64).conj().imag
    assert pending.is_neg()
    with pytest.raises(UnsupportedError, match=r"key: expected .*negation; call \.resolve_neg"):
        TorchTensors().opened("key", pending)
    TorchTensors().opened("key", pending.resolve_neg())


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_greater(ROWS, 5)
    with pytest.raises(UnsupportedError, match=r"value: expected an array without a mask, got"):
        NumPyArrays().opened("value", masked)
    with pytest.raises(UnsupportedError, match="mask"):
        DLPackArrays().opened("value", masked)
    assert NumPyArrays().opened("value", masked.filled()) is not None


def test_torch_gradients_are_refused_where_they_would_be_recorded() -> None:
    kind, tensor = TorchTensors(), torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"query requires grad.*torch\.no_grad\(\)"):
        kind.opened("query", tensor)
    with torch.no_grad():
        assert kind.opened("query", tensor) is tensor
    with torch.inference_mode():
        assert kind.opened("query", tensor) is tensor
    assert kind.opened("query", tensor.detach()).data_ptr() == tensor.data_ptr()


def test_dlpack_arrays_are_read_in_place() -> None:
    for held in (ROWS, torch.from_numpy(ROWS.copy()).transpose(0, 1)):
        array = dlpack_arrays.Array(held)
        view = DLPackArrays().opened("query", array)
        assert array.exports == 1
        np.testing.assert_array_equal(view, np.asarray(held))
        assert kind_of(held).address(held) == DLPackArrays().address(view)
    assert DLPackArrays().opened("key", ROWS) is ROWS


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (dlpack_arrays.Array(ROWS, device=(2, 0)), r"cpu memory, got DLPack device \(2, 0\)"),
        (dlpack_arrays.Array(torch.zeros(2, dtype=torch.float8_e5m2)), "read through DLPack, got"),
        (torch.zeros(2, requires_grad=True), r"got torch\.Tensor: .*gradient"),
    ],
    ids=["other device", "float8", "gradient"],
)
def test_dlpack_arrays_that_cannot_be_read_are_refused(array: Any, match: str) -> None:
    with pytest.raises(UnsupportedError, match=f"key: expected .*{match}"):
        DLPackArrays().opened("key", array)


@pytest.mark.parametrize(
    "query", [dlpack_arrays.Array(ROWS), dlpack_arrays.ArrayOfTheStandard(ROWS)]
)
def test_dlpack_results_are_made_by_the_querys_library(query: Any) -> None:
    result = np.ones((2, 3), np.float32)
    made = DLPackArrays().own_kind(result, query)
    assert type(made) is type(query)
    result[0, 0] = 7.0
    assert made.held[0, 0] == 7.0  # the same memory


def test_dlpack_results_of_a_library_without_from_dlpack_are_arrays_of_tvm() -> None:
    made = DLPackArrays().own_kind(np.ones((2, 3), np.float32), Unknown())
    assert isinstance(made, load_tvm_libraries().Tensor)
    np.testing.assert_array_equal(np.from_dlpack(made), np.ones((2, 3)))


class Unknown:
    """Of a library that has no from_dlpack: this module."""
