"""Repeated calls: they skip the checks, and give what the checked call gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value
from repeated_calls import Checked, is_remembered, no_checks

from tvm_attention import functional, load, remembered, scaled_dot_product_attention
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")


Wrap = Callable[[Array], Any]
KINDS = [pytest.param(np.asarray, id="numpy"), pytest.param(torch.from_numpy, id="torch")]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    functional.forget_calls()
    yield
    functional.forget_calls()
    torch.set_num_threads(threads)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "dense": lambda x: x,
    "heads inside": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
    "padded rows": lambda x: np.pad(x, [(0, 0)] * 3 + [(0, 5)])[..., :-5],
    "two axes": lambda x: x[1, 0],
    "three axes": lambda x: x[0],
}
OPTIONS: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.1}, {"scale": 0.0}]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrap", KINDS)
def test_repeated_calls_skip_the_checks_and_agree(wrap: Wrap, layout: str) -> None:
    arrays = [LAYOUTS[layout](x) for x in query_key_value()]
    others = [LAYOUTS[layout](-x) for x in query_key_value()]
    sets = [[wrap(x) for x in these] for these in (arrays, others)]
    expected = [
        [np.asarray(scaled_dot_product_attention(*s, **o)).copy() for o in OPTIONS] for s in sets
    ]  # fmt: skip
    assert not np.array_equal(expected[0][0], expected[0][2])
    with no_checks():
        for _ in range(2):
            for these, results in zip(sets, expected, strict=True):
                for options, result in zip(OPTIONS, results, strict=True):
                    found = scaled_dot_product_attention(*these, **options)
                    assert type(found) is type(these[0])
                    np.testing.assert_array_equal(np.asarray(found), result)


QUERIES = LAYOUTS | {
    "one row for all": lambda x: np.broadcast_to(x[:, :, :1], x.shape),
    "one head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.filterwarnings("ignore:.*not writable")
@pytest.mark.parametrize("layout", QUERIES)
@pytest.mark.parametrize("wrap", KINDS)
def test_repeated_results_lie_as_the_first_did(wrap: Wrap, layout: str) -> None:
    place = LAYOUTS.get(layout, LAYOUTS["dense"])
    for columns in (24, 16):  # another shape than the query's, and the same
        q, k, v = query_key_value()
        arrays = [wrap(x) for x in (QUERIES[layout](q), place(k), place(v[..., :columns].copy()))]
        first, second = (np.asarray(scaled_dot_product_attention(*arrays)) for _ in range(2))
        assert first.strides == second.strides
        np.testing.assert_array_equal(first, second)
        if first.ndim == 4:
            assert_right(first, *(np.asarray(x) for x in arrays))


@pytest.mark.parametrize("wrap", KINDS)
def test_equal_shapes_in_other_layouts_are_other_calls(wrap: Wrap) -> None:
    q, k, v = query_key_value(rows=20)
    expected = scaled_dot_product_attention(q, k, v)
    for name in ("dense", "heads inside", "padded rows", "dense", "heads inside"):
        for place in range(3):
            arrays = [wrap(LAYOUTS[name](x) if n == place else x) for n, x in enumerate((q, k, v))]
            np.testing.assert_array_equal(
                np.asarray(scaled_dot_product_attention(*arrays)), expected
            )


@pytest.mark.parametrize("wrap", KINDS)
def test_the_number_of_threads_is_followed(wrap: Wrap) -> None:
    arrays = [wrap(x) for x in query_key_value()]
    torch.set_num_threads(2)
    expected = np.asarray(scaled_dot_product_attention(*arrays)).copy()
    for count in (1, 3):
        torch.set_num_threads(count)
        call = lambda: np.asarray(scaled_dot_product_attention(*arrays))  # noqa: E731
        assert not is_remembered(call)
        np.testing.assert_array_equal(call(), expected)
        with no_checks():  # it is remembered anew
            np.testing.assert_array_equal(call(), expected)


def test_gradients_are_looked_at_each_time() -> None:
    tensors = [torch.from_numpy(x) for x in query_key_value()]
    expected = scaled_dot_product_attention(*tensors)
    for tensor in tensors:
        tensor.requires_grad_()
        with pytest.raises(NotImplementedError, match="requires grad"):
            scaled_dot_product_attention(*tensors)
        with torch.no_grad():
            found = scaled_dot_product_attention(*tensors)
            assert torch.equal(found, expected)
            assert not found.requires_grad
        tensor.requires_grad_(False)
    with no_checks():
        assert torch.equal(scaled_dot_product_attention(*tensors), expected)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_devices_and_dtypes_are_looked_at_each_time(place: int) -> None:
    arrays: list[Any] = list(query_key_value())
    tensors = [torch.from_numpy(x) for x in arrays]
    for these in (arrays, tensors):
        scaled_dot_product_attention(*these)
    bad = [tensors[place].to("meta"), tensors[place].to_sparse(), tensors[place].double()]
    for tensor in bad:
        with pytest.raises((NotImplementedError, TypeError), match="expected"):
            scaled_dot_product_attention(*tensors[:place], tensor, *tensors[place + 1 :])
    for array in (arrays[place].astype("f8"), arrays[place].view("i4"), tensors[place]):
        with pytest.raises((NotImplementedError, TypeError), match="expected"):
            scaled_dot_product_attention(*arrays[:place], array, *arrays[place + 1 :])


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse CSR)")
def test_tensors_without_strides_are_refused_after_a_remembered_call() -> None:
    rows = torch.ones(3, 16)
    scaled_dot_product_attention(rows, rows, rows)
    nested = torch.nested.nested_tensor([rows, rows])
    for tensor in (nested, rows.to_sparse_csr()):
        with pytest.raises(NotImplementedError, match="query: expected a dense tensor"):
            scaled_dot_product_attention(tensor, tensor, tensor)


def test_results_do_not_follow_the_defaults_of_torch() -> None:
    tensors = [torch.from_numpy(x) for x in query_key_value()]
    expected = scaled_dot_product_attention(*tensors)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = scaled_dot_product_attention(*tensors)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("wrap", KINDS)
def test_calls_that_copy_are_not_remembered(wrap: Wrap) -> None:
    q, k, v = query_key_value()
    skipped = np.repeat(k, 2, axis=3)[..., ::2]
    found = scaled_dot_product_attention(*map(wrap, (q, skipped, v)))
    assert_right(np.asarray(found), q, k, v)
    assert not is_remembered(lambda: scaled_dot_product_attention(*map(wrap, (q, skipped, v))))


def test_subclasses_are_not_taken_for_plain_arrays() -> None:
    class Own(np.ndarray):
        pass

    arrays = query_key_value()
    tensors = [torch.from_numpy(x) for x in arrays]
    for these in (arrays, tensors):
        scaled_dot_product_attention(*these)
    with no_checks():
        with pytest.raises(Checked):
            scaled_dot_product_attention(*(x.view(Own) for x in arrays))
        with pytest.raises(Checked), torch.no_grad():
            scaled_dot_product_attention(*map(torch.nn.Parameter, tensors))


def test_the_memory_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_TABLES", 3)
    most = [0, 0]
    for keys in [*range(11, 18)] * 2:
        q, k, v = query_key_value(keys=keys)
        for _ in range(1 + keys % 2):
            assert_right(scaled_dot_product_attention(q, k, v), q, k, v)
        sizes = [
            len(x) for x in (functional._remembered._numpy_tables, functional._remembered._once)
        ]
        most = [max(x, y) for x, y in zip(most, sizes, strict=True)]
    assert most == [3, 3]


@pytest.mark.parametrize("wrap", KINDS)
def test_a_kernel_of_a_number_of_threads_keeps_it(wrap: Wrap) -> None:
    workload = AttentionWorkload(
        head_dim=16, value_dim=24, batch=2, query_heads=4, query_length=12, key_length=20
    )
    arrays = [wrap(x) for x in query_key_value()]
    fixed, following = load(workload, num_threads=2), load(workload)
    expected = np.asarray(fixed(*arrays)).copy()
    np.testing.assert_array_equal(np.asarray(following(*arrays)), expected)
    torch.set_num_threads(torch.get_num_threads() + 1)
    with no_checks():
        np.testing.assert_array_equal(np.asarray(fixed(*arrays)), expected)
        with pytest.raises(Checked):
            following(*arrays)
        with pytest.raises(Checked):
            fixed(*arrays, scale=0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_repeated_results_have_the_type_of_the_first(dtype: str) -> None:
    arrays = [x.astype(numpy_dtype(dtype)) for x in query_key_value()]  # of other value columns
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in query_key_value()]
    for these in (arrays, tensors):
        first, second = (scaled_dot_product_attention(*these) for _ in range(2))
        assert first.dtype == second.dtype == these[0].dtype
        assert bytes(memory_of(first)) == bytes(memory_of(second))


def memory_of(array: Any) -> Array:
    tensor = isinstance(array, torch.Tensor)
    numbers: Array = array.view(torch.int16).numpy() if tensor else array.view(np.int16)
    return numbers
