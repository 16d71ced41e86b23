"""Exported x86 archives called by a C program: right at every level, and what they refuse."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_cases import runnable_levels
from exported_calls import (
    C_SOURCES,
    SANITIZERS,
    ExportedCall,
    Program,
    any_input_kernels,
    assert_right,
    build_program,
    call_of,
    needs_compiler,
    quantised,
)

from tvm_attention.export.archive.interface import STATUSES
from tvm_attention.export.building import export_kernels
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.export.toolchain import Toolchain, find_toolchain
from tvm_attention.target import LEVELS, detect_target, features_of
from tvm_attention.workload import AttentionWorkload

pytestmark = needs_compiler

PLAIN = AttentionWorkload(head_dim=64)
DECODE = AttentionWorkload(head_dim=64, query_length=1, query_heads=8, kv_heads=2)
MASKED = AttentionWorkload(
    head_dim=64, mask="bool", ragged=True, output="attention_and_lse", key_length=100, causal=True
)
HALF = AttentionWorkload(
    head_dim=40, value_dim=72, dtype="bfloat16", mask="float32", window=(20, 9)
)
QUANTISED = AttentionWorkload(head_dim=64, kv_dtype="int8", causal="bottom_right")
WORKLOADS = (PLAIN, DECODE, MASKED, HALF)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every workload for every level, others for AVX2, its runtime part watched by the sanitizers."""
    folder = tmp_path_factory.mktemp("watched")
    plain = find_toolchain("x86_64")
    watched = Toolchain("x86_64", (*plain.compiler, *SANITIZERS), plain.objcopy, plain.archiver)
    kernels = chosen_kernels(WORKLOADS, LEVELS["x86"])["x86_64"]
    kernels += [k for k in any_input_kernels() if k.workload not in WORKLOADS]
    export_kernels({"x86_64": kernels}, {"x86_64": watched}, folder)
    return folder


@pytest.fixture(scope="module")
def program(archive: Path) -> Program:
    return build_program(archive, "x86_64", C_SOURCES / "calls.c", archive / "calls", *SANITIZERS)


def cases(w: AttentionWorkload) -> list[AttentionWorkload]:
    lengths = ((1, 1), (1, 300)) if w is DECODE else ((1, 1), (7, 90), (37, 211), (64, 520))
    heads = {"query_heads": 8, "kv_heads": 2} if w is DECODE else {"query_heads": 4, "kv_heads": 2}
    return [
        replace(w, batch=1 + n % 2, query_length=rows, key_length=keys, **heads)
        for n, (rows, keys) in enumerate(lengths)
    ]


@pytest.mark.parametrize("level", LEVELS["x86"])
@pytest.mark.parametrize("threads", [1, 3])
def test_right_at_every_level(program: Program, level: str, threads: int, tmp_path: Path) -> None:
    if level not in runnable_levels():
        pytest.skip(f"this machine lacks {features_of(level) - detect_target().features}")
    made = [
        (case, *call_of(case, seed=n, threads=threads, target=level))
        for n, case in enumerate(case for w in WORKLOADS for case in cases(w))
    ]
    outcomes = program.run([call for _, call, _, _ in made], tmp_path)
    for (case, _, tensors, options), outcome in zip(made, outcomes, strict=True):
        assert_right(outcome, case, tensors, options)


def test_the_best_level_that_the_processor_has_is_taken(program: Program, tmp_path: Path) -> None:
    call, tensors, options = call_of(cases(PLAIN)[1])
    names = {level: f"tvk{2 - i}" for i, level in enumerate(LEVELS["x86"])}
    for level in runnable_levels():
        above = {f for other in LEVELS["x86"] for f in features_of(other)} - features_of(level)
        [outcome] = program.run([call], tmp_path, TVM_ATTENTION_WITHOUT=",".join(sorted(above)))
        assert outcome.kernel == names[level]
        assert_right(outcome, cases(PLAIN)[1], tensors, options)


def test_a_kernel_is_refused_where_features_are_missing(program: Program, tmp_path: Path) -> None:
    call, _, _ = call_of(cases(PLAIN)[1], target="x86-64-v4")
    [outcome] = program.run([call], tmp_path, TVM_ATTENTION_WITHOUT="avx512bw,avx512vl")
    assert outcome.status == "PROCESSOR"
    assert "avx512bw, avx512vl" in outcome.message
    call, _, _ = call_of(cases(PLAIN)[1])
    [outcome] = program.run([call], tmp_path, TVM_ATTENTION_WITHOUT="ssse3")
    assert outcome.status == "PROCESSOR"
    assert "lacks (ssse3)" in outcome.message
    call, _, _ = call_of(cases(PLAIN)[1], target="cortex_a72")
    [outcome] = program.run([call], tmp_path)
    assert outcome.status == "UNSUPPORTED"
    assert "no kernel for cortex_a72" in outcome.message


def test_the_kernel_nearest_in_lengths_is_taken(program: Program, tmp_path: Path) -> None:
    one = replace(PLAIN, query_heads=8, kv_heads=2, query_length=1, key_length=40)
    asked = [one, replace(one, query_length=2), replace(one, query_length=30)]
    calls = [call_of(case, target="x86-64-v2") for case in asked]
    outcomes = program.run([call for call, _, _ in calls], tmp_path)
    prefill, decode = "tvk2", "tvk5"
    assert [o.kernel for o in outcomes] == [decode, prefill, prefill]
    for case, (_, tensors, options), outcome in zip(asked, calls, outcomes, strict=True):
        assert_right(outcome, case, tensors, options)


@pytest.mark.parametrize("per_token", [False, True])
def test_int8_keys_and_values(program: Program, per_token: bool, tmp_path: Path) -> None:
    case = replace(
        QUANTISED, kv_dtype=None, query_heads=4, kv_heads=2, query_length=9, key_length=130
    )
    call, tensors, options = call_of(case)
    quantised(call, tensors, seed=5, per_token=per_token)
    [outcome] = program.run([call], tmp_path)
    assert_right(outcome, case, tensors, options)
    del call.arrays["value_scale"]
    [outcome] = program.run([call], tmp_path)
    assert outcome.message == "value_scale: expected an address, got null"


def changed(**fields: object) -> ExportedCall:
    call, _, _ = call_of(cases(MASKED)[1])
    for name, value in fields.items():
        place: object = call.problem
        *path, last = name.split("__")
        for part in path:
            place = getattr(place, part)
        setattr(place, last, value)
    return call


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"abi": 1}, "BAD_VALUE", "abi: expected"),
        ({"dtype": 4}, "BAD_VALUE", "dtype: expected 1 to 3, got 4"),
        ({"head_dim": 0}, "BAD_VALUE", "head_dim: expected 1 to 512, got 0"),
        ({"head_dim": 63}, "UNSUPPORTED", "no kernel for head_dim 63"),
        ({"dtype": 2}, "UNSUPPORTED", "float16"),
        ({"softcap": 3.0}, "UNSUPPORTED", "softcap"),
        ({"softcap": float("nan")}, "BAD_VALUE", "softcap: expected"),
        ({"scale": float("inf")}, "BAD_VALUE", "scale: expected a finite number"),
        ({"batch": -1}, "BAD_VALUE", "batch: expected 0 to"),
        ({"kv_heads": 3}, "BAD_VALUE", "query_heads: expected a multiple of kv_heads, got 4 and 3"),
        ({"key_length": 2**31 - 1}, "BAD_VALUE", "key_length: expected"),
        ({"batch": 1 << 20, "query_length": 1 << 20}, "UNSUPPORTED", "rows of all heads"),
        ({"threads": -1}, "BAD_VALUE", "threads: expected 1 to 1024"),
        ({"causal": 3}, "BAD_VALUE", "causal: expected"),
        ({"mask_dtype": 5}, "BAD_VALUE", "mask_dtype: expected"),
        ({"out__row": 71, "out__head": 1}, "BAD_STRIDE", "out: expected distinct elements"),
        ({"query__row": -64}, "BAD_STRIDE", "query: expected strides of 0 to"),
        ({"key__head": 1 << 60}, "BAD_STRIDE", "key: expected strides of 0 to"),
        ({"lse__head": 1, "lse__batch": 1}, "BAD_STRIDE", "lse: expected distinct elements"),
        ({"has_sequences": 1}, "BAD_VALUE", "has_sequences: expected 0 to 0, got 1"),
        ({"query_rows": 9}, "BAD_VALUE", "query_rows: expected 0 to 0, got 9"),
        ({"page_rows": 12, "pages": 4}, "BAD_VALUE", "page_rows: expected a power of two, got 12"),
        ({"page_rows": 16, "pages": 4}, "BAD_VALUE", "key_length: expected 0 to 0, got 90"),
        ({"page_rows": 16, "pages": 4, "page_columns": 6}, "UNSUPPORTED", ", ragged, paged, lse"),
    ],
)  # fmt: skip
def test_problems_refused(
    program: Program, fields: dict[str, object], status: str, said: str, tmp_path: Path
) -> None:
    [outcome] = program.run([changed(**fields)], tmp_path)
    assert outcome.status == status
    assert said in outcome.message


@pytest.mark.parametrize(
    ("sequences", "table", "said"),
    [
        ([[0, 7, 0, 31]], [[0, 1]], "sequences: expected 0 to 30 keys within 0 shared rows"),
        ([[0, -1, 0, 30]], [[0, 1]], "sequences: expected 0 to 7 queries"),
        ([[1, 7, 0, 30]], [[0, 1]], "queries within 0 shared rows, got 7 from row 1 on in 0"),
        ([[0, 7, 0, 30]], [[0, 2]], "page_table: expected pages 0 to 1, got 2 as number 1 of 0"),
        ([[0, 7, 0, 30]], [[-1, 0]], "page_table: expected pages 0 to 1, got -1"),
        ([[0, 7, 0, 16]], [[1, 9]], ""),  # of a page that needs not be there
    ],
)
def test_sequences_and_tables_are_checked(
    program: Program, sequences: list[list[int]], table: list[list[int]], said: str, tmp_path: Path
) -> None:
    case = replace(
        PLAIN, query_heads=2, kv_heads=2, query_length=7, key_length=30, causal="bottom_right"
    )
    call, _, _ = call_of(case)
    fields = {"has_sequences": 1, "page_rows": 16, "pages": 2, "page_columns": 2}
    for name, value in fields.items():
        setattr(call.problem, name, value)
    for name in ("key", "value"):
        setattr(call.problem, name, (0, 0, 0))
        call.arrays[name] = np.zeros((2, 2, 16, 64), np.float32)
    call.arrays |= {
        "sequences": np.array(sequences, np.int32),
        "page_table": np.array(table, np.int32),
    }
    [outcome] = program.run([call], tmp_path)
    assert outcome.status == ("BAD_VALUE" if said else "OK")
    assert said in outcome.message


@pytest.mark.parametrize("missing", ["query", "key", "value", "out", "mask", "kv_lengths", "lse"])
def test_null_pointers_are_refused(program: Program, missing: str, tmp_path: Path) -> None:
    call = changed()
    del call.arrays[missing]
    [outcome] = program.run([call], tmp_path)
    assert (outcome.status, outcome.message) == (
        "NULL_POINTER", f"{missing}: expected an address, got null"
    )  # fmt: skip


def test_a_workspace_too_small_and_lengths_out_of_range_are_refused(
    program: Program, tmp_path: Path
) -> None:
    call = changed()
    call.workspace = -1
    long = changed()
    long.arrays["kv_lengths"] = np.full(2, 91, np.int32)
    outcomes = program.run([call, long], tmp_path)
    assert [o.status for o in outcomes] == ["WORKSPACE", "BAD_VALUE"]
    assert re.search(r"expected \d+ bytes \(tva_workspace_bytes\), got \d+", outcomes[0].message)
    assert "kv_lengths: expected 0 to 90, the keys that there are, got 91" in outcomes[1].message


def test_no_keys_and_no_rows(program: Program, tmp_path: Path) -> None:
    none = replace(cases(MASKED)[1], key_length=1)
    call, _, _ = call_of(none)
    call.problem.key_length = 0
    for name in ("query", "key", "value", "mask", "kv_lengths"):
        del call.arrays[name]
    empty, _, _ = call_of(none)
    empty.problem.query_length = 0
    outcomes = program.run([call, empty], tmp_path)
    assert [o.status for o in outcomes] == ["OK", "OK"]
    assert outcomes[0].out is not None
    assert outcomes[0].lse is not None
    assert (outcomes[0].out == 0).all()
    assert (outcomes[0].lse == -np.inf).all()
    assert outcomes[1].out is not None
    assert np.isnan(outcomes[1].out).all()  # untouched


def test_anything_may_go_in(archive: Path, tmp_path: Path) -> None:
    """As tests/fuzz_archive.py does for longer, with libFuzzer."""
    program = build_program(
        archive, "x86_64", C_SOURCES / "any_input.c", tmp_path / "any", *SANITIZERS
    )
    for seed in ("1", "2"):
        done = program.start(seed, "30000")
        assert done.returncode == 0, done.stderr[-3000:]
        *counts, computed = (int(n) for n in done.stdout.split())
        assert computed > 3000
        seen = {STATUSES[i] for i, n in enumerate(counts) if n}
        assert seen == set(STATUSES) - {"NOT_PREPARED", "FAILED", "NO_MEMORY", "PROCESSOR"}
