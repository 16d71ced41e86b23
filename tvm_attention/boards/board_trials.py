"""What the measuring process of a board does: the trials of local tuning, on kernels that were built
elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.boards.gpu_kernels import read_gpu_kernel
from tvm_attention.boards.requests import MEASURE, Request
from tvm_attention.processes import die_with_parent
from tvm_attention.threads import provide_launch
from tvm_attention.threads.native import load_launch
from tvm_attention.tuning import gpu_trials, trials
from tvm_attention.tuning.trials import Finalist


def start() -> None:
    """Before the first task."""
    die_with_parent()
    load_tvm_libraries()


def perform(request: Request, launch: Path, libraries: list[Path]) -> float | list[Finalist]:
    """Check and time the kernels of a request, as ``measure`` or ``confirm`` of ``trials`` does, or of
    ``gpu_trials``, by which the board's first GPU runs them."""
    if request.on_gpu:
        return _on_gpu(request, [read_gpu_kernel(path) for path in libraries])
    _provide(launch)
    if request.task == MEASURE:
        return trials.measure(
            libraries[0], request.workload, request.candidates[0], request.threads, request.best
        )
    return trials.confirm(libraries, request.workload, list(request.candidates), request.threads)


def _on_gpu(request: Request, kernels: list[gpu_trials.Built]) -> float | list[Finalist]:
    if request.task == MEASURE:
        return gpu_trials.measure(
            kernels[0], request.workload, request.candidates[0], request.threads, request.best
        )
    return gpu_trials.confirm(kernels, request.workload, request.candidates, request.threads)


@cache
def _provide(launch: Path) -> None:
    provide_launch(load_launch(launch))
