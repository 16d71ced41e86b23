"""What a block of threads asks of its multiprocessor for one block of keys, in clocks of each unit.

Counted from the tiles of a candidate as tvm_attention.compute.fused and its schedule lay them out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tvm_attention.cuda.banks import LANES, lane_passes
from tvm_attention.cuda.ceilings import Ceilings
from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED_TENSOR, OVERLAP, sizes_of
from tvm_attention.workload import AttentionWorkload

_SCHEDULERS = 4  # of a multiprocessor: warps that start an instruction in a clock
# Instructions of a score beside its products: scale, maximum, subtraction, exp2, sum, rounding or store; of
# each that a mask, or what is done to scores, takes besides; of an element of the state, which is shrunk and
# added to, and of the sum that is, which is cleared. As NVIDIA's disassembler shows them.
_SCORE, _MASK, _STATE = 6, 4, 2
_ADDRESS = 4  # of a load and a store of a copy
_BYTES = 4  # of float32


@dataclass(frozen=True, slots=True)
class Demand:
    """Clocks of a multiprocessor's units: instructions started, float32 and tensor multiply-adds, special
    functions, passes over shared memory, bytes from the second cache."""

    issue: float = 0.0
    fma: float = 0.0
    tensor: float = 0.0
    special: float = 0.0
    shared: float = 0.0
    l2: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        return Demand(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def most(self) -> float:
        """The clocks if all units work beside each other."""
        return self.together(0.0)

    def together(self, apart: float) -> float:
        """The clocks if they do but for this share of what the others than the busiest one do."""
        clocks = [float(getattr(self, f.name)) for f in fields(self)]
        return max(clocks) + apart * (sum(clocks) - max(clocks))


@dataclass(frozen=True, slots=True)
class Stages:
    """Of a block of keys in order: copies, scores, softmax, weighted values."""

    copies: Demand
    scores: Demand
    softmax: Demand
    values: Demand

    @property
    def whole(self) -> Demand:
        return self.copies + self.scores + self.softmax + self.values


def stages(w: AttentionWorkload, c: Candidate, ceilings: Ceilings) -> Stages:
    """The demands of a candidate."""
    scores, values = (
        _tensor(w, c, ceilings) if c.variant == FUSED_TENSOR else _plain(w, c, ceilings)
    )
    return Stages(_copies(w, c, ceilings), scores, _softmax(w, c, ceilings), values)


def _copies(w: AttentionWorkload, c: Candidate, ceilings: Ceilings) -> Demand:
    """Keys and values, to shared memory."""
    s = sizes_of(w, c)
    elements = s.key_block * (w.head_dim + (w.value_dim or 0))
    size = ELEMENT_BYTES[w.kv_dtype or w.dtype]
    stored = size if c.variant == FUSED_TENSOR else _BYTES
    groups = elements / c["vector"] / LANES
    converted = 0 if c[OVERLAP] or stored == size else elements / LANES
    steps = groups * (_ADDRESS + (1 if c[OVERLAP] else 2)) + converted
    stores = elements * stored / ceilings.shared
    # Sectors of 32 bytes are read whole.
    sector = (
        max(32, c["vector"] * size) / min(32, w.head_dim * size) if w.head_dim * size < 32 else 1
    )
    return Demand(
        issue=steps / _SCHEDULERS, shared=stores, l2=elements * size * sector / ceilings.l2
    )


def _plain(w: AttentionWorkload, c: Candidate, ceilings: Ceilings) -> tuple[Demand, Demand]:
    """Products by multiply-adds of threads, whose operands are loaded from shared memory."""
    s, across, rows, keys = sizes_of(w, c), c["column_threads"], c["rows"], c["keys"]
    warps, key_row = s.threads / LANES, s.key_row * _BYTES
    wide = min(4, c["score_steps"]) * _BYTES if w.head_dim % 4 == 0 else _BYTES
    loads = w.head_dim * _BYTES / wide
    query = rows * lane_passes(across, key_row, 0, wide)
    key = keys * lane_passes(across, 0, key_row, wide)
    products = rows * keys * w.head_dim
    scores = _products(ceilings, warps, products, loads * (rows + keys), loads * (query + key))
    wide = min(4, c["value_steps"]) * _BYTES
    steps = s.key_block * _BYTES / wide
    weight = rows * lane_passes(across, s.weight_row * _BYTES, 0, wide) * steps
    strips = s.columns / s.adjacent
    value = strips * lane_passes(across, 0, s.adjacent * _BYTES, s.adjacent * _BYTES) * s.key_block
    products = rows * s.columns * s.key_block
    loads = rows * steps + strips * s.key_block
    return scores, _products(ceilings, warps, products, loads, weight + value)


def _products(
    ceilings: Ceilings, warps: float, products: float, loads: float, passes: float
) -> Demand:
    """Of each warp: multiply-adds of a thread, its loads, and their passes over shared memory."""
    return Demand(
        issue=warps * (products + loads) / _SCHEDULERS,
        fma=warps * LANES * products / ceilings.fma,
        shared=warps * passes,
    )


def _tensor(w: AttentionWorkload, c: Candidate, ceilings: Ceilings) -> tuple[Demand, Demand]:
    """Products by tensor cores, 16 x 8 x 16 at a time, of matrices that a warp loads four at a time."""
    s = sizes_of(w, c)
    width = s.columns * c["column_threads"]
    return (
        _matrices(ceilings, c, s.query_block, s.key_block, w.head_dim, s.query_block),
        _matrices(ceilings, c, s.query_block, width, s.key_block, 0),
    )


def _matrices(
    ceilings: Ceilings, c: Candidate, rows: int, columns: int, depth: int, loaded_rows: int
) -> Demand:
    """Of rows of which so many are loaded; weights are in registers."""
    products = rows * columns * depth
    warps = c["row_threads"] / 8
    loaded = (loaded_rows + warps * columns) * depth * 2  # bytes: each warp loads all columns
    instructions = products / (16 * 8 * 16) + loaded / 512 + products / depth / LANES
    return Demand(
        issue=instructions / _SCHEDULERS,
        tensor=products / ceilings.tensor,
        shared=loaded / ceilings.shared,
    )


def _softmax(w: AttentionWorkload, c: Candidate, ceilings: Ceilings) -> Demand:
    """From scores to weights, in shared memory but for tensor cores, and the state of each row. Causal rows
    and windows compare keys at their edges alone."""
    s = sizes_of(w, c)
    scores = s.query_block * s.key_block
    state = s.query_block * s.columns * c["column_threads"]
    each = _SCORE + _MASK * bool(w.mask or w.alibi or w.softcap)
    rows = s.query_block * c["column_threads"]  # of each of its threads
    steps = scores * each + state * _STATE + rows * (c["column_threads"] + 6)
    size = 0 if c.variant == FUSED_TENSOR else _BYTES
    told = scores * size + rows * _BYTES * (1 + c["column_threads"] / 4)
    return Demand(
        issue=steps / LANES / _SCHEDULERS,
        special=(scores * (2 if w.softcap else 1) + 3 * rows) / ceilings.special,
        shared=told / ceilings.shared,
    )
