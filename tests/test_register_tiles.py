"""Register tiles of x86 kernels, as their assembly shows them: what a hot loop does beside its products."""

from __future__ import annotations

import re

import pytest
from attention_variants import MATRIX, VARIANTS, decode_candidate, lanes_of, prefill_candidate

from tvm_attention.compiler import build_module
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.workload import AttentionWorkload

LEVELS = ["x86-64-v3", "x86-64-v4"]
# Beside products and what they read: two pointers, a counter, a branch, and as much again.
MOST_STEPS = 8
LABEL = re.compile(r"(\.L\w+):")
JUMP = re.compile(r"j\w+\s+(\.L\w+)$")
MULTIPLY_ADD = re.compile(r"vfn?madd\w*ps\s.*%([xyz]mm\d+)$")
LOAD = re.compile(r"v(mov[ua]ps|broadcastss)\s+[^%]*\(.*%[xyz]mm\d+$")
STORE = re.compile(r"v?mov\w*\s+%[^()]*,\s*[^%]*\(")


def innermost_loops(assembly: str) -> list[list[str]]:
    """The instructions between a label and a jump back to it, where no other such pair is inside."""
    lines = [line.split("#")[0].strip() for line in assembly.splitlines()]
    labels = {m[1]: n for n, line in enumerate(lines) if (m := LABEL.match(line))}
    jumps = ((n, JUMP.match(line)) for n, line in enumerate(lines))
    loops = [(labels[m[1]], n) for n, m in jumps if m and labels.get(m[1], n + 1) <= n]
    inner = [
        (a, b) for a, b in loops
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
    ]  # fmt: skip
    return [lines[a : b + 1] for a, b in inner]


def accumulators(loop: list[str]) -> int:
    """Different registers that a loop's multiply-adds add to, none of them stored in the loop."""
    if any(STORE.match(line) for line in loop):
        return 0
    return len({m[1] for line in loop if (m := MULTIPLY_ADD.match(line))})


def steps_beside(loop: list[str]) -> int:
    """Instructions that neither multiply and add nor bring numbers for that."""
    return sum(not (LABEL.match(x) or MULTIPLY_ADD.match(x) or LOAD.match(x)) for x in loop)


def product_tiles(
    target: HardwareTarget, name: str
) -> tuple[AttentionWorkload, Candidate, set[int]]:
    """A case with products of many steps, and the accumulators of its two register tiles."""
    if name == "split_kv":
        case = AttentionWorkload(head_dim=512, query_heads=4, kv_heads=1, query_length=1)
        candidate = decode_candidate(4)
        tiles = {candidate["score_keys"] * 4}
        if (
            lanes_of(target) > 8
        ):  # LLVM unrolls fewer steps of the value tile, into a loop that stores
            tiles.add(candidate["value_rows"] * candidate["value_vectors"])
        return case, candidate, tiles
    candidate = prefill_candidate(name, lanes_of(target), 256)
    tiles = {candidate[f"{x}_rows"] * candidate[f"{x}_vectors"] for x in ("score", "value")}
    return AttentionWorkload(head_dim=256), candidate, tiles


def tile_loops(
    target: HardwareTarget, case: AttentionWorkload, candidate: Candidate
) -> dict[int, list[int]]:
    """Of the loops that store nothing, by their accumulators: the steps beside their products."""
    assembly = build_module(case, target, candidate).mod.inspect_source("asm")
    found: dict[int, list[int]] = {}
    for loop in innermost_loops(assembly):
        found.setdefault(accumulators(loop), []).append(steps_beside(loop))
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [n for n in VARIANTS if n not in MATRIX])
def test_register_tiles_stay_in_registers(name: str, level: str) -> None:
    """No hot loop stores anything: one that spills, or keeps its accumulators in memory, would."""
    target = named_target(level)
    case, candidate, tiles = product_tiles(target, name)
    found = tile_loops(target, case, candidate)
    for tile in tiles:
        assert tile in found, f"no loop of {tile} accumulators without stores: {sorted(found)}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("length", "head_dim", "causal"),
    [(512, 64, False), (512, 40, True), (4096, 40, False), (4096, 128, True)],
)
def test_addresses_are_computed_outside_of_hot_loops(
    length: int, head_dim: int, causal: bool, level: str
) -> None:
    """Of default schedules: an address of its own for each row of a tile took half of the time."""
    case = AttentionWorkload(
        head_dim=head_dim, query_length=length, key_length=length, causal=causal
    )
    target = named_target(level)
    schedules = schedules_for(target)
    candidate = schedules.default_candidate(case, schedules.machine_parameters(target))
    assert candidate.variant == "running"
    found = tile_loops(target, case, candidate)
    tile = candidate["score_rows"] * candidate["score_vectors"]
    assert tile == candidate["value_rows"] * candidate["value_vectors"]
    steps = sorted(found[tile])
    assert len(steps) >= 2, "no loop for scores and one for values"
    assert steps[-1] <= MOST_STEPS, f"steps beside products: {steps}"


def test_a_spilling_loop_is_seen() -> None:
    loop = [".LBB0_1:", "vfmadd231ps (%rax), %ymm1, %ymm2", "jne .LBB0_1"]
    assert accumulators(loop) == 1
    for store in ("vmovups %ymm2, 64(%rsp)", "vmovaps\t%zmm2, (%r13,%rax)"):
        assert accumulators([*loop[:2], store, loop[2]]) == 0
    assert accumulators([*loop[:2], "vmovups (%rsp), %ymm3", loop[2]]) == 1
    assert steps_beside([*loop, "vmovd %xmm3, %esi", "vpaddd %xmm1, %xmm2, %xmm3"]) == 3
    assert steps_beside([*loop, "vbroadcastss 28(%r14,%rsi,4), %zmm4"]) == 1
    assert innermost_loops("\n".join([".LBB0_0:", *loop, "jmp .LBB0_0"])) == [loop]
