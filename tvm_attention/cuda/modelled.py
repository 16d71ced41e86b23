"""How long a candidate would take on a GPU that is not there: a model, to choose between candidates by.

A multiprocessor holds as many blocks of threads as its registers, shared memory and threads allow. A block of
keys takes it as long as the unit that is asked for most, by all of them together, or as long as one block of
threads would take alone, whichever is more: instructions and loads of one wait for each other. The times
are for ranking. No more is claimed: nothing here has been held against a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tvm_attention.cuda.ceilings import CEILINGS, Ceilings
from tvm_attention.cuda.demands import Stages, stages
from tvm_attention.cuda.launching import grids
from tvm_attention.cuda.machine_code import Resources
from tvm_attention.operands import Geometry
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.schedules.cuda_space import (
    FUSED_SPLIT_KV,
    FUSED_TENSOR,
    OVERLAP,
    sizes_of,
)
from tvm_attention.schedules.device import DeviceParameters
from tvm_attention.target import HardwareTarget
from tvm_attention.work import all_bytes
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

_DRAWN = 400  # candidates of a workload, before those near the best
_GENERATIONS, _PARENTS, _CHILDREN = 4, 12, 120
_MEMORY_CLOCKS = 600.0  # until a load from memory is there
_SHARED_CLOCKS = 30.0
_BARRIER_CLOCKS = 30.0
_LAUNCH_SECONDS = 3e-6
_APART = 0.15  # of what units do they do not do beside the busiest one
_TASK_CLOCKS = 1500.0  # of a block of threads before its first and after its last block of keys
_REGISTERS_TOGETHER = 8  # of a thread: what registers are dealt out by
_PRODUCT_CLOCKS = 4.0  # until a multiply-add's result may be used


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks of threads that a multiprocessor holds at once, and what keeps it from more."""

    blocks: int
    limit: str


def occupancy(m: DeviceParameters, threads: int, registers: int, shared: int) -> Occupancy:
    """Of blocks of so many threads, registers a thread and bytes of shared memory."""
    each = -(-registers // _REGISTERS_TOGETHER) * _REGISTERS_TOGETHER
    room = {
        "blocks": m.blocks,
        "threads": m.threads // threads,
        "registers": m.registers // (each * threads),
        "shared memory": m.shared // (shared + m.reserved),
    }
    limit = min(room, key=lambda name: room[name])
    return Occupancy(room[limit], limit)


def modelled_seconds(
    w: AttentionWorkload,
    target: HardwareTarget,
    c: Candidate,
    resources: Mapping[str, Resources] | None = None,
) -> float:
    """The modelled time of a call. ``resources`` are the compiler's, by function; without them registers
    are counted. Infinite for what does not fit."""
    machine, ceilings = cuda.machine_parameters(target), CEILINGS[target.arch]
    sizes = sizes_of(w, c)
    registers = sizes.registers
    if resources:  # of the function that streams the keys: the first one
        registers = resources[min(resources)].registers
    held = occupancy(machine, sizes.threads, registers, sizes.shared).blocks
    if held == 0:
        return math.inf
    parts, geometry = stages(w, c, ceilings), _geometry(w)
    launch = grids(w, c, geometry, ceilings.multiprocessors)
    tasks = launch.blocks[0]
    together = min(float(held), max(1.0, tasks / ceilings.multiprocessors))
    alone = _alone(w, c, parts)
    clocks = max(together * parts.whole.together(_APART), alone)
    waves = tasks / (ceilings.multiprocessors * together)
    waves = float(math.ceil(waves)) if waves < 8 else waves + 0.5
    each = _iterations(w, c, launch.splits) * clocks + _TASK_CLOCKS
    seconds = waves * each / ceilings.clock
    moved = all_bytes(w) + 2.0 * 4 * launch.workspace
    seconds = max(seconds, moved / ceilings.bandwidth) + _LAUNCH_SECONDS
    if c.variant == FUSED_SPLIT_KV:
        seconds += _merged(launch.splits, ceilings)
    return seconds


def ranked(
    w: AttentionWorkload, target: HardwareTarget, count: int, seed: int = 0
) -> list[Candidate]:
    """The candidates that the model takes for the fastest, the best first: of some drawn at random and the
    schedules to start from, and of those near the best of them."""
    machine, rng = cuda.machine_parameters(target), Random(seed)
    space = cuda.design_space(w, machine)
    drawn = (space.sample(rng) for _ in range(_DRAWN * 10))
    pool = [*cuda.starting_points(w, machine), *[c for c in drawn if c is not None][:_DRAWN]]
    times = {c: modelled_seconds(w, target, c) for c in pool}
    for _ in range(_GENERATIONS):
        parents = sorted(times, key=lambda c: times[c])[:_PARENTS]
        for _ in range(_CHILDREN):
            child = space.mutate(rng.choice(parents), rng)
            if child is not None and child not in times:
                times[child] = modelled_seconds(w, target, child)
    return sorted(times, key=lambda c: (times[c], str(c)))[:count]


def _geometry(w: AttentionWorkload) -> Geometry:
    assert w.kv_heads is not None
    assert w.value_dim is not None
    return Geometry(
        4, w.batch, w.query_heads, w.kv_heads, w.query_length, w.key_length, w.head_dim, w.value_dim
    )


def _iterations(w: AttentionWorkload, c: Candidate, splits: int) -> float:
    """Blocks of keys of a block of threads, on average."""
    s = sizes_of(w, c)
    if c.variant == FUSED_SPLIT_KV:
        return float(-(-w.key_length // (s.key_block * splits)))
    left, right = w.window or (UNBOUNDED, UNBOUNDED)
    if w.causal:
        right = 0
    offset = 0 if w.causal == "top_left" else w.key_length - w.query_length
    counts = []
    for start in range(0, w.query_length, s.query_block):
        last = min(start + s.query_block, w.query_length) - 1 + offset
        end = w.key_length if right == UNBOUNDED else min(w.key_length, last + right + 1)
        first = 0 if left == UNBOUNDED else max(0, start + offset - left)
        counts.append(max(0, -(-end // s.key_block) - first // s.key_block))
    return sum(counts) / len(counts)


def _alone(w: AttentionWorkload, c: Candidate, parts: Stages) -> float:
    """Clocks of a block of keys if a block of threads has a multiprocessor for itself."""
    s = sizes_of(w, c)
    scores = max(parts.scores.most, _chain(c, w.head_dim, c["keys"]))
    values = max(parts.values.most, _chain(c, s.key_block, s.columns))
    softmax = parts.softmax.issue * 4 / max(1.0, min(4.0, s.threads / 32 / 2)) + 4 * _SHARED_CLOCKS
    if c[OVERLAP]:
        hidden = _MEMORY_CLOCKS + parts.copies.most
        waits = max(0.0, hidden - scores - softmax) + max(0.0, hidden - values)
        return scores + softmax + values + parts.copies.issue + waits + 2 * _BARRIER_CLOCKS
    waits = 2 * _MEMORY_CLOCKS + parts.copies.most
    return scores + softmax + values + waits + 4 * _BARRIER_CLOCKS


def _chain(c: Candidate, depth: int, columns: int) -> float:
    """Clocks of a thread's products one behind the other: loads, then multiply-adds of as many sums as it
    has."""
    sums = c["rows"] * columns
    if c.variant == FUSED_TENSOR:
        matrices = max(1.0, sums / 4)  # of 16 x 8, a warp's share
        return depth / 16 * (_SHARED_CLOCKS + 4 * matrices * 2)
    return depth * (sums * max(1.0, _PRODUCT_CLOCKS / sums) + _SHARED_CLOCKS / 8)


def _merged(splits: int, ceilings: Ceilings) -> float:
    """Of the second grid, which reads what the splits left."""
    return _LAUNCH_SECONDS + (_TASK_CLOCKS + splits * _SHARED_CLOCKS * 4) / ceilings.clock
