"""Results and flags of every entry point: what is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlpack_arrays
import numpy as np
import pytest
from attention_cases import unit_normal

from tvm_attention import (
    InvalidTypeError,
    InvalidValueError,
    KVCache,
    MultiHeadAttention,
    attention,
    attention_varlen,
)
from tvm_attention.prepared import PreparedCall

torch = pytest.importorskip("torch")

Q = unit_normal(2, 3, 4, 16)


@pytest.fixture(autouse=True)
def no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel may be run."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a kernel was run")

    monkeypatch.setattr(PreparedCall, "run", refuse)


def cached(**options: Any) -> Any:
    cache = KVCache(2, 3, 4, 16)
    cache.append(Q, Q)
    return cache.attend(Q, **options)


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy, dlpack_arrays.Array])
def test_results_in_the_memory_of_the_mask_are_refused(wrap: Callable[[Any], Any]) -> None:
    memory = np.zeros(1000, np.float32)
    out, own = memory[400 : 400 + Q.size].reshape(Q.shape), [wrap(Q.copy()) for _ in range(3)]
    for start in (400 - 15, 400, 400 + Q.size - 1):  # up to its first element, from its last one on
        mask = wrap(memory[start : start + 16].reshape(4, 4))
        with pytest.raises(InvalidValueError, match="memory of its own, got memory of mask"):
            attention(*own, mask=mask, out=wrap(out))
    truths = wrap(memory.view(bool)[1600:1616].reshape(4, 4))
    with pytest.raises(InvalidValueError, match="memory of its own, got memory of mask"):
        attention(*own, mask=truths, out=wrap(out))
    with pytest.raises(AssertionError, match="a kernel was run"):  # next to each other
        attention(*own, mask=wrap(memory[384:400].reshape(4, 4)), out=wrap(out))


def test_caches_refuse_a_result_in_the_memory_of_the_mask() -> None:
    out = np.zeros(Q.shape, np.float32)
    with pytest.raises(InvalidValueError, match="memory of its own, got memory of mask"):
        cached(mask=out[0, 0, :, :4], out=out)


ROWS, STARTS = Q[:, 0], [0, 1, 2]
FLAGS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "attention": (lambda **o: attention(Q, Q, Q, **o), ("return_lse", "return_weights")),
    "varlen": (
        lambda **o: attention_varlen(ROWS, ROWS, ROWS, STARTS, STARTS, **o), ("return_lse",),
    ),
    "cache": (cached, ("return_lse",)),
    "layer": (
        lambda **o: MultiHeadAttention(*(np.eye(16, dtype="f4"),) * 4, num_heads=2)(Q[0], **o),
        ("return_weights",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("flag", [None, 1, 0, "no", np.zeros(2), [True]], ids=repr)
@pytest.mark.parametrize("entry", FLAGS)
def test_flags_are_true_or_false(entry: str, flag: Any) -> None:
    call, names = FLAGS[entry]
    for name in names:
        with pytest.raises(InvalidTypeError, match=f"{name}: expected True or False, got"):
            call(**{name: flag})


def test_flags_of_numpy_are_flags() -> None:
    empty = np.zeros((2, 3, 4, 0), np.float32)
    found = attention(Q, Q, empty, return_lse=np.bool_(False), return_weights=np.bool_(False))
    assert found.shape == empty.shape
    assert len(attention(Q, Q[:, :, :0], Q[:, :, :0], return_lse=np.bool_(True))) == 2
