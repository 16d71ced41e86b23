"""Memory that a kernel's workers share during a call, kept from call to call by each thread."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

KEPT_BYTES = 64 << 20  # a larger workspace is given back after its call
_ALIGNMENT = 64


class Workspace(threading.local):
    """One per thread: concurrent calls must not share scratch memory."""

    def __init__(self) -> None:
        self.size = 0
        self.address = 0
        self._buffer: Any = None

    def grow(self, size: int) -> tuple[int, Any]:
        """(aligned address of at least ``size`` bytes, what keeps it alive)."""
        buffer = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        address = -(-buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        if size <= KEPT_BYTES:
            self.size, self.address, self._buffer = size, address, buffer
        return address, buffer


workspace = Workspace()
