"""What GPUs can do at most: a product for each compute capability, after NVIDIA's data sheets.

Rates of instructions are those of the table of arithmetic throughput in the CUDA C++ Programming Guide;
clocks are boost clocks. Of tensor cores the rate of mma.sync counts, the instructions that kernels here use:
all there is up to 8.9; on 9.0, where wgmma does more, about five eighths of it; on 10.0 the same is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of the whole GPU: ``multiprocessors``, ``clock`` in Hz, ``bandwidth`` of its memory in bytes a second.
    Of a multiprocessor in a clock: ``fma`` float32 multiply-adds, ``tensor`` multiply-adds of 16-bit
    numbers summed in float32, ``special`` functions (exp2), ``shared`` bytes of shared memory, ``l2`` bytes
    from the second cache."""

    product: str
    multiprocessors: int
    clock: float
    bandwidth: float
    fma: int
    tensor: int
    special: int = 16
    shared: int = 128
    l2: int = 64

    @property
    def fma_seconds(self) -> float:
        """Of one float32 multiply-add, if all multiprocessors are busy."""
        return 1.0 / (self.multiprocessors * self.clock * self.fma)


CEILINGS = {
    "sm_75": Ceilings("Tesla T4", 40, 1.59e9, 320e9, 64, 512),
    "sm_80": Ceilings("A100 SXM 40 GB", 108, 1.41e9, 1555e9, 64, 1024),
    "sm_86": Ceilings("A10", 72, 1.695e9, 600e9, 128, 512),
    "sm_87": Ceilings("Jetson AGX Orin 64 GB", 16, 1.3e9, 204.8e9, 128, 1024),
    "sm_89": Ceilings("L4", 58, 2.04e9, 300e9, 128, 512),
    "sm_90": Ceilings("H100 SXM", 132, 1.83e9, 3350e9, 128, 1280),
    "sm_100": Ceilings("B200", 148, 1.85e9, 8000e9, 128, 1280),
}
