"""The matrix unit: where it is chosen, what its kernels are made of, and what it takes to use it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near
from attention_variants import MATRIX, attend, bounds, check, prefill_candidate, tensors

from tvm_attention import compiler, matrix_unit, processor, reference, runtime
from tvm_attention.compiler import build_module, build_source
from tvm_attention.database import Match
from tvm_attention.errors import KernelBuildError
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.lowering.matrix_ir import product_ir, product_name
from tvm_attention.processor import Processor
from tvm_attention.schedules import schedules_for, x86
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

HOST = named_target("sapphirerapids", cores=2)
WITHOUT = named_target("icelake", cores=2)
CANDIDATE = prefill_candidate("matrix", 16, 64)
needs_unit = pytest.mark.skipif(not MATRIX, reason="this machine has no matrix unit (AMX)")


def workload(**fields: Any) -> AttentionWorkload:
    lengths = {"query_length": 2048, "key_length": 2048, "query_heads": 8, "kv_heads": 8}
    return AttentionWorkload(**({"head_dim": 64} | lengths | fields))


def variants(target: Any, w: AttentionWorkload) -> set[str]:
    return set(x86.design_space(w, x86.machine_parameters(target)).variants)


def default(target: Any, w: AttentionWorkload) -> str:
    return x86.default_candidate(w, x86.machine_parameters(target)).variant


def test_only_a_machine_that_has_one_is_offered_it() -> None:
    assert "matrix" in variants(HOST, workload())
    for target in (WITHOUT, named_target("x86-64-v4")):
        assert "matrix" not in variants(target, workload())
    half = replace(HOST, features=HOST.features - {"amx-bf16"})
    assert "matrix" not in variants(half, workload())


@pytest.mark.parametrize(
    "fields",
    [
        {"output": "weights"},
        {"kv_dtype": "int8"},
        {"paged": True, "ragged": True},
        {"query_length": 1},
    ],
)
def test_what_it_does_not_serve(fields: dict[str, Any]) -> None:
    assert "matrix" not in variants(HOST, workload(**fields))
    assert default(HOST, workload(**fields)) != "matrix"


def test_where_it_is_the_default() -> None:
    assert default(HOST, workload(dtype="bfloat16")) == "matrix"
    assert default(HOST, workload(dtype="float16", query_length=100, key_length=100)) == "matrix"
    assert default(HOST, workload(head_dim=128)) == "matrix"
    assert default(HOST, workload(query_length=200, key_length=200)) == "matrix"
    assert default(HOST, workload(head_dim=32, key_length=200)) == "running"
    assert default(HOST, workload(query_length=40)) == "running"
    for dim, causal in ((256, None), (64, "top_left")):
        few = workload(query_length=60, key_length=60, head_dim=dim, causal=causal)
        assert default(HOST, few) == default(WITHOUT, few) == "row_block"
    assert default(HOST, workload(query_length=60, key_length=60)) == "running"
    assert default(WITHOUT, workload(query_length=200, key_length=200)) == "running"
    assert default(HOST, workload(dtype="bfloat16", head_dim=16)) == "running"
    assert default(WITHOUT, workload(dtype="bfloat16")) == "running"


def test_every_default_is_in_the_space() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        for rows, dim in product((20, 64, 200, 512, 4096), (24, 32, 80, 128, 512)):
            for causal, target in product((None, "top_left"), (HOST, WITHOUT)):
                w = workload(
                    dtype=dtype, query_length=rows, key_length=rows, head_dim=dim, causal=causal
                )
                machine = x86.machine_parameters(target)
                refusal = x86.design_space(w, machine).refusal(x86.default_candidate(w, machine))
                assert refusal is None, (w, refusal)


def test_kernels_of_one_neighbourhood_have_one_default() -> None:
    """Lengths between two powers of two are served by the kernel that came first."""
    machine = x86.machine_parameters(HOST)
    for dtype, causal in product(("float32", "bfloat16", "float16"), (None, "top_left")):
        for queries, keys in product((32, 64, 128, 256, 512), (32, 64, 128, 512, 2048)):
            found = {
                x86.default_candidate(
                    workload(dtype=dtype, causal=causal, query_length=q, key_length=k), machine
                )
                for q in (queries, 2 * queries - 1)
                for k in (keys + 1, 2 * keys - 1)
            }
            assert len(found) == 1, (dtype, causal, queries, keys)


def test_a_search_begins_with_the_default_and_goes_on_to_other_variants() -> None:
    short = workload(query_length=128, key_length=128)
    points = x86.starting_points(short, x86.machine_parameters(HOST))
    variants = ["matrix"] * 5 + ["running", "row_block"]
    assert [c.variant for c in points] == variants
    space = x86.design_space(short, x86.machine_parameters(HOST))
    assert not any(space.refusal(c) for c in points)
    without = x86.starting_points(short, x86.machine_parameters(WITHOUT))
    assert without == points[-2:]


def test_tasks_of_too_many_rows_are_refused() -> None:
    space = x86.design_space(workload(), x86.machine_parameters(HOST))
    refusal = space.refusal(CANDIDATE.replace(query_block=128, query_strips=32, overlapped=0))
    assert refusal == "a task of 4096 rows leaves threads idle"


@pytest.mark.parametrize(
    ("left", "right", "limit", "pairs"),
    [(1, 1, 1, 1), (1, 2, 2, 2), (2, 2, 2, 3), (2, 2, 3, 4), (3, 3, 3, 6)],
)
def test_every_pair_of_pieces_is_multiplied(left: int, right: int, limit: int, pairs: int) -> None:
    text = product_ir(2, left, right, limit)
    assert product_name(2, left, right, limit) in text
    # Four tiles of results where there are two of columns, two where there is one.
    assert len(re.findall(r"call void @llvm.x86.tdpbf16ps", text)) == pairs * (4 + 2)
    half = product_ir(1, left, right, limit)
    assert len(re.findall(r"call void @llvm.x86.tdpbf16ps", half)) == pairs * (2 + 1)


@pytest.mark.parametrize(("dtype", "pairs"), [("float32", 6), ("float16", 4), ("bfloat16", 1)])
def test_kernels_build_without_such_a_machine(dtype: str, pairs: int) -> None:
    """And the products are in the machine code: of scores 4 + 2 tiles a step, of values 2 + 1."""
    module = build_module(workload(dtype=dtype), HOST, CANDIDATE)
    code = module.mod.inspect_source("asm")
    assert code.count("tdpbf16ps") >= 6 * pairs
    assert "ldtilecfg" in code
    assert "tilerelease" in code
    assert "__truncsfbf2" not in code  # pieces are cut out of float32 numbers, by no call


def test_no_kernel_is_built_for_a_machine_without_one() -> None:
    with pytest.raises(KernelBuildError, match="needs a processor with a matrix unit"):
        build_module(workload(), WITHOUT, CANDIDATE)


def test_programs_without_python_have_it() -> None:
    (kernel,) = chosen_kernels([workload(dtype="bfloat16")], ["sapphirerapids"])["x86_64"]
    assert kernel.source.candidate.variant == "matrix"
    assert kernel.target.features >= x86.MATRIX_UNIT
    assert "avx512bf16" in kernel.target.features


def machine_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_unit, "permitted", lambda: False)


def test_without_leave_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Processor("x86", "sapphirerapids", HOST.features, "")
    monkeypatch.setattr(matrix_unit, "permitted", lambda: True)
    assert processor._as_permitted(found) == found
    machine_without_leave(monkeypatch)
    assert processor._as_permitted(found).features == HOST.features - matrix_unit.FEATURES


def test_a_kernel_is_not_loaded_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    source = build_source(workload(), HOST, CANDIDATE)
    machine_without_leave(monkeypatch)
    with pytest.raises(KernelBuildError, match=r"leave .* matrix unit .* TVM_ATTENTION_TARGET"):
        compiler.load_source(source)


def test_records_found_without_one_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuning_records import machine, record

    asked = {}

    def match(w: Any, target: Any, logs: Any, *, legal: Any, **rest: Any) -> Match:
        for name in ("icelake", "x86-64-v4", "sapphirerapids"):
            found = record(machine(name), workload=w)
            asked[name] = legal(found)
        return Match(None, "default schedule", ())

    monkeypatch.setattr(runtime, "match", match)
    source = runtime.select(workload(dtype="bfloat16"), HOST)
    assert source.candidate.variant == "matrix"
    for name in ("icelake", "x86-64-v4"):
        assert asked[name] == (
            "it was found without a matrix unit, which the default schedule here uses"
        )
    assert asked["sapphirerapids"] != asked["icelake"]


@needs_unit
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-30, 2.0])
def test_scales(dtype: str, scale: float) -> None:
    """Scores of few pieces are scaled after their product: its sign and zero are the edges."""
    q, k, v = tensors("matrix", dtype=dtype)
    check("matrix", q, k, v, lse=False, scale=scale)


@needs_unit
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_key_is_as_in_float64(infinite: float) -> None:
    """Its other pieces are zero, and those of queries are not: infinite times zero would be NaN."""
    q, k, v = tensors("matrix")
    q[..., 3] = np.where(np.arange(q.shape[2]) % 2, 0.5, -0.5)  # one piece holds it
    k[:, :, 7, 3] = infinite
    found, _ = attend("matrix", q, k, v)
    with np.errstate(invalid="ignore"):
        expected = reference.attended(q, k, v).out
    assert np.isnan(expected).any()
    assert np.isfinite(expected).any()
    k[:, :, 7, 3] = 0.0
    size, span = bounds(q, k, v)
    assert_near(found, expected, "float32", span=span, size=size, what="infinite key")


@needs_unit
def test_float32_keeps_its_24_bits() -> None:
    """Neighbouring numbers that differ in the last bit alone stay apart."""
    one = np.float32(1.0)
    q = np.zeros((1, 1, 8, 32), np.float32)
    k = np.zeros((1, 1, 8, 32), np.float32)
    q[..., 0] = 2.0**20
    for n in range(8):
        k[0, 0, n, 0] = one + n * np.spacing(one)
    v = np.eye(8, dtype=np.float32)[None, None]
    found, _ = attend("matrix", q, k, v, scale=1.0)
    expected = reference.attended(q, k, v, scale=1.0).out
    assert len(np.unique(found[0, 0, 0])) == 8
    np.testing.assert_allclose(found, expected, rtol=0.1)


@needs_unit
def test_large_float16_scores_are_exact() -> None:
    """The product of the smaller pieces counts, where scores are large: a hundredth of a weight here."""
    q, k = (np.zeros((1, 1, 8, 32), np.float16) for _ in range(2))
    q[..., 0] = 64.0 * (1 + 7 * 2.0**-10)
    k[0, 0, :, 0] = 64.0 * (1 + np.arange(8) * 2.0**-10)
    v = np.eye(8, dtype=np.float16)[None, None]
    found, _ = attend("matrix", q, k, v, scale=1.0)
    expected = reference.attended(q, k, v, scale=1.0).out
    assert 0.01 < expected[0, 0, 0, -2] < 0.02
    np.testing.assert_allclose(found[..., -2:], expected[..., -2:], rtol=4e-3)


@needs_unit
def test_rows_of_padding_are_no_keys() -> None:
    """The last key is repeated to the end of a tile; huge values of it must not be felt twice."""
    q, k, v = tensors("matrix", keys=33)
    v[:, :, -1] = 1e30
    size, span = bounds(q, k, v)
    found, _ = attend("matrix", q, k, v)
    assert_near(
        found, reference.attended(q, k, v).out, "float32", span=span, size=size, what="padding"
    )


def test_schedules_of_a_host_know_its_unit() -> None:
    assert schedules_for(HOST).machine_parameters(HOST).matrix_unit
    assert not schedules_for(WITHOUT).machine_parameters(WITHOUT).matrix_unit
