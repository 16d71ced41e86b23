"""Repeated calls of attention with options: which are a call before, and which are looked at."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attention_cases import Array, query_key_value
from repeated_calls import is_remembered, no_checks

from tvm_attention import UnsupportedError, attention, functional, reference

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


SEEN_BEFORE: list[dict[str, Any]] = [
    {}, {"window": (1, 2)}, {"window": (1, -1), "softcap": 2.0}, {"causal": "bottom_right"},
    {"causal": "top_left", "window": (3, 0)}, {"softcap": 2.0}, {"scale": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("wrap", KINDS)
def test_repeated_calls_of_attention_skip_the_checks(wrap: Wrap) -> None:
    arrays = [wrap(x) for x in query_key_value()]
    expected = [np.asarray(attention(*arrays, **o)).copy() for o in SEEN_BEFORE]
    assert len({x.tobytes() for x in expected}) == len(SEEN_BEFORE)
    with no_checks():
        for options, result in zip(SEEN_BEFORE, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(attention(*arrays, **options)), result)


@pytest.mark.parametrize("wrap", KINDS)
def test_options_that_equal_others_are_looked_at(wrap: Wrap) -> None:
    """1.0 and True equal 1, an array is itself whatever becomes of it, and a list has no hash."""
    arrays = [wrap(x) for x in query_key_value()]
    attention(*arrays, window=(1, 2))
    for window in ((1.0, 2), (True, 2)):
        with pytest.raises(TypeError, match="window: expected whole numbers"):
            attention(*arrays, window=window)
    with pytest.raises(TypeError, match="causal: expected None"):
        attention(*arrays, causal=["top_left"])
    as_list = np.asarray(attention(*arrays, window=[1, 2]))
    np.testing.assert_array_equal(as_list, np.asarray(attention(*arrays, window=(1, 2))))
    for cap in (np.array(2.0), torch.tensor(2.0)):
        capped = np.asarray(attention(*arrays, softcap=cap)).copy()
        np.testing.assert_array_equal(capped, np.asarray(attention(*arrays, softcap=2.0)))
        cap[...] = 0.5
        again = np.asarray(attention(*arrays, softcap=cap))
        np.testing.assert_array_equal(again, np.asarray(attention(*arrays, softcap=0.5)))
        assert not np.array_equal(again, capped)


# Of 4 heads and 2 batch elements with 20 keys: numbers, and others in their place.
SMALL: dict[str, tuple[Any, Any]] = {
    "alibi_slopes": (np.float32([0.5, 0.25, 0.125, 0.0625]), np.float32([0.5, 0.25, 0.125, 3.0])),
    "sinks": (np.float32([0.0, 1.0, -1.0, 2.0]), np.float32([0.0, 1.0, -1.0, -np.inf])),
    "kv_lengths": (np.int32([20, 7]), np.int32([20, 1])),
}


@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize("names", [*([name] for name in SMALL), list(SMALL)], ids="+".join)
def test_small_arrays_are_compared_by_what_they_hold(wrap: Wrap, names: list[str]) -> None:
    arrays = [wrap(x) for x in query_key_value()]
    options = {name: wrap(SMALL[name][0].copy()) for name in names}

    def right(given: dict[str, Any]) -> None:
        plain = {name: np.asarray(x) for name, x in given.items()}
        expected = reference.attention(*query_key_value(), **plain)
        found = np.asarray(attention(*arrays, **given))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    right(options)
    with no_checks():
        right(options)
        right({name: wrap(SMALL[name][0].copy()) for name in names})  # other memory
    for name in names:
        options[name][...] = wrap(SMALL[name][1])
        assert not is_remembered(lambda: attention(*arrays, **options))
        right(options)
        with no_checks():
            right(options)


LSE: list[dict[str, Any]] = [
    {}, {"layout": "bshd"}, {"kv_lengths": [20, 0]}, {"mask": np.arange(20) > 3},
    {"sinks": np.float32([0.0, 1.0, -1.0, 2.0]), "causal": "bottom_right"},
]  # fmt: skip


@pytest.mark.parametrize("gives_out", [False, True])
@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize("options", LSE, ids=lambda options: "+".join(options) or "plain")
def test_the_log_sum_exp_is_written_anew(
    options: dict[str, Any], wrap: Wrap, gives_out: bool
) -> None:
    given = {n: wrap(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    given["return_lse"] = True
    plain = {n: x for n, x in options.items() if n != "layout"}
    swap = (lambda x: x.swapaxes(1, 2)) if "layout" in options else lambda x: x
    kept = []
    for n, factor in enumerate((1.0, -2.0, 0.5, 3.0)):
        arrays = [factor * x for x in query_key_value()]
        wrapped = [wrap(swap(x).copy()) for x in arrays]
        if gives_out:
            given["out"] = wrap(swap(np.empty((2, 4, 12, 24), np.float32)).copy())
        call = functools.partial(attention, *wrapped, **given)
        assert is_remembered(call) == (n > 0)
        found, lse = call()
        assert type(lse) is type(found) is type(wrapped[0])
        assert not gives_out or found is given["out"]
        kept.append((found, lse, reference.attended(*arrays, **plain)))
    for found, lse, expected in kept:  # none was written again
        np.testing.assert_allclose(swap(np.asarray(found)), expected.out, rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.asarray(lse), expected.lse, rtol=0, atol=1e-5)
    with pytest.raises(TypeError, match="return_lse: expected"):
        attention(*wrapped, **given | {"return_lse": 1})


@pytest.mark.parametrize("wrap", KINDS)
def test_no_log_sum_exp_is_kept(wrap: Wrap) -> None:
    arrays = [wrap(x) for x in query_key_value()]
    for _ in range(3):
        result = attention(*arrays, return_lse=True)
        gone = [weakref.ref(x) for x in result]
        del result
        assert [reference() for reference in gone] == [None, None]


def test_small_arrays_that_are_refused_are_so_after_a_remembered_call() -> None:
    tensors = [torch.from_numpy(x) for x in query_key_value()]
    sinks = torch.tensor([0.0, 1.0, -1.0, 2.0])
    attention(*tensors, sinks=sinks)
    for bad in (
        sinks[:3],
        sinks[None],
        sinks.to("meta"),
        sinks.to_sparse(),
        torch._neg_view(sinks),
    ):
        with pytest.raises((ValueError, UnsupportedError)):
            attention(*tensors, sinks=bad)
    with pytest.raises(UnsupportedError, match="requires grad"):
        attention(*tensors, sinks=torch.nn.Parameter(sinks))
    sinks[1] = torch.nan
    with pytest.raises(ValueError, match="sinks: expected finite"):
        attention(*tensors, sinks=sinks)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="has a tangent"):
        attention(*tensors, sinks=forward_ad.make_dual(torch.ones(4), torch.ones(4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_that_are_parameters_are_remembered_by_the_operator(dtype: Any) -> None:
    tensors = [torch.from_numpy(x) for x in query_key_value()]
    sinks = torch.nn.Parameter(torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=dtype))
    importlib.import_module("tvm_attention.torch")  # registers the operators
    operator = functools.partial(torch.ops.tvm_attention.attention, *tensors, sinks=sinks)
    with torch.no_grad():
        expected = operator()
        with no_checks():
            assert torch.equal(operator(), expected)
        sinks[0] = 5.0
        assert not is_remembered(operator)
        assert not torch.equal(operator(), expected)
