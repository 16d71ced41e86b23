"""The C interface of an archive (tvm_attention.h) in ctypes."""

from __future__ import annotations

import ctypes

ABI = 2  # TVA_ABI
STATUSES = (
    "OK", "NULL_POINTER", "BAD_VALUE", "BAD_STRIDE", "UNSUPPORTED", "PROCESSOR", "WORKSPACE",
    "NOT_PREPARED", "FAILED", "NO_MEMORY",
)  # fmt: skip
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "bool": 4, "int8": 5}
CAUSAL = {None: 0, "top_left": 1, "bottom_right": 2}

INT, FLOAT, ADDRESS = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


class ArchiveError(RuntimeError):
    """An archive that cannot be used, or a call that it refused; ``status`` names which of STATUSES."""

    def __init__(self, message: str, status: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Strides(ctypes.Structure):
    """tva_strides."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row")]


class Problem(ctypes.Structure):
    """tva_problem."""

    _fields_ = [
        ("abi", ctypes.c_uint32),
        *((n, INT) for n in ("dtype", "head_dim", "value_dim", "batch", "query_heads", "kv_heads")),
        *((n, INT) for n in ("query_length", "key_length", "causal")),
        *((n, Strides) for n in ("query", "key", "value", "out")),
        *((n, FLOAT) for n in ("scale", "softcap")),
        *((n, INT) for n in ("windowed", "window_left", "window_right", "mask_dtype")),
        ("mask_strides", ctypes.c_int64 * 4),
        *((n, INT) for n in ("has_alibi", "has_sinks", "has_kv_lengths", "has_sequences")),
        *((n, INT) for n in ("query_rows", "key_rows", "page_rows", "pages", "page_columns")),
        ("page_strides", ctypes.c_int64 * 2),
        ("has_lse", INT),
        ("lse", Strides),
        ("kv_dtype", INT),
        *((n, Strides) for n in ("key_scale", "value_scale")),
        ("threads", INT),
        *((n, ADDRESS) for n in ("launch", "launch_user", "target")),
    ]


class Prepared(ctypes.Structure):
    """tva_prepared."""

    _fields_ = [("opaque", ctypes.c_uint64 * 224)]


class Arrays(ctypes.Structure):
    """tva_arrays."""

    _fields_ = [
        (name, ADDRESS)
        for name in (
            "query", "key", "value", "out", "mask", "alibi_slopes", "sinks", "kv_lengths", "key_scale",
            "value_scale", "lse", "sequences", "page_table",
        )
    ]  # fmt: skip


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the signatures. Raises AttributeError for a library without the functions."""
    lib, size = library, ctypes.c_size_t
    lib.tva_abi.restype = ctypes.c_uint32
    lib.tva_last_error.restype = ctypes.c_char_p
    lib.tva_prepare.argtypes = (ctypes.POINTER(Problem), ctypes.POINTER(Prepared))
    lib.tva_workspace_bytes.argtypes = (ctypes.POINTER(Prepared),)
    lib.tva_workspace_bytes.restype = size
    lib.tva_kernel_name.argtypes = (ctypes.POINTER(Prepared),)
    lib.tva_kernel_name.restype = ctypes.c_char_p
    lib.tva_run.argtypes = (ctypes.POINTER(Prepared), ctypes.POINTER(Arrays), ADDRESS, size)
    lib.tva_pool_open.argtypes = (ctypes.c_int, ctypes.POINTER(ADDRESS))
    lib.tva_pool_close.argtypes = (ADDRESS,)
    lib.tva_pool_launch.argtypes = (ADDRESS, ctypes.c_int, ADDRESS, ADDRESS)
