"""Packed sequences of any lengths: each is computed as if it were alone, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Guarded
from attention_variants import PREFILL
from sequence_model import Array, check_one, drawn, loading, refuses

import tvm_attention.varlen
from tvm_attention import InvalidTypeError, InvalidValueError, UnsupportedError, attention_varlen

E, EV = 32, 64
SLOPES = np.array([0.5, 0.25, 0.1, 0.0], np.float32)
SINKS = np.array([0.5, -np.inf, 3.0, -1.0], np.float32)
OPTIONS: list[dict[str, Any]] = [
    {},
    {
        "causal": "bottom_right", "window": (40, -1), "softcap": 3.0, "alibi_slopes": SLOPES,
        "sinks": SINKS, "scale": 0.3,
    },
]  # fmt: skip
# No rows first, last and between; one row; rows without keys and keys without rows; more rows than keys;
# across all tiles.
LENGTHS = ([0, 97, 1, 0, 5, 33, 40, 0], [4, 97, 1, 0, 0, 230, 7, 0])
FEW = ([0, 1, 2, 0, 2, 2, 1, 0, 0], [3, 1, 700, 0, 0, 97, 5, 0, 0])  # the last has fewer than most


def offsets(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths])


def packed(
    lengths: tuple[list[int], list[int]], heads: int = 4, kv_heads: int = 2, dtype: str = "float32"
) -> tuple[Array, Array, Array, Array, Array]:
    """query, key and value with NaN on either side, and their offsets."""
    rng = np.random.default_rng([heads, kv_heads, *lengths[0]])
    rows = [sum(n) for n in lengths]
    shapes = [(rows[0], heads, E), (rows[1], kv_heads, E), (rows[1], kv_heads, EV)]
    arrays = []
    for shape in shapes:
        array = Guarded(shape, dtype=drawn(rng, 1, dtype=dtype).dtype).array
        array[...] = drawn(rng, *shape, dtype=dtype)
        arrays.append(array)
    return (*arrays, *(offsets(n) for n in lengths))  # type: ignore[return-value]


def check(
    q: Array, k: Array, v: Array, cu_q: Array, cu_k: Array, found: Array, lse: Any, **options: Any
) -> None:
    """Every sequence's rows against those of the sequence alone."""
    assert found.shape == (len(q), q.shape[1], v.shape[2])
    for n in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        parts = [x.swapaxes(0, 1) for x in (q[rows], k[keys], v[keys], found[rows])]
        own = dict(options)
        if np.ndim(options.get("alibi_slopes", ())) == 2:
            own["alibi_slopes"] = options["alibi_slopes"][n]
        check_one(*parts, None if lse is None else lse[:, rows], what=f"sequence {n}", **own)


@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "all"))
@pytest.mark.parametrize("name", [*PREFILL, "split_kv"])
def test_every_variant(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_attention.varlen, "load", loading(name))
    arrays = packed(FEW, kv_heads=1) if name == "split_kv" else packed(LENGTHS)
    before = [x.tobytes() for x in arrays]
    whole = Guarded((len(arrays[0]), 4, EV))
    if name == "running":  # it serves no sequences of their own with masks
        options = {}
    out, lse = attention_varlen(*arrays, return_lse=True, out=whole.array, **options)
    assert lse.shape == (4, len(arrays[0]))
    assert out is whole.array
    whole.assert_untouched_outside()
    check(*arrays, out, lse, **options)
    assert [x.tobytes() for x in arrays] == before


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_groups_of_heads_and_dtypes(kv_heads: int, dtype: str) -> None:
    arrays = packed(LENGTHS, heads=8, kv_heads=kv_heads, dtype=dtype)
    options = {"causal": "bottom_right"}
    check(*arrays, attention_varlen(*arrays, **options), None, **options)


def test_top_left_and_slopes_of_each_sequence() -> None:
    arrays = packed(LENGTHS)
    slopes = np.outer(np.arange(8), SLOPES).astype(np.float32)
    options = {"causal": "top_left", "alibi_slopes": slopes}
    check(*arrays, *attention_varlen(*arrays, return_lse=True, **options), **options)


@pytest.mark.parametrize("lengths", [([5], [9]), ([0, 3], [2, 0]), ([2, 0], [0, 7])])
def test_one_sequence_and_sequences_without_keys(lengths: tuple[list[int], list[int]]) -> None:
    arrays = packed(lengths)
    check(*arrays, *attention_varlen(*arrays, return_lse=True))


@pytest.mark.parametrize("lengths", [([], []), ([0, 0], [0, 3]), ([3, 2], [0, 0])])
def test_nothing_to_compute(lengths: tuple[list[int], list[int]]) -> None:
    arrays = packed(lengths)
    check(*arrays, *attention_varlen(*arrays, return_lse=True, sinks=SINKS), sinks=SINKS)


def test_any_strides() -> None:
    arrays = packed(LENGTHS)
    q, k, v, cu_q, cu_k = arrays
    heads_first = np.ascontiguousarray(q.swapaxes(0, 1)).swapaxes(0, 1)
    reversed_rows = np.ascontiguousarray(k[::-1])[::-1]
    skipped = np.repeat(v, 2, axis=2)[..., ::2]  # not dense: copied
    found = attention_varlen(heads_first, reversed_rows, skipped, cu_q, cu_k)
    check(*arrays, found, None)
    outside = np.full((4, len(q), EV + 3), np.nan, np.float32)
    out = outside[..., :EV].swapaxes(0, 1)
    attention_varlen(q, k, v, cu_q, cu_k, out=out)
    check(*arrays, out, None)
    assert np.isnan(outside[..., EV:]).all()


def test_other_kinds() -> None:
    torch = pytest.importorskip("torch")
    from dlpack_arrays import Array as DLPackArray

    arrays = packed(LENGTHS)
    tensors = [torch.from_numpy(x.copy()) for x in arrays]
    out, lse = attention_varlen(
        *tensors[:3], *(x.to(torch.int32) for x in tensors[3:]), return_lse=True
    )
    assert isinstance(out, torch.Tensor)
    check(*arrays, out.numpy(), lse.numpy())
    found = attention_varlen(
        *(DLPackArray(x) for x in tensors[:3]), *(x.tolist() for x in tensors[3:])
    )
    assert isinstance(found, DLPackArray)
    check(*arrays, np.asarray(found.held), None)


@pytest.mark.parametrize(
    ("cu_q", "cu_k", "error", "words"),
    [
        ([1, 3], [0, 4], InvalidValueError, "cu_seqlens_q: expected 0 first"),
        ([0, 2, 1, 3], [0, 1, 2, 4], InvalidValueError, r"do not decrease, got 2 and then 1 at 2"),
        (
            [0, 3],
            [0, 3],
            InvalidValueError,
            "cu_seqlens_k: expected 4 last, the rows of key, got 3",
        ),
        ([0, 5], [0, 4], InvalidValueError, "cu_seqlens_q: expected 3 last"),
        ([0, 1, 3], [0, 4], InvalidValueError, "as many sequences each, got 2 and 1"),
        ([], [0, 4], InvalidValueError, r"cu_seqlens_q: expected shape \(sequences \+ 1,\)"),
        ([[0, 3]], [0, 4], InvalidValueError, r"got shape \(1, 2\)"),
        ([0.0, 3.0], [0, 4], InvalidTypeError, "cu_seqlens_q: expected whole numbers"),
        ("03", [0, 4], InvalidTypeError, "cu_seqlens_q"),
    ],
)
def test_offsets_that_do_not_fit(cu_q: Any, cu_k: Any, error: type[Exception], words: str) -> None:
    q, k, v, _, _ = packed(([3], [4]))
    refuses(error, words, lambda: attention_varlen(q, k, v, cu_q, cu_k))


def test_tensors_that_do_not_fit() -> None:
    q, k, v, cu_q, cu_k = packed(([3], [4]))
    calls = {
        "query: expected .rows of all": (q[None], k, v),
        "key: expected .rows of all": (q, k[0], v),
        "length: expected key and value alike": (q, k, v[:3]),
        "head dimension": (q[..., :5], k, v),
        "multiple of key heads": (q[:, :3], k, v),
    }
    for words, tensors in calls.items():
        refuses(InvalidValueError, words, lambda t=tensors: attention_varlen(*t, cu_q, cu_k))
    refuses(InvalidTypeError, "dtype", lambda: attention_varlen(q, k.astype("f2"), v, cu_q, cu_k))
    doubles = [x.astype(np.float64) for x in (q, k, v)]
    refuses(UnsupportedError, "float64", lambda: attention_varlen(*doubles, cu_q, cu_k))
    for out, words in (
        (np.empty((3, 4, EV + 1), np.float32), r"out: expected shape \(3, 4, 64\)"),
        (np.broadcast_to(np.float32(0), (3, 4, EV)), "out"),
    ):
        refuses(
            InvalidValueError, words, lambda o=out: attention_varlen(q, k, v, cu_q, cu_k, out=o)
        )
    square = packed(([4], [4]), kv_heads=4)
    into = square[2]
    refuses(InvalidValueError, "memory of value", lambda: attention_varlen(*square, out=into))
