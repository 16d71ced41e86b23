"""How inputs may lie in memory, and that results lie in memory of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value, unit_normal
from numpy.lib.stride_tricks import as_strided

from tvm_attention import scaled_dot_product_attention
from tvm_attention.arrays import NumPyArrays, TorchTensors

torch = pytest.importorskip("torch")

Q, K, V = query_key_value()

IN_PLACE: dict[str, Callable[[Array], Array]] = {
    "dense": np.ascontiguousarray,
    "heads inside": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
    "batch inside": lambda x: x.transpose(1, 2, 0, 3).copy().transpose(2, 0, 1, 3),
    "padded rows": lambda x: np.pad(x, [(0, 0)] * 3 + [(1, 2)], constant_values=np.nan)[..., 1:-2],
    "reversed rows": lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
    "reversed heads": lambda x: x[:, ::-1].copy()[:, ::-1],
    "every other head": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "one head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one row for all": lambda x: np.broadcast_to(x[:, :, :1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), np.float32, offset=1).reshape(x.shape),
    "odd strides": lambda x: as_strided(x[:1, :, :1], strides=(28, x.strides[1], -52, 4)),
}


@pytest.mark.parametrize("layout", IN_PLACE)
def test_strides_with_a_dense_last_axis_are_read_in_place(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (NumPyArrays, TorchTensors):
        monkeypatch.delattr(kind, "dense")
    for places in ((0, 1, 2), (0,), (1,), (2,)):
        arrays = [Q, K, V]
        if layout == "odd strides":
            arrays = [x[:1, :, :1] for x in arrays]
        for place in places:
            arrays[place] = IN_PLACE[layout]((Q, K, V)[place])
        found = scaled_dot_product_attention(*arrays)
        assert_right(found, *arrays, what=str(places))
        if all(s >= 0 for x in arrays for s in x.strides) and all(
            x.flags.writeable for x in arrays
        ):
            tensor = scaled_dot_product_attention(*map(torch.from_numpy, arrays))
            np.testing.assert_array_equal(tensor.numpy(), found)


NOT_DENSE: dict[str, Callable[[Array], Array]] = {
    "last axis outside": lambda x: x.swapaxes(2, 3).copy().swapaxes(2, 3),
    "last axis skipped": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "last axis reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "last axis repeated": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "one element": lambda x: np.broadcast_to(x[:1, :1, :1, :1], x.shape),
    "fields of a record": lambda x: record(x)["rows"],
}


def record(rows: Array) -> np.ndarray:
    made = np.zeros(rows.shape[:-1], [("tag", "i1"), ("rows", "f4", rows.shape[-1:])])
    made["rows"] = rows
    return made


@pytest.mark.parametrize("layout", NOT_DENSE)
def test_other_strides_are_copied(layout: str) -> None:
    for places in ((0, 1, 2), (0,), (1,), (2,)):
        arrays = [NOT_DENSE[layout](x) if n in places else x for n, x in enumerate((Q, K, V))]
        found = scaled_dot_product_attention(*arrays)
        np.testing.assert_array_equal(
            found, scaled_dot_product_attention(*map(np.ascontiguousarray, arrays))
        )
        if layout == "last axis outside":
            tensor = scaled_dot_product_attention(*map(torch.from_numpy, arrays))
            np.testing.assert_array_equal(tensor.numpy(), found)


def test_inputs_are_never_written() -> None:
    arrays = [np.frombuffer(x.tobytes(), np.float32).reshape(x.shape) for x in (Q, K, V)]
    assert not any(x.flags.writeable for x in arrays)
    for options in ({}, {"is_causal": True}, {"scale": -0.3}):
        assert_right(
            scaled_dot_product_attention(*arrays, **options),
            *arrays,
            causal="top_left" if options.get("is_causal") else None,
            scale=options.get("scale"),
        )
    for array, original in zip(arrays, (Q, K, V), strict=True):
        np.testing.assert_array_equal(array, original)


def test_one_array_as_query_key_and_value() -> None:
    for rows in (1, 12, 40):
        x = unit_normal(2, 3, rows, 16)
        before = x.copy()
        assert_right(scaled_dot_product_attention(x, x, x), before, before, before)
        np.testing.assert_array_equal(x, before)


def test_results_are_never_shared() -> None:
    for wrap in (np.asarray, torch.from_numpy):
        arrays = [wrap(x) for x in (Q, K, V)]
        found = [scaled_dot_product_attention(*arrays) for _ in range(4)]
        everything = [np.asarray(x) for x in (*found, *arrays)]
        for n, array in enumerate(everything):
            for other in everything[n + 1 :]:
                assert not np.shares_memory(array, other)
        for other in found[1:]:
            np.testing.assert_array_equal(np.asarray(other), np.asarray(found[0]))
    one_key = scaled_dot_product_attention(Q, K[:, :, :1], V[:, :, :1])
    assert not np.shares_memory(one_key, V)
