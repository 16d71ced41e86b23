"""What the measuring process of a board does: the trials of local tuning, on kernels that were linked
elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.boards.requests import MEASURE, Request
from tvm_attention.processes import die_with_parent
from tvm_attention.threads import provide_launch
from tvm_attention.threads.native import load_launch
from tvm_attention.tuning import trials
from tvm_attention.tuning.trials import Finalist


def start() -> None:
    """Before the first task."""
    die_with_parent()
    load_tvm_libraries()


def perform(request: Request, launch: Path, libraries: list[Path]) -> float | list[Finalist]:
    """Check and time the kernels of a request, as ``trials.measure`` or ``trials.confirm`` does."""
    _provide(launch)
    if request.task == MEASURE:
        return trials.measure(
            libraries[0], request.workload, request.candidates[0], request.threads, request.best
        )
    return trials.confirm(libraries, request.workload, list(request.candidates), request.threads)


@cache
def _provide(launch: Path) -> None:
    provide_launch(load_launch(launch))
