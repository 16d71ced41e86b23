"""Repeated calls that give out: it is written, returned and looked at each time."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_cases import query_key_value
from remembered_arrays import KINDS, SHAPE, Wrap, assert_attended, kernel_for, nothing
from repeated_calls import is_remembered, no_checks
from test_functional_processes import in_threads

from tvm_attention import attention, functional

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_calls_remembered")


@pytest.mark.parametrize("wrap", KINDS)
def test_the_array_given_is_written_and_returned(wrap: Wrap) -> None:
    kernel = kernel_for()
    outs = [nothing(wrap) for _ in range(3)]
    sets = [query_key_value(), [-x for x in query_key_value()]]
    for call in (kernel, attention):
        first = nothing(wrap)
        assert call(*map(wrap, sets[0]), out=first) is first
        assert_attended(first, sets[0])
        for n in range(6):
            arrays, out = sets[n % 2], outs[n % 3]
            out[...] = np.nan
            with no_checks():
                assert call(*map(wrap, arrays), out=out) is out
            assert_attended(out, arrays)
    with no_checks():
        assert kernel(*map(wrap, sets[0]), outs[0]) is outs[0]  # not by name


@pytest.mark.parametrize("wrap", KINDS)
def test_calls_with_and_without_are_others(wrap: Wrap) -> None:
    arrays = query_key_value()
    given = [wrap(x) for x in arrays]
    out = nothing(wrap)
    for call in (lambda: attention(*given), lambda: attention(*given, out=out)):
        assert [is_remembered(call), is_remembered(call)] == [False, False]  # neither was checked
        call()
        assert is_remembered(call)
    assert attention(*given) is not out
    assert_attended(attention(*given), arrays)


OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {"mask": np.arange(12 * 20).reshape(12, 20) % 5 > 0},
    "lengths": {"kv_lengths": np.int32([20, 7])},
    "list of lengths": {"kv_lengths": [20, 7]},
    "sinks and softcap": {"sinks": np.float32([0.0, 1.0, -1.0, 2.0]), "softcap": 2.0},
    "slopes and window": {"alibi_slopes": np.float32([0.5, 0.25, 0.125, 0.1]), "window": (5, 2)},
}


@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, wrap: Wrap) -> None:
    arrays = query_key_value()
    options = OPTIONS[name]
    given = {n: wrap(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    features: dict[str, Any] = {
        "mask": "bool" if "mask" in given else None, "mask_dense": "mask" in given,
        "ragged": "kv_lengths" in given, "sinks": "sinks" in given, "softcap": "softcap" in given,
        "alibi": "alibi_slopes" in given, "window": given.get("window"),
    }  # fmt: skip
    for call in (attention, kernel_for(**features)):
        call(*map(wrap, arrays), **given, out=nothing(wrap))
        for _ in range(2):
            out = nothing(wrap)
            with no_checks():
                call(*map(wrap, arrays), **given, out=out)
            assert_attended(out, arrays, **options)


def test_lists_are_compared_by_types_and_numbers() -> None:
    arrays = query_key_value()
    attention(*arrays, kv_lengths=[20, 1])
    assert is_remembered(lambda: attention(*arrays, kv_lengths=[20, 1]))
    assert_attended(attention(*arrays, kv_lengths=[20, 7]), arrays, kv_lengths=[20, 7])
    for bad in ([20.0, 1.0], [[20, 1]], ["20", "1"], [20, None]):
        with pytest.raises((TypeError, ValueError), match="kv_lengths: expected"):
            attention(*arrays, kv_lengths=bad)


@pytest.mark.parametrize("wrap", KINDS)
def test_rows_before_heads(wrap: Wrap) -> None:
    arrays = query_key_value(keys=12)
    swapped = [wrap(x.swapaxes(1, 2).copy()) for x in arrays]
    as_heads = [wrap(x) for x in arrays]
    first = attention(*swapped, layout="bshd")
    out = nothing(wrap, (2, 12, 4, 24))
    attention(*swapped, layout="bshd", out=out)
    for _ in range(2):
        out[...] = np.nan
        with no_checks():
            again = attention(*swapped, layout="bshd")
            assert attention(*swapped, layout="bshd", out=out) is out
        for found in (first, again, out):
            assert_attended(np.asarray(found).swapaxes(1, 2), arrays)
    # The same arrays as four rows of twelve heads.
    assert not is_remembered(lambda: attention(*swapped))
    assert_attended(attention(*swapped), [np.asarray(x) for x in swapped])
    with pytest.raises(ValueError, match="out: expected shape"):
        attention(*as_heads, out=out)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda make: make(SHAPE),
    "heads inside": lambda make: make((2, 12, 4, 24)).swapaxes(1, 2),
    "padded rows": lambda make: make((2, 4, 12, 30))[..., :24],
    "every other head": lambda make: make((2, 8, 12, 24))[:, ::2],
}


@pytest.mark.parametrize("wrap", KINDS)
def test_other_strides_are_other_calls(wrap: Wrap) -> None:
    arrays = query_key_value()
    given = [wrap(x) for x in arrays]
    for repeated in (False, True, True):
        for place in LAYOUTS.values():
            out = place(lambda shape: nothing(wrap, shape))
            whole = out.base if wrap is np.asarray else out._base
            call = lambda out=out: attention(*given, out=out)  # noqa: E731
            assert is_remembered(call) == repeated
            assert call() is out
            assert_attended(out, arrays)
            if whole is not None:  # what lies between is not written
                written = int(np.isfinite(np.asarray(whole)).sum())
                assert written == int(np.prod(SHAPE))


@pytest.mark.parametrize("wrap", KINDS)
def test_arrays_are_not_kept(wrap: Wrap) -> None:
    given = [wrap(x) for x in query_key_value()]
    kernel = kernel_for()
    for _ in range(3):
        out = nothing(wrap)
        gone, references = weakref.ref(out), sys.getrefcount(out)
        attention(*given, out=out)
        kernel(*given, out)
        assert sys.getrefcount(out) == references
        del out
        assert gone() is None
    # What its memory is used for next is left alone.
    later = [nothing(wrap) for _ in range(4)]
    attention(*given, out=nothing(wrap))
    assert all(bool(np.isnan(np.asarray(x)).all()) for x in later)


@pytest.mark.parametrize("wrap", KINDS)
def test_a_hundred_thousand_calls_keep_nothing(wrap: Wrap) -> None:
    given = [wrap(x) for x in query_key_value(rows=1, keys=2)]
    out = nothing(wrap, (2, 4, 1, 24))
    watched = (*given, out, None, out.dtype, torch.empty_like, np.empty_like)
    for _ in range(3):
        attention(*given, out=out)
    gc.collect()
    before, blocks = [sys.getrefcount(x) for x in watched], sys.getallocatedblocks()
    with no_checks():
        for _ in range(100_000):
            attention(*given, out=out)
    after = [sys.getrefcount(x) for x in watched]
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 100, (before, after)
    assert abs(sys.getallocatedblocks() - blocks) < 1000


@pytest.mark.parametrize("wrap", KINDS)
def test_threads_with_arrays_of_their_own(wrap: Wrap) -> None:
    cases = [[x + number for x in query_key_value()] for number in range(3)]
    expected = [attention(*case) for case in cases]

    def work(number: int) -> None:
        arrays = [wrap(x) for x in cases[number]]
        outs = [nothing(wrap) for _ in range(2)]
        for n in range(100):
            out = outs[n % 2]
            out[...] = np.nan
            assert attention(*arrays, out=out) is out
            np.testing.assert_array_equal(np.asarray(out), expected[number])
            if n % 7 == number:
                functional.forget_calls()

    in_threads(len(cases), work)
