"""Repeated calls of attention with options: which are a call before, and which are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attention_cases import Array, query_key_value
from repeated_calls import no_checks

from tvm_attention import attention, functional

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
