"""Leave of the operating system to use x86's matrix unit (AMX).

Its registers are 8 KiB of state a thread: Linux (5.16 on) saves them only for processes that ask. Children
by fork have their parent's leave; a program that is executed must ask again.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

FEATURES = frozenset({"amx-tile", "amx-bf16", "amx-int8", "amx-fp16"})
INSTRUCTION = "llvm.x86.ldtilecfg"  # in the LLVM IR of a kernel that uses it

_ARCH_PRCTL = 158  # system call number on x86-64
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


@cache
def permitted() -> bool:
    """Whether this process may use the matrix unit; asks the first time. It costs nothing until a thread
    does use it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
    return bool(call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)
