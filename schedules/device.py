"""What a CUDA schedule needs to know of a GPU architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceParameters:
    """Limits by compute capability, in bytes, threads and 32-bit registers.

    shared_per_block: what a launch may ask for (beyond 48 KiB, it must say so); shared, threads, blocks,
    registers: of a multiprocessor; tensor_dtypes: what its tensor cores multiply. From the tables
    of NVIDIA's CUDA Programming Guide, 5.1 Compute Capabilities; those of 7.5, 8.0, 8.6 and 9.0 agree with
    the architecture traits of its CUDA C++ Core Libraries, as does what is reserved. All have warps of
    32 threads, at most 1024 threads a block and 255 registers a thread.
    """

    shared_per_block: int
    shared: int
    threads: int
    blocks: int
    tensor_dtypes: tuple[str, ...] = ("float16", "bfloat16")
    copies: bool = True  # to shared memory, without registers, beside computing (cp.async)
    registers: int = 1 << 16
    warp: int = 32
    threads_per_block: int = 1024
    registers_per_thread: int = 255

    @property
    def reserved(self) -> int:
        """Bytes of shared memory that a multiprocessor keeps for each block: from 8.0 on, as it copies."""
        return 1 << 10 if self.copies else 0
