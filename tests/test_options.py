"""Options of a call: what is accepted, the form it takes, and what the errors say."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import dlpack_arrays
import ml_dtypes
import numpy as np
import pytest

from tvm_attention.arrays import NumPyArrays, TorchTensors
from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from tvm_attention.operands import Geometry
from tvm_attention.options import Options, opened_options

torch = pytest.importorskip("torch")

SIZES = Geometry(4, 2, 6, 3, 5, 7, 16, 24)
INF, NAN = math.inf, math.nan


def opened(**options: Any) -> Options:
    return opened_options(NumPyArrays(), SIZES, query_dtype="float32", **options)


def test_nothing_asked_for() -> None:
    found = opened()
    assert found.scale == 0.25
    assert opened(scale=-2).scale == -2.0
    for name in Options.__slots__:
        assert name == "scale" or getattr(found, name) is None, name


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_causal(causal: str | None) -> None:
    assert opened(causal=causal).causal == causal


@pytest.mark.parametrize(
    ("window", "causal", "expected"),
    [
        ((2, 3), None, (2, 3)),
        ([0, 0], None, (0, 0)),
        ((2, -1), None, (2, -1)),
        ((None, 3), None, (-1, 3)),
        ((-1, None), None, None),
        ((2, 3), "top_left", (2, -1)),
        ((2, None), "bottom_right", (2, -1)),
        ((-1, 0), "bottom_right", None),
        ((np.int64(2), np.uint8(3)), None, (2, 3)),
        ((2**80, 12), None, (12, 12)),
        ((11, 2**31), None, (11, 12)),
    ],
)
def test_windows(window: Any, causal: str | None, expected: tuple[int, int] | None) -> None:
    assert opened(window=window, causal=causal).window == expected


@pytest.mark.parametrize(
    "softcap", [50.0, 50, np.float32(50), Fraction(50), np.array(50.0), torch.tensor([50.0])]
)
def test_softcaps(softcap: Any) -> None:
    found = opened(softcap=softcap).softcap
    assert type(found) is float
    assert found == 50.0


REFUSED: list[tuple[str, Any, type[AttentionError], str]] = [
    ("causal", True, InvalidTypeError, r'"top_left".*"bottom_right".*got True; name which'),
    ("causal", False, InvalidTypeError, "got False"),
    ("causal", "top-left", InvalidValueError, "got 'top-left'"),
    ("causal", ["top_left"], InvalidTypeError, "got"),
    ("window", 3, InvalidTypeError, r"a pair.*got 3; .*\(w, w\)"),
    ("window", True, InvalidTypeError, "a pair"),
    ("window", "33", InvalidTypeError, "a pair"),
    ("window", (1, 2, 3), InvalidTypeError, r"a pair.*got \(1, 2, 3\)"),
    ("window", (), InvalidTypeError, "a pair"),
    ("window", {1, 2}, InvalidTypeError, "a pair"),
    ("window", (NAN, 2), InvalidTypeError, "whole numbers.*nan"),
    ("window", (1.0, 2), InvalidTypeError, "whole numbers"),
    ("window", (2, "3"), InvalidTypeError, "whole numbers"),
    ("window", (True, 2), InvalidTypeError, "whole numbers"),
    ("window", (2, np.False_), InvalidTypeError, "whole numbers"),
    ("window", (-2, 2), InvalidValueError, r"at least 0, -1 or None.*got \(-2, 2\)"),
    ("window", (2, -(2**40)), InvalidValueError, "at least 0"),
    ("softcap", 0, InvalidValueError, r"above 0, got 0\.0; None means no cap"),
    ("softcap", -30.0, InvalidValueError, "above 0, got -30.0"),
    ("softcap", NAN, InvalidValueError, "got nan"),
    ("softcap", INF, InvalidValueError, "got inf; None means no cap"),
    ("softcap", 1e-40, InvalidValueError, "float32 number above 0, got 1e-40"),
    ("softcap", 1e39, InvalidValueError, r"got 1e\+39"),
    ("softcap", 10**400, InvalidValueError, "got inf"),
    ("softcap", True, InvalidTypeError, "a number or None, got True"),
    ("softcap", "30", InvalidTypeError, "got '30'"),
    ("softcap", 3j, InvalidTypeError, "a number or None"),
    ("softcap", [1.0, 2.0], InvalidTypeError, "a number or None"),
    ("softcap", torch.ones(2), InvalidTypeError, "a number or None"),
    ("scale", "1", InvalidTypeError, "a number or None, got '1'"),
    ("scale", NAN, InvalidValueError, "finite float32 number, got nan"),
    ("alibi_slopes", np.ones(5), InvalidValueError, r"\(6,\).*\(2, 6\).*got \(5,\)"),
    ("alibi_slopes", np.ones((6, 2)), InvalidValueError, r"got \(6, 2\)"),
    ("alibi_slopes", np.ones((1, 6)), InvalidValueError, r"got \(1, 6\)"),
    ("alibi_slopes", 0.5, InvalidValueError, r"got \(\)"),
    ("alibi_slopes", [1, 2, 3, 4, 5, NAN], InvalidValueError, "finite.*nan"),
    ("alibi_slopes", [1, 2, 3, 4, 5, 1e39], InvalidValueError, "finite float32.*inf"),
    ("alibi_slopes", np.ones(6, complex), InvalidTypeError, "numbers, got complex128"),
    ("alibi_slopes", np.ones(6, bool), InvalidTypeError, "numbers, got bool"),
    ("alibi_slopes", ["a"] * 6, InvalidTypeError, "numbers, got <U1"),
    ("alibi_slopes", [[1], [1, 2]], InvalidTypeError, "an array or a sequence of numbers, got"),
    ("alibi_slopes", torch.ones(6, device="meta"), UnsupportedError, "on the cpu, got .*meta"),
    ("alibi_slopes", torch.ones(6).requires_grad_(), UnsupportedError, "requires grad"),
    ("sinks", np.ones((2, 6)), InvalidValueError, r"\(6,\) \(query heads,\), got \(2, 6\)"),
    ("sinks", [0.0] * 3, InvalidValueError, r"got \(3,\)"),
    ("sinks", [0, 0, 0, 0, 0, NAN], InvalidValueError, "finite.*-inf for none.*nan"),
    ("sinks", [0, 0, 0, 0, 0, INF], InvalidValueError, "finite.*inf"),
    ("sinks", [0, 0, 0, 0, 0, 1e39], InvalidValueError, "float32"),
    ("sinks", np.ones(6, complex), InvalidTypeError, "numbers, got complex128"),
    ("sinks", torch.ones(6).requires_grad_(), UnsupportedError, "requires grad"),
    ("kv_lengths", [1.0, 2.0], InvalidTypeError, "whole numbers, got float64; convert.*int32"),
    ("kv_lengths", np.ones(2, bool), InvalidTypeError, "whole numbers, got bool"),
    ("kv_lengths", [NAN, 2], InvalidTypeError, "whole numbers, got float64"),
    ("kv_lengths", 3, InvalidValueError, r"\(2,\) \(batch,\), got \(\)"),
    ("kv_lengths", [3], InvalidValueError, r"\(2,\).*got \(1,\)"),
    ("kv_lengths", [[3, 4]], InvalidValueError, r"got \(1, 2\)"),
    ("kv_lengths", [], InvalidValueError, r"got \(0,\)"),
    ("kv_lengths", [3, 8], InvalidValueError, r"0 to 7, .*got \[3 8\]"),
    ("kv_lengths", [-1, 3], InvalidValueError, "0 to 7"),
    ("kv_lengths", [2**40, 3], InvalidValueError, "0 to 7"),
    ("kv_lengths", np.array([2**63, 3], np.uint64), InvalidValueError, "0 to 7"),
    ("kv_lengths", torch.tensor([3, 8]), InvalidValueError, "0 to 7"),
    ("kv_lengths", {3, 4}, InvalidTypeError, "whole numbers, got object"),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    REFUSED,
    ids=[f"{name}-{re.sub(chr(10), ' ', repr(value))[:40]}" for name, value, *_ in REFUSED],
)
def test_what_is_refused(name: str, value: Any, error: type[AttentionError], match: str) -> None:
    with pytest.raises(error, match=rf"(?s){name}:? .*{match}"):
        opened(**{name: value})


SIX = [0.5, 0.25, 0.125, -0.5, 0.0, 3.0]


@pytest.mark.parametrize(
    "given",
    [
        SIX,
        tuple(SIX),
        np.array(SIX),
        np.array(SIX, np.float16),
        np.array(SIX, ml_dtypes.bfloat16),
        np.repeat(np.array(SIX, np.float32), 2)[::2],
        torch.tensor(SIX),
        torch.tensor(SIX, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.tensor(SIX), requires_grad=False),
        [torch.tensor(x) for x in SIX],
        dlpack_arrays.Array(np.array(SIX)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_numbers_of_heads(given: Any) -> None:
    for name, shape in (("alibi_slopes", (2, 6)), ("sinks", (6,))):
        found = getattr(opened(**{name: given}), name)
        assert found.dtype == np.float32
        assert found.shape == shape
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, np.broadcast_to(SIX, shape))


def test_slopes_may_differ_between_batch_elements() -> None:
    given = np.arange(12.0).reshape(2, 6)
    found = opened(alibi_slopes=given).alibi_slopes
    np.testing.assert_array_equal(found, given)


def test_sinks_of_minus_infinity_are_none() -> None:
    found = opened(sinks=[-INF] * 6).sinks
    assert np.isneginf(found).all()


@pytest.mark.parametrize(
    "given",
    [
        [0, 7],
        np.array([0, 7], np.int64),
        np.array([0, 7], np.uint8),
        np.array([0, 9, 7, 9], np.int32)[::2],
        torch.tensor([0, 7]),
        torch.tensor([0, 7], dtype=torch.int32),
        [torch.tensor(0), torch.tensor(7)],
        dlpack_arrays.Array(np.array([0, 7])),
    ],
    ids=lambda x: type(x).__name__,
)
def test_lengths(given: Any) -> None:
    found = opened(kv_lengths=given).kv_lengths
    assert found.dtype == np.int32
    assert found.flags.c_contiguous
    assert found.tolist() == [0, 7]


def test_no_batch_has_no_lengths() -> None:
    nothing = Geometry(4, 0, 6, 3, 5, 7, 16, 24)
    for given in ([], np.zeros(0, np.int32)):
        found = opened_options(NumPyArrays(), nothing, query_dtype="float32", kv_lengths=given)
        assert found.kv_lengths.shape == (0,)


def test_what_the_caller_changes_later_does_not_matter() -> None:
    lengths, sinks, slopes = np.array([3, 4], np.int32), np.ones(6, np.float32), np.ones((2, 6))
    tensor = torch.ones(6)
    found = opened(kv_lengths=lengths, sinks=sinks, alibi_slopes=slopes.astype(np.float32))
    of_tensor = opened(sinks=tensor)
    lengths[:], sinks[:] = 0, 0
    tensor.zero_()
    assert found.kv_lengths.tolist() == [3, 4]
    assert found.sinks.tolist() == [1.0] * 6
    assert of_tensor.sinks.tolist() == [1.0] * 6


def test_parameters_under_no_grad() -> None:
    with torch.no_grad():
        found = opened_options(
            TorchTensors(), SIZES, query_dtype="float32", sinks=torch.nn.Parameter(torch.ones(6))
        )
    assert found.sinks.tolist() == [1.0] * 6
