"""Stand-ins for what tuning's child processes do: some do well, some crash, hang or raise."""

from __future__ import annotations

import os
import time
from typing import Any

from tvm_attention.errors import TuningError


def warm_up() -> None:
    """Instead of importing TVM."""


def build(fate: str, *_: Any) -> str:
    """What the first argument says."""
    if fate == "crash":
        os.abort()
    if fate == "exit":
        os._exit(3)
    if fate == "hang":
        time.sleep(3600)
    if fate == "wrong":
        raise TuningError("wrong result: error 1e+00")
    if fate == "bug":
        raise KeyError(fate)
    return f"built {fate}"


measure = build


def confirm(fates: list[str], *_: Any) -> str:
    """The same of several."""
    return build(fates[0])
