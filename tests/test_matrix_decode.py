"""Decoding on the matrix unit: where it is offered, what its kernels are made of, their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import laid_out
from attention_variants import MATRIX, of_dtype
from decoding_calls import assert_right, attended, quantised

from tvm_attention.compiler import build_module
from tvm_attention.compute import digits
from tvm_attention.compute.matrix_decode import COLUMNS, TILE_ROW
from tvm_attention.errors import KernelBuildError
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.random_calls import random_inputs, random_options
from tvm_attention.schedules import Candidate, cpu_decode_space, cpu_matrix_decode_space, x86
from tvm_attention.target import detect_target, named_target
from tvm_attention.workload import AttentionWorkload

HOST, WITHOUT = named_target("sapphirerapids"), named_target("icelake")
needs_unit = pytest.mark.skipif(not MATRIX, reason="this machine has no matrix unit (AMX)")
NUMBERS = AttentionWorkload(
    head_dim=64, value_dim=96, dtype="bfloat16", batch=2, query_heads=8, kv_heads=2,
    query_length=1, key_length=97, output="attention_and_lse",
)  # fmt: skip
OPTIONS = replace(
    NUMBERS, head_dim=32, value_dim=32, query_length=2, mask="bool", mask_dense=True,
    causal="bottom_right", window=(90, -1), alibi=True, ragged=True,
)  # fmt: skip
# The digits of eight rows take two tiles.
INTEGERS = replace(NUMBERS, value_dim=80, dtype="float32", query_length=2, kv_dtype="int8")


def candidate(w: AttentionWorkload) -> Candidate:
    found = x86.default_candidate(w, x86.machine_parameters(HOST))
    assert found.variant == "matrix_decode"
    return found


def variants(w: AttentionWorkload, target: Any = HOST) -> set[str]:
    return set(x86.design_space(w, x86.machine_parameters(target)).variants)


def attend(
    w: AttentionWorkload,
    arrays: tuple[Any, Any, Any],
    scales: tuple[Any, Any] | None = None,
    threads: int = 1,
    **options: Any,
) -> tuple[Any, Any]:
    return attended(w, candidate(w), detect_target(), arrays, scales, threads, **options)


def test_where_it_is_offered() -> None:
    for w in (NUMBERS, OPTIONS, INTEGERS):
        assert "matrix_decode" in variants(w)
        for target in (WITHOUT, named_target("x86-64-v4")):
            assert variants(w, target) == {"split_kv"}
        space = x86.design_space(w, x86.machine_parameters(HOST))
        points = x86.starting_points(w, x86.machine_parameters(HOST))
        legal = [c for c in points if space.refusal(c) is None]
        assert {c.variant for c in legal} == {"matrix_decode", "split_kv"}
    machine = x86.machine_parameters(HOST)
    alone = replace(NUMBERS, query_heads=2)
    assert "matrix_decode" in variants(alone)
    assert x86.default_candidate(alone, machine).variant == "split_kv"
    half = replace(HOST, features=HOST.features - {"amx-int8"})
    assert "matrix_decode" in variants(NUMBERS, half)
    assert "matrix_decode" not in variants(INTEGERS, half)


@pytest.mark.parametrize(
    "w",
    [
        replace(NUMBERS, dtype="float32"),
        replace(NUMBERS, dtype="float16"),
        replace(NUMBERS, head_dim=80),
        replace(NUMBERS, value_dim=80),
        replace(NUMBERS, ragged=True, paged=True),
        replace(NUMBERS, query_length=64),
        replace(INTEGERS, head_dim=96),
        replace(INTEGERS, value_dim=72),
    ],
)
def test_what_it_does_not_serve(w: AttentionWorkload) -> None:
    assert "matrix_decode" not in variants(w)


def test_tiles_of_values_fit() -> None:
    space = x86.design_space(INTEGERS, x86.machine_parameters(HOST))
    for changes, reason in (
        ({"value_vectors": 2}, "value_vectors=2 does not divide"),
        ({"value_rows": 3}, "value_rows=3 is not one of"),
    ):
        assert reason in (space.refusal(candidate(INTEGERS).replace(**changes)) or "")


def test_kernels_build_without_such_a_machine() -> None:
    """And the products are in the machine code: keys as they lie, with nothing that widens them."""
    for w, tiles in ((NUMBERS, {"tdpbf16ps": 2 * 2 + 6}), (INTEGERS, {"tdpbssd": 2 * 2})):
        code = build_module(w, HOST, candidate(w)).mod.inspect_source("asm")
        for name, count in {"tdpbf16ps": 0, "tdpbssd": 0, **tiles}.items():
            assert code.count(f"\t{name}\t") == count, (w, name)
        assert code.count("ldtilecfg") == code.count("tilerelease") > 0
        assert "vpmovzxwd" not in code


def test_none_is_built_for_a_machine_without_one() -> None:
    with pytest.raises(KernelBuildError, match="needs a processor with a matrix unit"):
        build_module(NUMBERS, WITHOUT, candidate(NUMBERS))


def test_programs_without_python_have_it() -> None:
    (kernel,) = chosen_kernels([replace(NUMBERS, head_dim=128)], ["sapphirerapids"])["x86_64"]
    assert kernel.target.features >= x86.MATRIX_UNIT
    assert kernel.most_rows == 4


@needs_unit
@pytest.mark.parametrize("w", [NUMBERS, OPTIONS], ids=["plain", "options"])
def test_lengths_around_every_tile(w: AttentionWorkload) -> None:
    for n, keys in enumerate((1, 2, 15, 16, 17, 31, 32, 33, 64, 95, 300, 513)):
        case = replace(w, key_length=keys)
        arrays, options = random_inputs(case, n), random_options(case, n)
        found = attend(w, arrays, threads=1 + n % 3, **options)
        assert_right(w, found, arrays, **options)


@needs_unit
def test_int8_lengths() -> None:
    for n, keys in enumerate((1, 31, 33, 97, 300)):
        arrays, scales, exact = quantised(replace(INTEGERS, key_length=keys), n)
        arrays[0][0, :, :, 5] *= 50  # digits are of a row's largest number
        arrays[0][1] *= 1e-3
        assert_right(INTEGERS, attend(INTEGERS, arrays, scales, threads=1 + n % 2), exact)


@needs_unit
@pytest.mark.parametrize("layout", ["dense", "heads inside", "padded rows", "reversed rows"])
def test_only_what_is_there_is_read(layout: str) -> None:
    """Arrays lie in the middle of NaN."""
    for keys in (33, 97):
        q, k, v = random_inputs(replace(NUMBERS, key_length=keys), keys)
        found = attend(NUMBERS, (q, laid_out(k, layout), laid_out(v, layout)))
        assert_right(NUMBERS, found, (q, k, v))


@needs_unit
def test_one_key_stands_for_all() -> None:
    q, k, v = random_inputs(NUMBERS, 0)
    same = tuple(np.broadcast_to(x[:, :, :1], x.shape) for x in (k, v))
    assert_right(NUMBERS, attend(NUMBERS, (q, *same)), (q, *same))


@needs_unit
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_hidden_keys_may_hold_anything(bad: float) -> None:
    q, k, v = random_inputs(OPTIONS, 0)
    options = random_options(OPTIONS, 0)
    options["kv_lengths"] = np.array([97, 80])
    options["mask"] = options["mask"].copy()
    options["mask"][..., 60:70] = False
    clean, lse = attend(OPTIONS, (q, k, v), **options)
    for array in (k, v):
        array[:, :, 60:70] = array[1, :, 80:] = of_dtype(bad, "bfloat16")
    found, again = attend(OPTIONS, (q, k, v), **options)
    np.testing.assert_array_equal(lse, again)
    np.testing.assert_allclose(found.astype(np.float32), clean.astype(np.float32), atol=0.02)


@needs_unit
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(bad: float) -> None:
    """An infinite value of the last key is infinite and no NaN, though its tile has rows of padding; a query
    that is no number makes its own row NaN."""
    q, k, v = random_inputs(replace(NUMBERS, key_length=33), 0)
    v[0, 0, -1, 7] = bad
    found, _ = attend(NUMBERS, (q, k, v))
    np.testing.assert_array_equal(found[0, :4, 0, 7].astype(np.float32), bad)
    assert np.isfinite(np.delete(found[0, :4].astype(np.float32), 7, axis=-1)).all()
    assert np.isfinite(found[:, 4:].astype(np.float32)).all()
    q, k, v = random_inputs(NUMBERS, 0)
    q[0, 1] = bad
    found, _ = attend(NUMBERS, (q, k, v))
    assert np.isnan(found[0, 1].astype(np.float32)).all()
    found[0, 1] = 0
    assert np.isfinite(found.astype(np.float32)).all()


@needs_unit
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1e-38])
def test_int8_keys_and_a_query_at_the_end(value: float) -> None:
    """The least and the largest int8, scales of zero, and a query that is no number, or as good as zero."""
    (q, k, v), (key_scale, value_scale), _ = quantised(INTEGERS)
    k[0, 0], k[0, 1] = -128, 127
    k[0, 0, ::2] = 127
    v[0] = -128
    key_scale[1, 0] = 0.0
    value_scale[1, 1] = 0.0
    q[0, 1] = value
    found = attend(INTEGERS, (q, k, v), (key_scale, value_scale))
    exact = [x * s[..., None] for x, s in ((k, key_scale), (v, value_scale))]
    if not np.isfinite(value):
        assert np.isnan(found[0][0, 1]).all()
        q[0, 1] = 0.0
        of_zeros = attend(INTEGERS, (q, k, v), (key_scale, value_scale))
        for one, other in zip(found, of_zeros, strict=True):
            one[0, 1] = other[0, 1]
    assert_right(INTEGERS, found, (q, *exact))


def test_the_space_knows_the_tiles() -> None:
    known = cpu_matrix_decode_space.COLUMNS, cpu_matrix_decode_space.TILE_ROW
    assert known == (COLUMNS, TILE_ROW)
    known_digits = {d.run: d.count for d in (digits.BYTES, digits.WORDS)}
    assert known_digits == cpu_decode_space.DIGITS
