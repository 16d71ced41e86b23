"""The ARM schedules: NEON's 128-bit vectors, 32 registers, FMLA by element; defaults to start from.

bfloat16 products are those of BFMMLA where a core has it, sixteen an instruction: the variant for matrix
units (tvm_attention.lowering.bfmmla). Else float16 and bfloat16 are converted to float32 as keys and
values are copied, once a call, and products are those of float32. FMLA on float16, eight products an
instruction, is not used: its sums are float16 numbers, of 11 bits and no more than 65504.

Decoding uses keys and values once, so that conversions count. Where a core has them,

- FMLAL and FMLAL2 add products of float16 numbers to float32 sums, four an instruction like float32's FMLA,
  with nothing to convert (tvm_attention.lowering.halves);
- SDOT multiplies int8 keys, sixteen products an instruction, and SMMLA pairs of them, 32: a query is three
  int8 digits, which hold float32's accuracy (tvm_attention.compute.digits); int8 values are converted.

docs/selection.md has what that saves, and what BFMLALB/T would, which are not used.

SVE (``target.sve_bits``): the same schedules on longer vectors of a fixed length, scalars broadcast by a
load, since its FMLA takes elements of a quarter of a vector only. At 128 bits, and at V1's 256 on half
as many pipelines, it computes no more a cycle than NEON, which therefore serves unless SVE is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_decode_space import (
    decode_rows,
    halves_serve,
    integer_serves,
    split_kv_serves,
)
from tvm_attention.schedules.cpu_space import (
    ROWS,
    build,
    converts,
    design_space,
    matrix_serves,
    running_serves,
)
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

__all__ = [
    "MACHINES",
    "build",
    "default_candidate",
    "design_space",
    "machine_parameters",
    "starting_points",
]


def _neon(l1_kib: int, l2_kib: int, *, in_order: bool = False) -> MachineParameters:
    return MachineParameters(4, 32, False, l1_kib << 10, l2_kib << 10, in_order, True)


# By micro-architecture; "aarch64" is any other. Where a core comes in sizes or cores share a cache, the
# smallest that is common.
MACHINES = {
    "aarch64": _neon(32, 256),
    "cortex_a53": _neon(32, 128, in_order=True),
    "cortex_a55": _neon(32, 128, in_order=True),
    "cortex_a72": _neon(32, 256),
    "cortex_a76": _neon(64, 256),
    "cortex_a78": _neon(32, 256),
    "neoverse_n1": _neon(64, 1024),
    "neoverse_v1": _neon(64, 1024),
    "neoverse_n2": _neon(64, 512),
    "m1": _neon(128, 3072),
}


@dataclass(frozen=True, slots=True)
class _DefaultTiles:
    """Register tiles of scores and values and how many strips of queries, as wide as they, make a task."""

    score_rows: int
    value_rows: int
    vectors: int
    strips: int = 4
    long_strips: int = 8


# Four steps of a score tile come by one load a row, into as many registers as it has rows: 18 accumulators,
# 6 of keys and 3 of queries fill them; of a value tile 24, 2 and 3. In order, what comes next is loaded while
# this is in use: 16 accumulators leave room for it.
_OUT_OF_ORDER = _DefaultTiles(score_rows=6, value_rows=8, vectors=3)
_IN_ORDER = _DefaultTiles(score_rows=8, value_rows=8, vectors=2)
_KEY_BLOCKS = (192, 128, 96, 64)


def machine_parameters(target: HardwareTarget) -> MachineParameters:
    """The micro-architecture's parameters with the target's own cache sizes; of SVE, if it is asked for."""
    core = MACHINES.get(target.micro_architecture, MACHINES["aarch64"])
    if target.sve_bits:
        core = replace(core, lanes=target.sve_bits // 32, element_operand=False)
    else:
        has = target.features
        core = replace(
            core,
            bfmmla="bf16" in has,
            dot_run=4 if "dotprod" in has else 0,
            dot_sums="dotprod" in has,
            half_products="fp16fml" in has,
            pair_products="i8mm" in has,
        )
    return replace(core, l1=target.l1d or core.l1, l2=target.l2 or core.l2)


def default_candidate(workload: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """What runs where no record fits: the variants that x86 has by default, tiles counted out for NEON.

    Split-KV to decode, otherwise bfloat16 by BFMMLA or running attention; where that does not serve,
    row-block up to about a thousand keys and blocks-and-merge beyond.
    """
    rows = decode_rows(workload)
    if rows is not None and split_kv_serves(workload, machine):
        return _split_kv(workload, rows, machine)
    if matrix_serves(workload, machine) and _fills_tiles(workload):
        return _matrix(workload)
    return _by_element(workload, machine)


def _by_element(workload: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """The default where products are float32's."""
    tiles = _IN_ORDER if machine.in_order else _OUT_OF_ORDER
    strip, copies = tiles.vectors * machine.lanes, int(converts(workload))
    # Masks are transposed by tiles of four keys.
    rows_of_scores = 4 if workload.mask_dense and tiles.score_rows % 4 else tiles.score_rows
    scores = {"score_rows": rows_of_scores, "score_vectors": tiles.vectors, "pack_key": copies}
    if workload.output == "weights":
        return Candidate.of("weights", {**scores, "query_block": tiles.strips * strip})
    assert workload.value_dim is not None
    value_rows = max(r for r in ROWS if r <= min(tiles.value_rows, workload.value_dim))
    decisions = scores | {"value_rows": value_rows, "value_vectors": tiles.vectors}
    long = workload.length_class == "long"
    copied = long and not workload.few_queries
    if running_serves(workload):
        decisions |= {
            "query_block": strip,
            "query_strips": tiles.long_strips if copied else tiles.strips,
            "key_block": _key_block(workload, machine, rows_of_scores),
            "value_columns_outer": 0,
            "pack_value": int(copied or workload.masks or converts(workload)),
        }
        return Candidate.of("running", decisions)
    decisions |= {"query_block": 2 * strip, "value_columns_outer": 1, "pack_value": copies}
    if long:
        blocks = {"key_block": _key_block(workload, machine, rows_of_scores), "pack_value": 1}
        return Candidate.of("blocks_and_merge", decisions | blocks)
    return Candidate.of("row_block", decisions | {"queries_along_lanes": 1})


def _fills_tiles(w: AttentionWorkload) -> bool:
    """Narrower heads are mostly padding: a step of a product is 32 numbers."""
    assert w.value_dim is not None
    return min(w.head_dim, w.value_dim) >= 32


def _matrix(w: AttentionWorkload) -> Candidate:
    """Keys and values are packed once for all strips of a task, which the longer have more of."""
    strips = 1 if w.few_queries else {"short": 2, "medium": 4}.get(w.length_class, 8)
    return Candidate.of(
        "matrix",
        {
            "query_block": 64,
            "query_strips": strips,
            "key_block": 192,
            "value_rows": 16,
            "overlapped": 0,
        },
    )


def _key_block(w: AttentionWorkload, machine: MachineParameters, rows: int) -> int:
    """Keys whose float32 rows take half of L1, whole score tiles: all strips of a task read them."""
    whole = [n for n in _KEY_BLOCKS if n % rows == 0]
    return next((n for n in whole if 2 * n * w.head_dim * 4 <= machine.l1), whole[-1])


def _split_kv(w: AttentionWorkload, rows: int, machine: MachineParameters) -> Candidate:
    """Accumulators of a value tile: at most 16, the rest of the registers for what is loaded. Scores by SDOT
    have three sums for each row and key: of several rows they save little or nothing, by the models. Sums of
    either half of float16 products hide the latency of one row's."""
    assert w.value_dim is not None
    value_rows = min(rows, 4)
    fitting = (v for v in (8, 4, 2, 1) if w.value_dim % (4 * v) == 0 and value_rows * v <= 16)
    return Candidate.of(
        "split_kv",
        {
            "score_keys": 4 if rows <= 4 else 2,
            "value_rows": value_rows,
            "value_vectors": next(fitting),
            "streams": 4,
            "prefetch": 0,
            **({"integer_products": _integer(rows, machine)} if integer_serves(w, machine) else {}),
            **({"half_products": 2 if rows == 1 else 1} if halves_serve(w, machine) else {}),
        },
    )


def _integer(rows: int, machine: MachineParameters) -> int:
    return 2 if machine.pair_products else int(rows == 1)


def starting_points(workload: AttentionWorkload, machine: MachineParameters) -> list[Candidate]:
    """What a search begins with: the default schedule, then that without BFMMLA."""
    points = [default_candidate(workload, machine)]
    return points if points[0].variant != "matrix" else [*points, _by_element(workload, machine)]
