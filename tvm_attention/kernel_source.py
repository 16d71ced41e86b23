"""Where a loaded kernel's schedule came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a device that only runs archives has not what these need
    from tvm_attention.database import TuningRecord
    from tvm_attention.schedules import Candidate


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Where a kernel's schedule came from: ``record`` is None for the default schedule. ``level`` is the
    instruction-set level it is built for, where the record's is lower than the machine's."""

    candidate: Candidate
    record: TuningRecord | None
    rung: str
    reasons: tuple[str, ...]
    level: str | None = None

    @property
    def kind(self) -> str:
        """ "tuned" or "default"."""
        return "default" if self.record is None else "tuned"

    def __str__(self) -> str:
        if self.record is None:
            return f"default schedule ({self.candidate})"
        return f"tuned ({self.rung}): {self.record} ({self.candidate})"


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Where a kernel comes from that was built elsewhere: ``kernel``, scheduled for ``target``, in the
    archive of this folder."""

    folder: str
    kernel: str
    target: str

    @property
    def kind(self) -> str:
        """ "archive"."""
        return "archive"

    def __str__(self) -> str:
        return f"archive {self.folder}: {self.kernel} for {self.target}"
