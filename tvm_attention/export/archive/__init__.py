"""Loads an exported archive with NumPy and ctypes alone; a copy of this folder lies beside every archive.

archive = Archive.open("DIR")                  # the folder that `tvm-attention export -o DIR` wrote
out = archive.attention(query, key, value)     # (batch, heads, rows, dim) arrays
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from .calls import inputs_of, set_options, strides_of
from .files import found_archive
from .interface import (
    ABI,
    ADDRESS,
    DTYPES,
    STATUSES,
    ArchiveError,
    Arrays,
    Prepared,
    Problem,
    declare,
)  # fmt: skip

__all__ = ["Archive", "ArchiveError"]


class Archive:
    """The shared library of one architecture's archive and what its manifest says."""

    def __init__(self, manifest: dict[str, Any], path: Path) -> None:
        self.manifest = manifest
        self.path = path
        try:
            self.library = ctypes.CDLL(str(path))
            declare(self.library)
        except (OSError, AttributeError) as error:
            raise ArchiveError(f"{path}: the system cannot load it: {error}") from error
        if self.library.tva_abi() != ABI:
            raise ArchiveError(f"{path}: expected ABI {ABI}, got {self.library.tva_abi()}")
        self._pools: dict[int, int] = {}

    @classmethod
    def open(cls, folder: str | Path) -> Archive:
        """The archive of this machine's architecture in a folder that the export wrote, or of that
        architecture's own folder.

        Raises ArchiveError for a missing, truncated or foreign archive, a manifest of another schema and
        one of another architecture, with the reason.
        """
        return cls(*found_archive(Path(folder)))

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        threads: int = 1,
        target: str | None = None,
        return_lse: bool = False,
        **options: Any,
    ) -> Any:
        """softmax(scale * query key^T) value for (batch, heads, rows, dim) arrays of one dtype; with
        ``return_lse`` a tuple of it and the log-sum-exp. ``options`` are causal, window, softcap, scale,
        mask, alibi_slopes, sinks and kv_lengths, as tvm_attention.attention has them. ``target`` asks for
        one target's kernel by name.

        Raises ArchiveError with the archive's own message for what it refuses.
        """
        inputs = inputs_of(query, key, value)
        q, k, v = inputs
        out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
        arrays = dict(zip(("query", "key", "value", "out"), (*inputs, out), strict=True))
        problem = Problem(
            ABI, DTYPES[q.dtype.name], q.shape[3], v.shape[3], q.shape[0], q.shape[1], k.shape[1],
            q.shape[2], k.shape[2], 0, *(strides_of(x) for x in (q, k, v, out)),
        )  # fmt: skip
        arrays |= set_options(problem, q.shape, k.shape[2], **options)
        if return_lse:
            problem.has_lse, arrays["lse"] = 1, np.empty(q.shape[:3], np.float32)
        self.set_threads(problem, threads)
        name = None if target is None else ctypes.create_string_buffer(target.encode())
        problem.target = None if name is None else ctypes.addressof(name)
        prepared, size = self.prepare(problem)
        workspace = np.empty(max(size, 1), np.uint8)
        addresses = Arrays(**{n: x.ctypes.data for n, x in arrays.items()})
        self.run(prepared, addresses, workspace.ctypes.data, size)
        return (out, arrays["lse"]) if return_lse else out

    def kernels(self) -> list[dict[str, Any]]:
        """The kernels of the manifest."""
        return list(self.manifest["kernels"])

    def close(self) -> None:
        """Ends the threads that calls have started."""
        for pool in self._pools.values():
            self.library.tva_pool_close(pool)
        self._pools.clear()

    def set_threads(self, problem: Problem, threads: int) -> None:
        """Let a problem's call run on so many threads of a pool that is kept for its next calls."""
        problem.threads = threads
        if threads < 2:
            return
        if threads not in self._pools:
            pool = ADDRESS()
            self.check(self.library.tva_pool_open(threads, ctypes.byref(pool)))
            self._pools[threads] = pool.value or 0
        problem.launch = ctypes.cast(self.library.tva_pool_launch, ADDRESS).value
        problem.launch_user = self._pools[threads]

    def forget_threads(self) -> None:
        """For a forked child, in which the threads of its parent are not."""
        self._pools.clear()

    def prepare(self, problem: Problem) -> tuple[Prepared, int]:
        """A problem with its kernel, and the bytes of workspace it needs. Raises ArchiveError."""
        prepared = Prepared()
        self.check(self.library.tva_prepare(problem, prepared))
        return prepared, self.library.tva_workspace_bytes(prepared)

    def run(self, prepared: Prepared, arrays: Arrays, workspace: int, size: int) -> None:
        """Compute; ``workspace`` is the address of ``size`` bytes. Raises ArchiveError."""
        self.check(self.library.tva_run(prepared, arrays, workspace, size))

    def kernel_name(self, prepared: Prepared) -> str:
        """The name of the kernel that was picked, as the manifest has it; "" if none is needed."""
        return (self.library.tva_kernel_name(prepared) or b"").decode()

    def check(self, status: int) -> None:
        """Raises ArchiveError, with the library's own message, for a status other than TVA_OK."""
        if status:
            name = STATUSES[status] if status < len(STATUSES) else str(status)
            raise ArchiveError(self.library.tva_last_error().decode(), name)
