"""The kernels of the shipped ARM records against float64, under qemu on the core nearest to each target.

Every candidate is cross-compiled once, for one of the targets that have a record of it: LLVM orders the same
instructions a little differently for another. TVM_ATTENTION_ALL_RECORDS=1 takes every record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from exported_calls import (
    C_SOURCES,
    Program,
    assert_right,
    build_archive,
    build_program,
    call_of,
    needs_qemu,
    quantised,
)
from hot_loops import hot_loops

from tvm_attention.database import TuningRecord, shipped_logs
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.export.objects import write_object
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

pytestmark = needs_qemu

# qemu's models; "max" has everything, for the cores it has no model of.
NEAREST = {
    "cortex_a53": "cortex-a53", "cortex_a55": "cortex-a76", "cortex_a72": "cortex-a72",
    "cortex_a76": "cortex-a76", "cortex_a78": "cortex-a76", "neoverse_n1": "neoverse-n1",
    "neoverse_v1": "max", "neoverse_n2": "max", "m1": "max",
}  # fmt: skip
EVERYTHING = "TVM_ATTENTION_ALL_RECORDS" in os.environ
AT_ONCE = 16  # kernels of an archive, so that several are built side by side
# Lengths off every tile, and more keys than any block has.
LENGTHS = ((25, 211), (7, 1030))
DECODE_LENGTHS = ((1, 97), (1, 300))


def records() -> list[TuningRecord]:
    found = [r for log in shipped_logs() for r in log.records if r.hardware["kind"] == "arm"]
    return sorted(found, key=str)


def chosen(found: Iterable[TuningRecord]) -> list[TuningRecord]:
    """One record a kernel; which target's, of those that share it, differs from kernel to kernel."""
    alike: dict[object, list[TuningRecord]] = {}
    for record in found:
        w = record.workload
        rows = w.length_class if record.variant == "split_kv" else ""
        candidate = Candidate.of(record.variant, record.decisions)
        kernel = (w.head_dim, w.value_dim, w.dtype, w.kernel_features, rows, candidate)
        alike.setdefault(str(record.to_dict()) if EVERYTHING else kernel, []).append(record)
    return [same[n % len(same)] for n, same in enumerate(alike.values())]


def rounds(found: Iterable[TuningRecord]) -> list[list[TuningRecord]]:
    """Archives within which a call and a target say which kernel is meant, whatever the lengths."""
    archives: list[dict[object, TuningRecord]] = []
    for record in found:
        w = record.workload
        key = (record.target, w.head_dim, w.value_dim, w.dtype, w.kernel_features)
        free = next((a for a in archives if key not in a and len(a) < AT_ONCE), None)
        if free is None:
            archives.append(free := {})
        free[key] = record
    return [list(a.values()) for a in archives]


def cases(w: AttentionWorkload) -> list[AttentionWorkload]:
    decodes = w.length_class.startswith("decode")
    heads = (
        {"query_heads": 2 * w.group, "kv_heads": 2}
        if decodes
        else {"query_heads": 2, "kv_heads": 1}
    )
    window = None if w.window is None else (100, w.window[1])
    return [
        replace(w, batch=1, query_length=rows, key_length=keys, window=window, **heads)
        for rows, keys in (DECODE_LENGTHS if decodes else LENGTHS)
    ]


ARCHIVES = rounds(chosen(records()))


@pytest.fixture(scope="module", params=range(len(ARCHIVES)))
def archive(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Program, list[ExportedKernel]]:
    folder = tmp_path_factory.mktemp("shipped")
    kernels = []
    for n, record in enumerate(ARCHIVES[request.param]):
        source = KernelSource(Candidate.of(record.variant, record.decisions), record, "shipped", ())
        target = named_target(record.target)
        kernels.append(ExportedKernel(f"tvk{n}", record.workload, target, source))
    kernels.sort(key=lambda k: -len(k.target.features))  # as an export has them
    build_archive({"aarch64": kernels}, folder)
    program = build_program(folder, "aarch64", C_SOURCES / "calls.c", folder / "calls", "-static")
    return program, kernels


def test_there_are_records_of_every_core() -> None:
    assert {r.target for r in records()} == set(NEAREST)


def test_every_kernel(archive: tuple[Program, list[ExportedKernel]], tmp_path: Path) -> None:
    program, kernels = archive
    for core in dict.fromkeys(NEAREST[k.target.name] for k in kernels):
        made = []
        for n, kernel in enumerate(k for k in kernels if NEAREST[k.target.name] == core):
            for case in cases(kernel.workload):
                plain = replace(case, kv_dtype=None)
                call, tensors, options = call_of(
                    plain, seed=n, threads=2, target=kernel.target.name
                )
                if case.kv_dtype is not None:
                    quantised(call, tensors, seed=n)
                made.append((kernel, plain, call, tensors, options))
        outcomes = program.on(core).run([call for _, _, call, _, _ in made], tmp_path)
        for (kernel, case, _, tensors, options), outcome in zip(made, outcomes, strict=True):
            assert outcome.kernel in (kernel.name, ""), outcome.message
            assert_right(outcome, case, tensors, options)


def tiles_of_the_a72() -> list[TuningRecord]:
    """A float32 prefill record for each pair of register tiles."""
    found: dict[tuple[int, ...], TuningRecord] = {}
    for record in records():
        # Tiles of scores that masks are transposed for have four rows, too few.
        plain = record.target == "cortex_a72" and not record.workload.mask_dense
        if plain and "score_vectors" in record.decisions:
            names = ("score_rows", "score_vectors", "value_rows", "value_vectors")
            if record.workload.dtype == "float32":
                found.setdefault(tuple(record.decisions[n] for n in names), record)
    return list(found.values())


@pytest.mark.parametrize("record", tiles_of_the_a72(), ids=str)
def test_hot_loops_of_the_a72_are_multiply_adds(record: TuningRecord, tmp_path: Path) -> None:
    """Of what uses vector registers in the loops over full tiles, loads counted, by the disassembly."""
    source = KernelSource(Candidate.of(record.variant, record.decisions), record, "shipped", ())
    kernel = ExportedKernel("tvk", record.workload, named_target("cortex-a72"), source)
    write_object(kernel, tmp_path / "kernel.o")
    loops = hot_loops(tmp_path / "kernel.o")
    c = record.decisions
    for rows, vectors, steps in (
        (c["score_rows"], c["score_vectors"], 4),
        (c["value_rows"], c["value_vectors"], 1),
    ):
        full = [loop for loop in loops if loop.fmla == rows * vectors * steps]
        best = max(loop.fmla / loop.vector for loop in full)
        assert best >= 0.85, (rows, vectors, [(loop.fmla, loop.vector) for loop in full])
