"""torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from bench.peers.contract import Prepared
from bench.problem import Float32, Problem
from tvm_attention.baselines import torch_attention
from tvm_attention.interleaved import Contender


def prepare(problem: Problem, threads: int) -> Prepared:
    """torch allocates its result itself, so there is no output to poison."""
    import torch

    torch.set_num_threads(threads)
    inputs = (torch.from_numpy(x) for x in (problem.query, problem.key, problem.value))
    call = torch_attention(problem.workload, *inputs)

    def results() -> tuple[Float32, ...]:
        return (call().numpy(),)

    return Prepared(Contender("torch", call), results)
