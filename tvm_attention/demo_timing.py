"""One workload of the demo: which kernel it gets, whether that is right, and how fast beside others."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import psutil
from numpy.typing import NDArray

import tvm_attention
from tvm_attention import accuracy, baselines
from tvm_attention.accuracy import Accuracy
from tvm_attention.interleaved import Contender, Rounds, interleave
from tvm_attention.kernel_source import ArchiveSource, KernelSource
from tvm_attention.random_calls import random_inputs
from tvm_attention.workload import AttentionWorkload

OURS, TORCH, NUMPY = "tvm_attention", "torch", "NumPy"
SECONDS = 3.0  # of timing for each workload
LEAST_ROUNDS = 3

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One workload: which kernel it got and why, its accuracy, the times, and who was left out."""

    name: str
    workload: AttentionWorkload
    kernel: str
    accuracy: Accuracy
    rounds: Rounds
    left_out: Mapping[str, str]

    def to_dict(self) -> dict[str, object]:
        """Plain data: seconds of each contender, and its time over ours."""
        found = self.accuracy
        times = {n: self.rounds.time(n).to_dict() for n in self.rounds.seconds}
        ratios = {n: self.rounds.ratio(n, OURS).to_dict() for n in self.rounds.seconds if n != OURS}
        return {
            "name": self.name,
            "workload": self.workload.to_dict(),
            "kernel": self.kernel,
            "ok": found.holds,
            # JSON has no NaN, which is what a kernel that wrote nothing is off by
            "max_error": found.max_error if math.isfinite(found.max_error) else None,
            "seconds": times,
            "ratios": ratios,
            "left_out": dict(self.left_out),
        }


def measure(name: str, workload: AttentionWorkload, seconds: float) -> Outcome:
    """Checks our result on fresh random inputs, then times everyone on them."""
    inputs = random_inputs(workload, seed=0)
    kernel = tvm_attention.load(workload)
    out = np.full((*inputs[0].shape[:3], inputs[2].shape[3]), np.nan, np.float32)
    kernel(*inputs, out=out)
    found = accuracy.compare(out, *inputs, workload)
    contenders, left_out = _contenders(workload, inputs)
    rounds = interleave(contenders, seconds, least=LEAST_ROUNDS)
    return Outcome(name, workload, _kernel_text(kernel.source), found, rounds, left_out)


def _kernel_text(source: KernelSource | ArchiveSource) -> str:
    """The variant, and the line that says which tuning record was taken and why."""
    if isinstance(source, ArchiveSource):
        return str(source)
    taken = next((reason for reason in source.reasons if "taken" in reason), source.kind)
    return f"{source.candidate.variant}, {taken}"


def _contenders(
    workload: AttentionWorkload, inputs: tuple[Float32, Float32, Float32]
) -> tuple[list[Contender], dict[str, str]]:
    attention = tvm_attention.scaled_dot_product_attention
    causal, grouped = workload.causal is not None, workload.group > 1
    contenders = [Contender(OURS, lambda: attention(*inputs, is_causal=causal, enable_gqa=grouped))]
    left_out = {}
    if importlib.util.find_spec("torch"):
        import torch

        tensors = (torch.from_numpy(x) for x in inputs)
        contenders.append(Contender(TORCH, baselines.torch_attention(workload, *tensors)))
    else:
        left_out[TORCH] = "not installed"
    scores = 4 * workload.batch * workload.query_heads * workload.query_length * workload.key_length
    if scores <= psutil.virtual_memory().available / 2:
        call = baselines.numpy_attention(workload, *inputs)
        contenders.append(Contender(NUMPY, call, pool="blas"))
    else:
        left_out[NUMPY] = f"its scores would take {scores / 2**30:.1f} GiB"
    return contenders, left_out
