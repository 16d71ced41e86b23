"""What a cache of sequences, or a packed tensor of them, should give: each sequence alone, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near
from attention_cases import kernel_of
from attention_variants import bounds, decode_candidate, lanes_of, prefill_candidate
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.kernel import Kernel
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload

Array = NDArray[Any]


def drawn(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Array:
    """Unit-normal numbers."""
    return rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))


class Model:
    """Keys and values (heads, length, dim) of each sequence."""

    def __init__(self, sequences: int, heads: int, dim: int, value_dim: int) -> None:
        self.keys = [np.zeros((heads, 0, dim)) for _ in range(sequences)]
        self.values = [np.zeros((heads, 0, value_dim)) for _ in range(sequences)]

    @property
    def lengths(self) -> list[int]:
        return [k.shape[1] for k in self.keys]

    def append(self, key: Array, value: Array, counts: Sequence[int], which: Sequence[int]) -> None:
        """The first rows of (sequences, heads, n, dim), so many of each."""
        for n, sequence in enumerate(which):
            rows = slice(counts[n])
            for own, new in ((self.keys, key), (self.values, value)):
                own[sequence] = np.concatenate([own[sequence], new[n][:, rows]], axis=1)

    def check(
        self,
        query: Array,
        found: Array,
        lse: Array | None = None,
        *,
        which: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """``found`` (sequences, heads, n, dim) is what the first rows of the query give, and zeros beyond
        them."""
        which = range(len(self.keys)) if which is None else which
        for n, sequence in enumerate(which):
            rows = query.shape[2] if counts is None else counts[n]
            results = (found[n][:, :rows], None if lse is None else lse[n][:, :rows])
            own = dict(options)
            if np.ndim(options.get("alibi_slopes", ())) == 2:
                own["alibi_slopes"] = options["alibi_slopes"][n]
            if options.get("mask") is not None:
                shape = (len(which), *options["mask"].shape[1:])
                own["mask"] = np.broadcast_to(options["mask"], shape)[n : n + 1]
                own["mask"] = own["mask"][..., : self.lengths[sequence]]
            pair = self.keys[sequence], self.values[sequence]
            check_one(query[n][:, :rows], *pair, *results, what=f"{n} of {which}", **own)
            assert (found[n][:, rows:] == 0).all()
            assert lse is None or np.isneginf(lse[n][:, rows:]).all()


def check_one(
    query: Array,
    key: Array,
    value: Array,
    found: Array,
    lse: Array | None,
    what: str,
    **options: Any,
) -> None:
    """One sequence's result (heads, rows, dim) and log-sum-exp against float64."""
    q, k, v = (x[None] for x in (query, key, value))
    expected = reference.attended(q, k, v, **options)
    size, span = bounds(q, k, v, **options)
    what = f"{what}: {query.shape} {key.shape} {options}"
    assert_near(found[None], expected.out, str(query.dtype), span=span, size=size, what=what)
    if lse is not None:
        assert_near(lse[None], expected.lse, "float32", span=1.0, size=size, what=f"lse {what}")


def loading(name: str) -> Callable[[AttentionWorkload], Kernel]:
    """What stands for ``load`` to have one variant, of small tiles, serve all calls. Four threads: the
    tests' batches times heads are no multiple, so that split-KV has splits to merge."""

    def load(workload: AttentionWorkload) -> Kernel:
        target = detect_target()
        if name == "split_kv":
            candidate = decode_candidate(int(workload.length_class.removeprefix("decode-r")))
        else:
            dtype = workload.kv_dtype or workload.dtype
            assert workload.value_dim is not None
            candidate = prefill_candidate(name, lanes_of(target), workload.value_dim, dtype)
        return kernel_of(workload, candidate, target, 4)

    return load


def refuses(error: type[Exception], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=words):
        call()
