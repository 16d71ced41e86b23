"""How many threads a call is worth: waking another costs a microsecond, in which the caller may be done."""

from __future__ import annotations

# Where one thread was faster than two on Sapphire Rapids, by 1.1 to 1.2: tasks, one for each head or for each
# key-value head in decoding, and multiply-adds of a call.
_FEW_TASKS = 8
_FEW_OPERATIONS = 1 << 16


def worth_threads(threads: int, tasks: int, operations: int) -> int:
    """Of ``threads`` at most."""
    return 1 if tasks <= _FEW_TASKS and operations <= _FEW_OPERATIONS else threads
