"""The design spaces: what is drawn is legal, defaults are legal, and what is legal builds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from attention_cases import assert_right, inputs, kernel_of, poisoned, runnable_levels

from tvm_attention.compiler import build_source
from tvm_attention.errors import UnsupportedError
from tvm_attention.schedules import Candidate, DesignSpace, schedules_for, x86
from tvm_attention.schedules.cpu_decode_space import dividing_lanes
from tvm_attention.target import LEVELS, HardwareTarget, detect_target, named_target
from tvm_attention.workload import AttentionWorkload

LENGTHS = {
    "decode-r1": (1, 1, 600), "decode-r2": (2, 1, 600), "decode-r4": (4, 1, 600),
    "decode-r8": (8, 1, 600), "short": (1, 200, 200), "medium": (1, 600, 600),
    "long": (1, 2000, 2000),
}  # fmt: skip


def workload_of_class(length_class: str, head_dim: int, value_dim: int) -> AttentionWorkload:
    group, queries, keys = LENGTHS[length_class]
    made = AttentionWorkload(
        head_dim=head_dim, value_dim=value_dim, query_heads=2 * group, kv_heads=2,
        query_length=queries, key_length=keys,
    )  # fmt: skip
    assert made.length_class == length_class
    return made


def space_of(workload: AttentionWorkload, target: HardwareTarget) -> DesignSpace:
    schedules = schedules_for(target)
    found = schedules.design_space(workload, schedules.machine_parameters(target))
    assert isinstance(found, DesignSpace)
    return found


@pytest.mark.parametrize("level", LEVELS["x86"])
@pytest.mark.parametrize("length_class", LENGTHS)
def test_the_default_is_legal_for_every_head_dimension(length_class: str, level: str) -> None:
    target = named_target(level)
    machine = x86.machine_parameters(target)
    for head_dim in range(1, 513):
        for value_dim in {head_dim, 513 - head_dim}:
            workload = workload_of_class(length_class, head_dim, value_dim)
            space = space_of(workload, target)
            candidate = x86.default_candidate(workload, machine)
            assert space.refusal(candidate) is None, (head_dim, value_dim, str(candidate))


@pytest.mark.parametrize("level", LEVELS["x86"])
@pytest.mark.parametrize("length_class", ["decode-r1", "decode-r8", "short", "long"])
def test_only_legal_candidates_are_drawn(length_class: str, level: str) -> None:
    rng = Random(1)
    for dims in ((64, 64), (40, 72), (3, 5), (512, 512)):
        space = space_of(workload_of_class(length_class, *dims), named_target(level))
        drawn = [c for c in (space.sample(rng) for _ in range(1500)) if c is not None]
        assert {c.variant for c in drawn} == set(space.variants)
        children = [space.mutate(rng.choice(drawn), rng) for _ in range(300)]
        legal = [c for c in children if c is not None]
        assert legal
        for candidate in drawn + legal:
            assert space.refusal(candidate) is None


def test_a_mutation_keeps_the_variant_and_changes_one_to_three_decisions() -> None:
    space = space_of(workload_of_class("long", 64, 64), named_target("x86-64-v3"))
    rng = Random(2)
    parent = next(c for c in (space.sample(rng) for _ in range(1000)) if c is not None)
    changes = set()
    for _ in range(500):
        child = space.mutate(parent, rng)
        if child is not None:
            assert child.variant == parent.variant
            assert child.decisions != parent.decisions
            changes.add(len(set(child.decisions) - set(parent.decisions)))
    assert changes == {1, 2, 3}


def test_enumeration_holds_exactly_the_legal_candidates() -> None:
    space = space_of(workload_of_class("decode-r4", 64, 96), named_target("x86-64-v3"))
    found = list(space.candidates())
    assert len(found) == len(set(found)) > 1
    assert all(space.refusal(c) is None for c in found)
    drawn = {c for c in map(space.sample, [Random(3)] * 20000) if c is not None}
    assert drawn == set(found)


GOOD = {
    "query_block": 32, "score_rows": 6, "score_vectors": 2, "value_rows": 4, "value_vectors": 2,
    "value_columns_outer": 0, "queries_along_lanes": 0, "pack_key": 0, "pack_value": 0,
}  # fmt: skip
KEY_BLOCKS = {
    "query_block": 32, "key_block": 96, "score_rows": 6, "score_vectors": 2, "value_rows": 4,
    "value_vectors": 2, "value_columns_outer": 0, "pack_key": 0, "pack_value": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "decisions", "why"),
    [
        ("split_kv", {}, "variant 'split_kv' does not serve this workload"),
        ("row_block", {}, "expected decisions"),
        ("row_block", {**GOOD, "unroll": 1}, "expected decisions"),
        ("row_block", {**GOOD, "query_block": 33}, "query_block=33 is not one of"),
        ("row_block", {**GOOD, "queries_along_lanes": 2}, "queries_along_lanes=2 is not one of"),
        ("row_block", {**GOOD, "score_vectors": 3}, "score_vectors=3 does not divide 32 columns"),
        ("row_block", {**GOOD, "value_vectors": 3}, "value_vectors=3 does not divide 64 columns"),
        ("row_block", {**GOOD, "score_rows": 7}, "the score tile does not fit into 16 registers"),
        ("row_block", {**GOOD, "score_rows": 1}, "the score tile does not fit into 16 registers"),
        ("row_block", {**GOOD, "value_rows": 8}, "the value tile does not fit into 16 registers"),
        ("row_block", {**GOOD, "value_rows": 5}, "value_rows=5 does not divide the query block"),
        (
            "streaming",
            {**KEY_BLOCKS, "score_rows": 5},
            "score_rows=5 does not divide the key block",
        ),
        ("streaming", {**KEY_BLOCKS, "key_block": 97}, "key_block=97 is not one of"),
        ("blocks_and_merge", {**KEY_BLOCKS, "pack_value": 2}, "pack_value=2 is not one of"),
    ],
)
def test_refusals(variant: str, decisions: dict[str, int], why: str) -> None:
    space = space_of(workload_of_class("medium", 64, 64), named_target("x86-64-v3"))
    refusal = space.refusal(Candidate.of(variant, decisions))
    assert refusal is not None
    assert why in refusal


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_converted_once(dtype: str) -> None:
    w = replace(workload_of_class("medium", 64, 64), dtype=dtype)
    space = space_of(w, named_target("x86-64-v3"))
    for candidate in (Candidate.of("row_block", GOOD), Candidate.of("streaming", KEY_BLOCKS)):
        assert "pack them" in (space.refusal(candidate) or "")
        assert space.refusal(candidate.replace(pack_key=1)) is None
    along = Candidate.of("row_block", GOOD | {"pack_key": 1, "queries_along_lanes": 1})
    assert "pack them" in (space.refusal(along) or "")
    weights = space_of(replace(w, output="weights"), named_target("x86-64-v3"))
    assert set(weights.variants) == {"weights"}
    tile = Candidate.of(
        "weights", {"query_block": 32, "score_rows": 6, "score_vectors": 2, "pack_key": 0}
    )
    assert "pack them" in (weights.refusal(tile) or "")
    assert weights.refusal(tile.replace(pack_key=1)) is None
    assert "does not divide" in (weights.refusal(tile.replace(pack_key=1, score_vectors=3)) or "")
    assert "does not fit" in (weights.refusal(tile.replace(pack_key=1, score_rows=16)) or "")


def test_the_refusals_have_a_legal_neighbour() -> None:
    space = space_of(workload_of_class("medium", 64, 64), named_target("x86-64-v3"))
    assert space.refusal(Candidate.of("row_block", GOOD)) is None
    for variant in ("streaming", "blocks_and_merge"):
        assert space.refusal(Candidate.of(variant, KEY_BLOCKS)) is None


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        (
            {"streams": 1, "prefetch": 0, "score_keys": 1, "value_rows": 4, "value_vectors": 1},
            "exceeds the 2 rows of the class",
        ),
        (
            {"streams": 1, "prefetch": 0, "score_keys": 1, "value_rows": 1, "value_vectors": 16},
            "does not divide the value",
        ),
        (
            {"streams": 1, "prefetch": 0, "score_keys": 16, "value_rows": 1, "value_vectors": 1},
            "score tile does not fit",
        ),
        (
            {"streams": 1, "prefetch": 0, "score_keys": 1, "value_rows": 2, "value_vectors": 8},
            "value tile too large",
        ),
    ],
)
def test_decode_refusals(decisions: dict[str, int], why: str) -> None:
    space = space_of(workload_of_class("decode-r2", 64, 64), named_target("x86-64-v3"))
    refusal = space.refusal(Candidate.of("split_kv", decisions))
    assert refusal is not None
    assert why in refusal


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_queries_over_many_keys_copy_as_little_as_they_can(dtype: str) -> None:
    many = AttentionWorkload(head_dim=64, query_length=64, key_length=2048, dtype=dtype)
    few = many.with_lengths(63, 2048)
    assert few.few_queries
    assert not many.few_queries
    assert not many.with_lengths(63, 256).few_queries
    amx = replace(x86.MACHINES["x86-64-v4"], matrix_unit=True)
    for machine in (amx, x86.MACHINES["x86-64-v3"]):
        chosen, other = (x86.default_candidate(w, machine) for w in (few, many))
        assert chosen != other
        assert chosen["query_strips"] <= 2
        assert chosen.variant == "matrix" or chosen["pack_value"] == int(dtype != "float32")


def test_odd_head_dimensions_decode_as_prefill() -> None:
    target = named_target("x86-64-v3")
    assert set(space_of(workload_of_class("decode-r1", 64, 64), target).variants) == {"split_kv"}
    for dims in ((63, 64), (64, 66)):
        variants = space_of(workload_of_class("decode-r1", *dims), target).variants
        assert set(variants) == {"row_block", "blocks_and_merge", "streaming", "running"}


@pytest.mark.parametrize(
    ("dim", "lanes", "widest"), [(64, 16, 16), (40, 16, 8), (6, 8, 2), (7, 8, 1), (512, 4, 4)]
)
def test_the_widest_dividing_vector(dim: int, lanes: int, widest: int) -> None:
    assert dividing_lanes(dim, lanes) == widest


def test_candidates_by_value() -> None:
    one = Candidate.of("row_block", {"b": 2, "a": 1})
    assert one == Candidate.of("row_block", {"a": 1, "b": 2})
    assert hash(one) == hash(Candidate.of("row_block", {"a": 1, "b": 2}))
    assert str(one) == "row_block a=1 b=2"
    assert (one["a"], one.replace(a=5)["a"], one["a"]) == (1, 5, 1)


def test_a_kind_without_schedules_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"expected a kind among .*, got mips"):
        schedules_for(replace(named_target("cortex-a72"), kind="mips"))


def drawn_of(workload: AttentionWorkload, target: HardwareTarget, count: int) -> list[Candidate]:
    """Random legal candidates, every variant in turn."""
    space, rng = space_of(workload, target), Random(count)
    by_variant: dict[str, list[Candidate]] = {v: [] for v in sorted(space.variants)}
    while min(map(len, by_variant.values())) < count // len(by_variant):
        candidate = space.sample(rng)
        if candidate is not None and len(by_variant[candidate.variant]) < count:
            by_variant[candidate.variant].append(candidate)
    return [c for found in by_variant.values() for c in found[: count // len(by_variant)]]


@pytest.mark.parametrize(
    ("length_class", "dims", "causal", "below"),
    [
        ("medium", (64, 64), None, 0),
        ("medium", (40, 80), "bottom_right", 1),
        ("long", (7, 3), "top_left", 0),
        ("decode-r2", (64, 96), "bottom_right", 1),
        ("decode-r8", (128, 64), None, 0),
    ],
)
def test_drawn_candidates_build_and_are_right(
    length_class: str, dims: tuple[int, int], causal: str | None, below: int
) -> None:
    """For this machine's level and, if there is one, the level below."""
    level = runnable_levels()[::-1][: below + 1][-1]
    target = detect_target(level)
    group, queries, _ = LENGTHS[length_class]
    case = AttentionWorkload(
        head_dim=dims[0], value_dim=dims[1], causal=causal, query_heads=2 * group, kv_heads=2,
        query_length=min(queries, 70), key_length=150,
    )  # fmt: skip
    q, k, v = inputs(case)
    for candidate in drawn_of(workload_of_class(length_class, *dims), target, 3):
        out = poisoned((*q.shape[:3], dims[1]))
        kernel_of(case, candidate, target, threads=1)(q, k, v, out)
        assert_right(out, q, k, v, causal=causal, what=f"{level}: {candidate}")


@pytest.mark.parametrize("level", LEVELS["x86"])
def test_defaults_build_for_levels_this_machine_may_lack(level: str) -> None:
    target = named_target(level)
    for length_class in ("decode-r1", "medium", "long"):
        workload = workload_of_class(length_class, 64, 64)
        candidate = x86.default_candidate(workload, x86.machine_parameters(target))
        assert "define" in build_source(workload, target, candidate)
