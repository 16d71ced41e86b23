"""Masks: which are read in place, by which strides, and which are refused."""

from __future__ import annotations

from typing import Any

import dlpack_arrays
import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from tvm_attention.arrays import ArrayKind, DLPackArrays, NumPyArrays, TorchTensors
from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from tvm_attention.masks import Mask, opened_mask
from tvm_attention.operands import Geometry

torch = pytest.importorskip("torch")

SIZES = Geometry(4, 2, 6, 3, 5, 7, 16, 24)
WHOLE = (2, 6, 5, 7)
RNG = np.random.default_rng(0)

MASKS: dict[str, Any] = {
    "whole": RNG.random(WHOLE) < 0.5,
    "no axis": np.array(True),
    "a number": np.float32(0.5),
    "keys": RNG.random(7) < 0.5,
    "one key": np.ones(1, bool),
    "rows and keys": RNG.random((5, 7)) < 0.5,
    "rows": RNG.random((5, 1)) < 0.5,
    "heads": RNG.random((6, 1, 7)) < 0.5,
    "padding": RNG.random((2, 1, 1, 7)) < 0.5,
    "batch": RNG.random((2, 1, 1, 1)) < 0.5,
    "float": RNG.random((2, 1, 5, 7)).astype(np.float32),
    "keys outside": (RNG.random((7, 5)) < 0.5).T,
    "reversed": (RNG.random((5, 7)) < 0.5)[::-1, ::-1],
    "every second": RNG.random((2, 6, 10, 14)).astype(np.float32)[:, :, ::2, ::2],
    "broadcast": np.broadcast_to(RNG.random((2, 1, 1, 7)) < 0.5, WHOLE),
    "broadcast from one": np.broadcast_to(np.float32(0.5), WHOLE),
    "odd strides of one": as_strided(np.zeros(1, np.float32), (1, 1, 1), (444, -8, 12)),
    "unaligned": np.frombuffer(bytes(29), np.float32, offset=1).reshape(7),
}


def read(mask: Mask) -> np.ndarray:
    """What a kernel reads: by address and strides alone."""
    array = np.asarray(mask.array)
    bytes_ = tuple(array.itemsize * s for s in mask.strides)
    return as_strided(array, WHOLE, bytes_, writeable=False)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors(), DLPackArrays()])
def test_masks_of_every_shape_are_read_in_place(kind: ArrayKind, name: str) -> None:
    mask = MASKS[name]
    given = mask
    if isinstance(kind, TorchTensors):
        if any(s < 0 for s in mask.strides):
            pytest.skip("torch has no negative strides")
        given = torch.from_numpy(np.array(mask, order="K"))
    elif isinstance(kind, DLPackArrays) and isinstance(mask, np.ndarray) and mask.flags.writeable:
        given = dlpack_arrays.Array(mask)
    found = opened_mask(kind, SIZES, given, "float32")
    assert found.dtype == str(mask.dtype)
    if not isinstance(given, np.generic):
        assert kind.address(found.array) == kind.address(kind.opened("mask", given))
    np.testing.assert_array_equal(read(found), np.broadcast_to(mask, WHOLE))


@pytest.mark.parametrize(
    ("name", "strides", "per_key"),
    [
        ("whole", (210, 35, 7, 1), False),
        ("no axis", (0, 0, 0, 0), True),
        ("keys", (0, 0, 0, 1), True),
        ("one key", (0, 0, 0, 0), True),
        ("rows", (0, 0, 1, 0), False),
        ("heads", (0, 7, 0, 1), True),
        ("padding", (7, 0, 0, 1), True),
        ("keys outside", (0, 0, 1, 5), False),
        ("reversed", (0, 0, -7, -1), False),
        ("every second", (840, 140, 28, 2), False),
        ("broadcast", (7, 0, 0, 1), True),
        ("broadcast from one", (0, 0, 0, 0), True),
        ("odd strides of one", (0, 0, 0, 0), True),
    ],
)
def test_an_axis_of_one_has_stride_zero(name: str, strides: tuple[int, ...], per_key: bool) -> None:
    found = opened_mask(NumPyArrays(), SIZES, MASKS[name], "float32")
    assert found.strides == strides
    assert found.per_key is per_key


def test_expanded_tensors_are_not_copied() -> None:
    row = torch.rand(2, 1, 1, 7)
    found = opened_mask(TorchTensors(), SIZES, row.expand(WHOLE), "float32")
    assert found.strides == (7, 0, 0, 1)
    assert found.array.data_ptr() == row.data_ptr()


def test_fewer_axes_of_the_query() -> None:
    batch, rows = Geometry(3, 2, 1, 1, 5, 7, 16, 24), Geometry(2, 1, 1, 1, 5, 7, 16, 24)
    mask = RNG.random((2, 5, 7)) < 0.5
    assert opened_mask(NumPyArrays(), batch, mask, "float32").strides == (35, 0, 7, 1)
    assert opened_mask(NumPyArrays(), batch, mask[:, :1], "float32").strides == (35, 0, 0, 1)
    assert opened_mask(NumPyArrays(), rows, mask[0], "float32").strides == (0, 0, 7, 1)
    with pytest.raises(InvalidValueError, match=r"\(2, 5, 7\) \(batch, query rows, keys\), got"):
        opened_mask(NumPyArrays(), batch, mask[:, None], "float32")
    with pytest.raises(InvalidValueError, match=r"\(5, 7\) \(query rows, keys\), got \(2, 5, 7\)"):
        opened_mask(NumPyArrays(), rows, mask, "float32")


@pytest.mark.parametrize(
    ("dtype", "query_dtype", "accepted"),
    [
        ("bool", "bfloat16", True),
        ("float32", "float32", True),
        ("float32", "float16", True),
        ("float32", "bfloat16", True),
        ("float16", "float16", True),
        ("bfloat16", "bfloat16", True),
        ("float16", "float32", False),
        ("bfloat16", "float32", False),
        ("float16", "bfloat16", False),
        ("float64", "float32", False),
        ("float64", "float16", False),
    ],
)
@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors()])
def test_types(kind: ArrayKind, dtype: str, query_dtype: str, accepted: bool) -> None:
    mask: Any = torch.zeros(5, 7, dtype=getattr(torch, dtype))
    if isinstance(kind, NumPyArrays):
        mask = np.zeros((5, 7), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if accepted:
        assert opened_mask(kind, SIZES, mask, query_dtype).dtype == dtype
        return
    match = rf"mask: expected bool.*float32.*added.*got {dtype}; convert it to float32"
    with pytest.raises(InvalidTypeError, match=match) as caught:
        opened_mask(kind, SIZES, mask, query_dtype)
    assert query_dtype in str(caught.value).partition("got")[0]


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        (np.ones((5, 7), np.int64), InvalidTypeError, "got int64; convert it to bool if"),
        (np.ones((5, 7), np.uint8), InvalidTypeError, "got uint8; convert it to bool"),
        (np.ones((5, 7), complex), InvalidTypeError, "got complex128; convert it"),
        (np.ones((5, 7), object), InvalidTypeError, "got object"),
        (np.ones((5, 7), ">f4"), InvalidTypeError, "got >f4; convert it"),
        (np.ones((5, 6), bool), InvalidValueError, r"\(2, 6, 5, 7\) \(batch.*got \(5, 6\)"),
        (np.ones((7, 5), bool), InvalidValueError, r"got \(7, 5\)"),
        (np.ones((2, 7), bool), InvalidValueError, r"got \(2, 7\); .*mask\[:, None, None, :\]"),
        (np.ones((2, 3, 5, 7), bool), InvalidValueError, r"got \(2, 3, 5, 7\)"),
        (np.ones((1, 2, 6, 5, 7), bool), InvalidValueError, r"got \(1, 2, 6, 5, 7\)"),
        (np.ones((5, 0), bool), InvalidValueError, r"got \(5, 0\)"),
        (np.ma.masked_greater(np.ones((5, 7)), 2), UnsupportedError, "a masked one"),
        ([[True] * 7] * 5, InvalidTypeError, "expected NumPy arrays like the query, got .*list"),
        (True, InvalidTypeError, "expected NumPy arrays like the query, got .*bool"),
        (torch.ones(5, 7).bool(), InvalidTypeError, "expected NumPy arrays.*torch.Tensor"),
    ],
    ids=lambda x: None if isinstance(x, str) else type(x).__name__,
)
def test_what_is_refused(mask: Any, error: type[AttentionError], match: str) -> None:
    with pytest.raises(error, match=f"attn_mask: .*{match}"):
        opened_mask(NumPyArrays(), SIZES, mask, "float32", name="attn_mask")


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        (torch.ones(5, 7, device="meta"), UnsupportedError, "on the cpu, got .*meta"),
        (torch.ones(5, 7).to_sparse(), UnsupportedError, "dense tensor.*sparse"),
        (torch.ones(5, 7).requires_grad_(), UnsupportedError, "requires grad"),
        (torch.ones(5, 7, dtype=torch.complex64), InvalidTypeError, "got complex64"),
        (torch.ones(5, 7, dtype=torch.int8), InvalidTypeError, "got int8; convert it to bool"),
        (np.ones((5, 7), bool), InvalidTypeError, "expected torch tensors like the query"),
    ],
    ids=["meta", "sparse", "grad", "complex", "int", "numpy"],
)
def test_what_is_refused_of_torch(mask: Any, error: type[AttentionError], match: str) -> None:
    with pytest.raises(error, match=f"mask:? .*{match}"):
        opened_mask(TorchTensors(), SIZES, mask, "float32")


def test_masks_in_steps_of_parts_of_an_element_are_copied() -> None:
    record = np.zeros((5, 7), [("tag", "i1"), ("bias", "f4")])
    record["bias"] = np.arange(35).reshape(5, 7)
    found = opened_mask(NumPyArrays(), SIZES, record["bias"], "float32")
    np.testing.assert_array_equal(read(found), np.broadcast_to(record["bias"], WHOLE))


def test_a_mask_keeps_its_memory() -> None:
    found = opened_mask(DLPackArrays(), SIZES, dlpack_arrays.LazyArray(np.ones(7, bool)), "float32")
    others = [np.zeros(7, bool) for _ in range(50)]
    assert len(others) == 50
    assert read(found).all()
