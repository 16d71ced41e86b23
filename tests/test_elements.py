"""Scalars taken from vectors: what the rewriting does to a register tile, and that it changes no number.

The kernels run here, as code for x86-64-v2, whose vectors are as wide as NEON's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_variants import MATRIX, PREFILL, prefill_candidate
from exported_calls import needs_compiler

from tvm_attention import reference
from tvm_attention.export.archive import Archive
from tvm_attention.export.building import export_kernels
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.kernel_source import KernelSource
from tvm_attention.lowering import lower
from tvm_attention.schedules import Candidate, x86
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

LEVEL = "x86-64-v2"
MACHINE = replace(x86.MACHINES[LEVEL], element_operand=True)


def shuffles(workload: AttentionWorkload, candidate: Candidate, **options: bool) -> int:
    func = x86.build(workload, MACHINE, candidate).mod["main"]
    return str(lower(func, workload, **options).main.script()).count("T.Shuffle")


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "packed", "scores", "values"),
    [
        (64, 64, 0, True, True),
        (62, 64, 0, False, True),  # steps come by four
        (64, 62, 0, True, False),  # the last tile of four columns is not whole
        (64, 62, 1, True, True),  # but its copy is
        (62, 62, 0, False, False),
    ],
)
def test_where_neighbours_lie_side_by_side(
    head_dim: int, value_dim: int, packed: int, scores: bool, values: bool
) -> None:
    w = AttentionWorkload(head_dim=head_dim, value_dim=value_dim)
    candidate = prefill_candidate("running", 4, value_dim).replace(pack_value=packed)
    expected = 4 * candidate["score_rows"] * scores + candidate["value_rows"] * values
    assert shuffles(w, candidate, element_operand=True) == expected
    assert shuffles(w, candidate) == 0


@needs_compiler
def test_no_number_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = []
    for n, name in enumerate(x for x in PREFILL if x not in MATRIX):
        for causal in (None, "top_left"):
            w = AttentionWorkload(
                head_dim=(48, 46)[n % 2], value_dim=8 * (n + 1) + 3 * (n % 2), causal=causal
            )
            if name == "row_block values":  # whose vectors run along them
                w = replace(w, value_dim=16)
            assert w.value_dim is not None
            candidate = prefill_candidate(name, 4, w.value_dim)
            source = KernelSource(candidate, None, "chosen by a test", ())
            kernels.append(ExportedKernel(f"tvk{len(kernels)}", w, named_target(LEVEL), source))
    results = {}
    for element_operand in (True, False):
        machine = replace(MACHINE, element_operand=element_operand)
        monkeypatch.setitem(x86.MACHINES, LEVEL, machine)
        monkeypatch.setattr(x86, "machine_parameters", lambda target, machine=machine: machine)
        folder = tmp_path / str(element_operand)
        export_kernels({"x86_64": kernels}, {"x86_64": find_toolchain("x86_64")}, folder)
        archive = Archive.open(folder)
        rng = np.random.default_rng(0)
        for kernel in kernels:
            w = kernel.workload
            q, k, v = (
                rng.standard_normal((1, 2, rows, dim), np.float32)
                for rows, dim in ((21, w.head_dim), (103, w.head_dim), (103, w.value_dim))
            )
            out = archive.attention(q, k, v, causal=w.causal)
            results.setdefault(kernel.name, []).append(out)
            expected = reference.attended(q, k, v, causal=w.causal).out
            assert np.abs(out - expected).max() < 3e-6, kernel
    for name, (with_elements, without) in results.items():
        np.testing.assert_allclose(with_elements, without, atol=1e-6, err_msg=name)
