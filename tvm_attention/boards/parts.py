"""The part of a board that measures, its processor or its GPU: what it is sent and what records say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.gpu_description import GpuDescription
from tvm_attention.boards.gpu_kernels import gpu_kernel
from tvm_attention.boards.linking import kernel_library, launch_library
from tvm_attention.cuda.compilers import Compiler, require_driver
from tvm_attention.errors import InvalidValueError, TuningError
from tvm_attention.export.toolchain import Toolchain
from tvm_attention.target import HardwareTarget, cut_down, named_target

ANY_GPU = "cuda"  # the target that is whatever GPU is there


@dataclass(frozen=True, slots=True)
class Part:
    """hardware: what it is. target: the same, cut down to what is tuned for. memory: free bytes of each
    memory that has to hold a workload. threads: of a measurement. build: makes a candidate's bytes, in child
    processes. launch: what runs parallel loops there, None for a GPU. cpus, cores: which processors measure
    and of what kinds, as records say it."""

    hardware: HardwareTarget
    target: HardwareTarget
    memory: tuple[int, ...]
    threads: int
    build: Callable[..., bytes]
    launch: bytes | None = None
    cpus: str = ""
    cores: dict[str, int] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.hardware.kind == "cuda"


def is_for_gpu(name: str | None) -> bool:
    """Whether a target's name means a GPU: "cuda" for the one that is there, "cuda-sm_87"."""
    return name is not None and name.strip().lower().startswith(ANY_GPU)


def processor_part(
    found: BoardDescription, name: str | None, address: str, tools: Toolchain
) -> Part:
    """A board's processor. Raises InvalidValueError for a target that it cannot run."""
    target = found.hardware if name is None else board_target(found, name, address)
    return Part(
        found.hardware, target, (found.memory,), target.cores, partial(kernel_library, toolchain=tools),
        launch_library(target, tools), found.cpus, found.cores,
    )  # fmt: skip


def gpu_part(
    found: BoardDescription, name: str, address: str, compiler: Callable[[], Compiler]
) -> Part:
    """A board's GPU. Raises TuningError where it has none, InvalidValueError for another target's name,
    KernelBuildError without a compiler on this machine whose code its driver takes."""
    gpu = gpu_of_board(found, address)
    target = gpu.target
    if name.strip().lower() != ANY_GPU and named_target(name).name != target.name:
        raise InvalidValueError(
            f"target {name}: expected {target.name}, which the GPU of the board {address} is; leave it at "
            f"'cuda', or name another board"
        )
    require_driver(compiler(), gpu.version, f"the board {address}")  # before anything takes time
    build = partial(gpu_kernel, compiler=compiler)
    return Part(target, target, (found.memory, gpu.memory), 1, build)


def gpu_of_board(found: BoardDescription, address: str) -> GpuDescription:
    """Raises TuningError where the board has none that it can use."""
    if found.gpu is None:
        why = found.gpu_problem or "NVIDIA's driver (libcuda.so.1) is not there"
        raise TuningError(
            f"board {address}: expected one with a GPU, got none: {why}; see `nvidia-smi` or "
            f"`tvm-attention serve` there"
        )
    return found.gpu


def board_target(found: BoardDescription, name: str, address: str) -> HardwareTarget:
    """A target on a board's cores and caches. Raises InvalidValueError for one that it cannot run."""
    named, board = named_target(name), found.hardware
    missing = sorted(named.features - board.features)
    if named.kind == board.kind and not missing:
        return cut_down(board, name)
    lacks = f"lacks {', '.join(missing)}" if named.kind == board.kind else f"is {board.kind}"
    raise InvalidValueError(
        f"target {named.name}: expected one that the board {address} can run, which is {board.name} and "
        f"{lacks}; leave the target out, or name another, such as {board.isa}"
    )
