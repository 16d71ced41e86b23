"""Write torch's own samples of scaled_dot_product_attention to a file: python write_torch_samples.py FILE

A program of its own, because torch's test package changes settings of the process that imports it.
Each sample is (dtype, requires grad, query, (key, value), options).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def samples() -> list[tuple[Any, ...]]:
    """Of every dtype, without and with gradients, which the file then lacks again."""
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (o for o in op_db if o.name == "nn.functional.scaled_dot_product_attention")
    torch.manual_seed(0)
    return [
        (dtype, grad, s.input.detach(), tuple(x.detach() for x in s.args), dict(s.kwargs))
        for dtype in DTYPES
        for grad in (False, True)
        for s in operator.sample_inputs("cpu", dtype, requires_grad=grad)
    ]


if __name__ == "__main__":
    with torch.no_grad():
        found = samples()
    for sample in found:
        mask = sample[-1].get("attn_mask")
        if mask is not None:
            sample[-1]["attn_mask"] = mask.detach()
    torch.save(found, sys.argv[1])
