"""The CUDA schedules: limits by compute capability, defaults to start from."""

from __future__ import annotations

import math

from tvm_attention.errors import UnsupportedError
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cuda_space import (
    FUSED,
    FUSED_SPLIT_KV,
    FUSED_TENSOR,
    MOST_LOADED,
    OVERLAP,
    build,
    decode_rows,
    design_space,
    most_copied,
    sizes_of,
)
from tvm_attention.schedules.device import DeviceParameters
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

__all__ = [
    "MACHINES",
    "build",
    "default_candidate",
    "defaults",
    "design_space",
    "machine_parameters",
    "starting_points",
]

_KIB = 1 << 10
MACHINES = {
    "sm_75": DeviceParameters(64 * _KIB, 64 * _KIB, 1024, 16, ("float16",), copies=False),  # Turing
    "sm_80": DeviceParameters(163 * _KIB, 164 * _KIB, 2048, 32),  # A100
    "sm_86": DeviceParameters(99 * _KIB, 100 * _KIB, 1536, 16),  # GeForce 30, A10
    "sm_87": DeviceParameters(163 * _KIB, 164 * _KIB, 1536, 16),  # Jetson Orin
    "sm_89": DeviceParameters(99 * _KIB, 100 * _KIB, 1536, 24),  # GeForce 40, L4
    "sm_90": DeviceParameters(227 * _KIB, 228 * _KIB, 2048, 32),  # H100, H200
    "sm_100": DeviceParameters(227 * _KIB, 228 * _KIB, 2048, 32),  # B200
}

# Tiles to start from, the largest first: (row threads, column threads, rows, keys). A thread's share of the
# scores and of the values is rows x keys and rows x columns; the larger they are, the fewer loads a product
# takes. The last ones serve head dimensions whose rows fill shared memory.
_TILES = (
    (16, 16, 4, 4), (16, 8, 4, 8), (8, 16, 8, 4), (16, 16, 4, 2), (16, 16, 2, 2), (16, 16, 2, 1),
    (8, 16, 4, 4), (8, 16, 4, 2), (8, 16, 2, 2), (16, 16, 1, 1), (8, 16, 2, 1), (16, 8, 1, 1), (8, 8, 1, 1),
    (4, 8, 1, 1),
)  # fmt: skip
# Of tensor cores: (row threads, rows, keys). A warp has eight row threads.
_TENSOR_TILES = ((64, 2, 16), (32, 2, 16), (64, 2, 8), (32, 2, 8), (16, 2, 8))
# Of split-KV, whose rows are those of the class: (column threads, keys). Wide blocks of keys are read at
# once, narrow ones leave room for more blocks of threads.
_SPLIT_KV_TILES = ((32, 2), (32, 1), (16, 2), (16, 1))
_LOADED = 8  # 16-bit numbers of a copy
# Warps of a multiprocessor to hide the latency of loads: the first tiles that leave room for so many serve.
_WARPS = (8, 4, 2, 1)


def machine_parameters(target: HardwareTarget) -> DeviceParameters:
    """The limits of the target's compute capability."""
    return MACHINES[target.arch]


def default_candidate(workload: AttentionWorkload, machine: DeviceParameters) -> Candidate:
    """What runs where no record fits. Chosen by counting loads, registers and shared memory, not measured.

    Raises UnsupportedError for a workload that no variant serves.
    """
    chosen = defaults(workload, machine)
    if chosen:
        return chosen[0]
    if not design_space(workload, machine).variants:
        raise UnsupportedError(
            f"output: expected attention or attention_and_lse on a GPU, got {workload.output!r}; the "
            f"weights are computed on the CPU"
        )
    raise UnsupportedError(
        f"head dimensions: expected those whose rows fit into {machine.shared_per_block} bytes of "
        f"shared memory, got {workload.head_dim} and value {workload.value_dim}"
    )


def defaults(workload: AttentionWorkload, machine: DeviceParameters) -> list[Candidate]:
    """The tiles to start from of each variant that serves, that of the default schedule first."""
    space, found = design_space(workload, machine), []
    for tiles in (_split_kv(workload), _tensor(workload), _fused(workload)):
        legal = [c for c in tiles if space.refusal(c) is None]
        warps = {c: _warps(workload, machine, c) for c in legal}
        found += next(([c] for least in _WARPS for c in legal if warps[c] >= least), [])
    return found


def starting_points(workload: AttentionWorkload, machine: DeviceParameters) -> list[Candidate]:
    """What a search begins with: the default schedule, then those of other variants."""
    default_candidate(workload, machine)  # raises where nothing serves
    return defaults(workload, machine)


def _fused(w: AttentionWorkload) -> list[Candidate]:
    return [c for tile in _TILES for c in _both(w, FUSED, *tile)]


def _tensor(w: AttentionWorkload) -> list[Candidate]:
    made = []
    for row_threads, rows, keys in _TENSOR_TILES:
        tile = {"row_threads": row_threads, "rows": rows, "keys": keys, "column_threads": 4}
        made += [
            Candidate.of(FUSED_TENSOR, tile | {"vector": _LOADED, OVERLAP: 1}),
            Candidate.of(FUSED_TENSOR, tile | {"vector": MOST_LOADED, OVERLAP: 0}),
        ]
    return made


def _split_kv(w: AttentionWorkload) -> list[Candidate]:
    rows = decode_rows(w)
    if rows is None:
        return []
    tiles = [(rows, across, 1, keys) for across, keys in _SPLIT_KV_TILES]
    return [c for tile in tiles for c in _both(w, FUSED_SPLIT_KV, *tile)]


def _both(
    w: AttentionWorkload, variant: str, row_threads: int, column_threads: int, rows: int, keys: int
) -> list[Candidate]:
    """The tiles with copies beside computing, then without."""
    assert w.value_dim is not None
    decisions = {
        "row_threads": row_threads,
        "column_threads": column_threads,
        "rows": rows,
        "keys": keys,
        "score_steps": math.gcd(w.head_dim, 4),
        "value_steps": math.gcd(column_threads * keys, 4),
    }
    loaded, copied = math.gcd(w.head_dim, w.value_dim, MOST_LOADED), most_copied(w, MOST_LOADED)
    ways = ({OVERLAP: 1, "vector": copied}, {OVERLAP: 0, "vector": loaded})
    return [Candidate.of(variant, decisions | way) for way in ways]


def _warps(w: AttentionWorkload, m: DeviceParameters, c: Candidate) -> int:
    """Warps of a multiprocessor that its shared memory, registers and threads have room for."""
    s = sizes_of(w, c)
    blocks = min(m.blocks, m.threads // s.threads, m.shared // (s.shared + m.reserved))
    blocks = min(blocks, m.registers // (s.registers * s.threads))
    return blocks * s.threads // m.warp
