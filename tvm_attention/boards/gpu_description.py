"""What the GPU of a board is. A process of its own asks the driver: one that has asked holds memory of the
GPU, and could not fork any more as a server does for each session."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tvm_attention.cuda.driver import driver, newest_cuda
from tvm_attention.database.shapes import TARGET_NAME, matching_text, one_line, whole_number
from tvm_attention.errors import TuningError
from tvm_attention.processes import end, process_pool
from tvm_attention.quantities import size_text
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.tuning.workers import outcome_of

_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_SECONDS = 60.0  # for a driver that wakes a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDescription:
    """``model`` as the driver names it, ``arch`` ("sm_87") its compute capability, ``cuda`` ("12.6") the
    newest that the driver serves, ``memory`` the bytes that are free."""

    model: str
    arch: str
    cuda: str
    memory: int

    def __post_init__(self) -> None:
        one_line("model", self.model)
        matching_text("cuda", self.cuda, _VERSION)
        matching_text("arch", self.arch, TARGET_NAME)
        whole_number("memory", self.memory, 0, 1 << 62)

    def __str__(self) -> str:
        return (
            f"{self.model}: compute capability {self.capability}, driver for CUDA {self.cuda}, "
            f"{size_text(self.memory)} free"
        )

    @property
    def target(self) -> HardwareTarget:
        """The GPU as hardware to tune for. Raises InvalidValueError for an architecture without schedules."""
        return replace(named_target(f"cuda-{self.arch}"), model=self.model)

    @property
    def version(self) -> tuple[int, int]:
        """``cuda`` as numbers."""
        major, _, minor = self.cuda.partition(".")
        return int(major), int(minor)

    @property
    def capability(self) -> str:
        """The compute capability as people write it, "8.7"."""
        number = self.arch.removeprefix("sm_")
        return f"{number[:-1]}.{number[-1:]}"


def gpu_of_this_machine() -> GpuDescription | None:
    """The first GPU that the driver shows this process; None without a driver. Raises TuningError where it
    has one that cannot be used."""
    if newest_cuda() is None:
        return None
    pool = process_pool(1)
    try:
        found, error = outcome_of(pool.schedule(_asked, (), timeout=_SECONDS), whole=True)
    finally:
        end(pool)
    if not isinstance(found, GpuDescription):
        raise TuningError(f"GPU: expected one that NVIDIA's driver can use, got: {error}")
    return found


def _asked() -> GpuDescription:
    known = driver()
    return GpuDescription(
        model=known.model(0),
        arch=known.arch(0),
        cuda=".".join(map(str, known.version())),
        memory=known.free_bytes(0),
    )
