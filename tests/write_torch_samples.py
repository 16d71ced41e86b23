"""Write torch's own samples of scaled_dot_product_attention to a file: python write_torch_samples.py FILE

A program of its own, because torch's test package changes settings of the process that imports it.
The file holds, by (dtype, requires grad), a list of draws, each a list of samples (query, (key, value),
options): the same samples on other numbers.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DRAWS = 32  # of samples without gradients; those with are only refused


def samples() -> dict[tuple[torch.dtype, bool], list[list[Any]]]:
    """Of every dtype, without and with gradients, which the file then lacks again."""
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (o for o in op_db if o.name == "nn.functional.scaled_dot_product_attention")

    def draw(dtype: torch.dtype, grad: bool, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return [
            (s.input.detach(), tuple(x.detach() for x in s.args), detached(s.kwargs))
            for s in operator.sample_inputs("cpu", dtype, requires_grad=grad, set_seed=False)
        ]

    return {
        (dtype, grad): [draw(dtype, grad, seed) for seed in range(1 if grad else DRAWS)]
        for dtype in DTYPES
        for grad in (False, True)
    }


def detached(options: dict[str, Any]) -> dict[str, Any]:
    return {k: x.detach() if isinstance(x, torch.Tensor) else x for k, x in options.items()}


if __name__ == "__main__":
    torch.save(samples(), sys.argv[1])
