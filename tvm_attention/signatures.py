"""Which options make two calls one, so that the second is run as the first was."""

from __future__ import annotations

from typing import Any

from tvm_attention.small_arrays import contents

_BOUNDS = (int, type(None))


def signature(
    causal: Any, window: Any, softcap: Any, alibi_slopes: Any, sinks: Any, kv_lengths: Any
) -> tuple[Any, ...] | None:
    """The options as a key, arrays by what they hold now. None where the checks must look at them: 1.0
    equals 1 but is no bound."""
    if causal is not None and type(causal) is not str:
        return None
    if softcap is not None and type(softcap) is not float:
        return None
    if window is not None and (
        type(window) is not tuple or any(type(n) not in _BOUNDS for n in window)
    ):
        return None
    if alibi_slopes is None and sinks is None and kv_lengths is None:
        return causal, window, softcap
    small = contents(alibi_slopes, sinks, kv_lengths)
    return None if small is None else (causal, window, softcap, small)
