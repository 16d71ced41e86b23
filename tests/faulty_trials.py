"""Stand-ins for what tuning's child processes do: some do well, some crash, hang or raise."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from tvm_attention.errors import TuningError
from tvm_attention.tuning.limits import restrict

MORE_BYTES = 128 << 20


def start(_: int, niceness: int) -> None:
    """Without importing TVM, and with little memory."""
    restrict(MORE_BYTES, niceness)


def build(fate: str, *_: Any) -> str:
    """What the first argument says."""
    if fate == "crash":
        os.abort()
    if fate == "exit":
        os._exit(3)
    if fate == "hang":
        time.sleep(3600)
    if fate == "greedy":
        return f"built {len(bytes(2 * MORE_BYTES))}"
    if fate == "limits":
        return f"{os.nice(0)} {resource.getrlimit(resource.RLIMIT_CORE)[0]}"
    if fate == "wrong":
        raise TuningError("wrong result: error 1e+00")
    if fate == "bug":
        raise KeyError(fate)
    return f"built {fate}"


measure = build


def confirm(fates: list[str], *_: Any) -> str:
    """The same of several."""
    return build(fates[0])
