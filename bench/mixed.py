"""Attention inside a torch program: Linear on the rows, attention, Linear on the result.

A kernel alone may be fast and still slow its neighbours down, by a thread pool of its own that
takes their cores or by a layout they have to copy. Here the whole program's time is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.checking import Checked
from bench.measure import LEAST_ROUNDS, measured
from bench.peers.contract import HEADS_LAYOUT
from bench.peers.torch_tensors import tensor_of
from bench.problem import Problem
from bench.results import OURS, Measured, WorkloadResult
from tvm_attention.accuracy import FLOAT32_ROUNDINGS, ROUNDING, Accuracy
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.suites import shape_text
from tvm_attention.workload import AttentionWorkload

TORCH = "torch"

Attention = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Program:
    """Linear(H*E -> H*E) on rows (B, L, H*E), attention with given key and value, Linear."""

    first: Any
    second: Any
    rows: Any
    key: Any
    value: Any
    options: dict[str, bool]
    attention: Attention

    def __call__(self) -> Any:
        import torch

        batch, length, width = self.rows.shape
        dim = self.key.shape[-1]
        with torch.inference_mode():
            query = self.first(self.rows).view(batch, length, width // dim, dim).transpose(1, 2)
            result = self.attention(query, self.key, self.value, **self.options)
            return self.second(result.transpose(1, 2).reshape(batch, length, -1))


def is_plain(workload: AttentionWorkload) -> bool:
    """Whether the program can have such attention."""
    w = workload
    options = (w.mask, w.window, w.ragged, w.paged, w.kv_dtype, w.softcap, w.alibi, w.sinks)
    return w.dtype == "float32" and not any(options)


def measure_mixed(
    name: str,
    workload: AttentionWorkload,
    seconds: float,
    attention: Attention,
    source: str,
) -> WorkloadResult:
    """The same program with ``attention`` (ours, from this tuning record) and torch's, in turns."""
    from torch.nn.functional import scaled_dot_product_attention

    attentions = {OURS: attention, TORCH: scaled_dot_product_attention}
    programs = _programs(Problem.of(workload), attentions)
    found = _difference(programs[OURS](), programs[TORCH]())
    figures: dict[str, Measured] = {}
    refused: dict[str, str] = {}
    if found.holds(ours=False):
        everyone = [Contender(n, p) for n, p in programs.items()]
        rounds = interleave(everyone, seconds, least=LEAST_ROUNDS)
        figures = {n: measured(n, rounds, found, HEADS_LAYOUT) for n in programs}
    else:
        refused[OURS] = f"wrong: differs from torch's by {found.accuracy.max_error:.3g}"
    return WorkloadResult(
        name=name,
        shape=shape_text(workload),
        workload=workload.to_dict(),
        source=source,
        measured=figures,
        refused=refused,
        ceilings=None,
    )


def _programs(problem: Problem, attentions: dict[str, Attention]) -> dict[str, Program]:
    import torch

    w = problem.workload
    torch.manual_seed(0)
    width = w.query_heads * w.head_dim
    first = torch.nn.Linear(width, width)
    second = torch.nn.Linear(w.query_heads * (w.value_dim or w.head_dim), width)
    rows = torch.randn(w.batch, w.query_length, width)
    key, value = tensor_of(problem.key), tensor_of(problem.value)
    options = {"is_causal": w.causal is not None, "enable_gqa": w.group > 1}
    return {
        name: Program(first, second, rows, key, value, options, attention)
        for name, attention in attentions.items()
    }


def _difference(ours: Any, torchs: Any) -> Checked:
    """Of the two programs' results (B, L, H*E), against the largest of torch's."""
    mine, other = (x.numpy().astype(np.float64) for x in (ours, torchs))
    found = Accuracy(
        max_error=float(np.max(np.abs(mine - other))),
        allowed=FLOAT32_ROUNDINGS * ROUNDING * float(np.ptp(other)),
        rows=int(np.prod(mine.shape[:2])),
        largest=float(np.max(np.abs(other))),
    )
    return Checked(found, "float32")
