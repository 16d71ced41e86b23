"""How long the slowest of several workers takes, counted in tasks of the kind that was modelled."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.schedules import Candidate
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

MATRIX_COLUMNS = 32  # of a tile, computed whole (schedules/cpu_matrix.py)


@dataclass(frozen=True)
class QueryBlocks:
    """The tasks of a head: blocks of ``rows`` query rows, of which ``unit`` are computed at least."""

    workload: AttentionWorkload
    rows: int
    unit: int

    @property
    def count(self) -> int:
        return -(-self.workload.query_length // self.rows)

    @property
    def modelled(self) -> int:
        """The block to model: full, and with about the mean number of keys, counted from the first."""
        left = UNBOUNDED if self.workload.window is None else self.workload.window[0]
        if left != UNBOUNDED:
            return min(max(0, left // self.rows - 1), self.count - 1)
        return self.count // 2 if self._uneven else (self.count - 1) // 2

    @property
    def _uneven(self) -> bool:
        return bool(self.workload.causal) or self.workload.window is not None

    def neighbours(self, threads: int) -> float:
        """Tasks of a head that a thread computes one after the other, dealt out as by
        :func:`slowest_worker`: all read the same keys."""
        heads = self.workload.batch * self.workload.query_heads
        in_turn = bool(self.workload.causal) and heads % threads != 0
        return max(1.0, self.count / (threads if in_turn else 1))

    def weights(self) -> list[float]:
        """The work of each block, that of the modelled one being 1."""
        work = [self._work(n) for n in range(self.count)]
        return [x / work[self.modelled] for x in work]

    def _work(self, block: int) -> float:
        w, first = self.workload, block * self.rows
        rows = min(self.rows, w.query_length - first)
        # Vectors of fewer rows are computed whole, and fewer of them at a time are computed more slowly.
        whole = -(-rows // self.unit) * self.unit
        share = whole / self.rows
        slower: float = 0.75 * share + 0.25 * share**0.5
        return slower * self._keys(first, first + rows - 1)

    def _keys(self, first_row: int, last_row: int) -> int:
        w = self.workload
        left, right = w.window or (UNBOUNDED, UNBOUNDED)
        if w.causal:
            right = 0
        offset = 0 if w.causal == "top_left" else w.key_length - w.query_length
        first = 0 if left == UNBOUNDED else max(0, first_row + offset - left)
        last = w.key_length if right == UNBOUNDED else last_row + offset + right + 1
        return max(1, min(w.key_length, last) - first)


def query_blocks(w: AttentionWorkload, c: Candidate, lanes: int) -> QueryBlocks | None:
    """The tasks of a prefill candidate; None for decoding."""
    if c.decodes:
        return None
    decisions = dict(c.decisions)
    rows = decisions["query_block"] * decisions.get("query_strips", 1)
    narrow = c.variant == "running" or not decisions.get("queries_along_lanes", 1)
    vectors = 1 if narrow else decisions.get("score_vectors", MATRIX_COLUMNS // lanes)
    unit = lanes * vectors
    return QueryBlocks(w, rows, min(unit, rows))


def slowest_worker(weights: list[float], heads: int, threads: int, *, in_turn: bool) -> float:
    """Tasks are dealt out as :func:`tvm_attention.lowering.distribution.distribute` does: in runs, or in turn
    unless every worker gets whole heads."""
    tasks = weights * heads
    if in_turn and heads % threads:
        return max(sum(tasks[n::threads]) for n in range(threads))
    run = -(-len(tasks) // threads)
    return max(sum(tasks[n * run : (n + 1) * run]) for n in range(threads))
