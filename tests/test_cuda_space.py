"""The CUDA design space: limits of architectures, defaults, refusals."""

from __future__ import annotations

from random import Random

import pytest
from cuda_on_cpu import code_of

from tvm_attention.errors import KernelBuildError, UnsupportedError
from tvm_attention.isa import LEVELS
from tvm_attention.schedules import Candidate, cuda, schedules_for
from tvm_attention.schedules.cuda_space import sizes_of
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

DIMS = (1, 3, 16, 32, 40, 64, 80, 96, 128, 192, 256)


def test_every_level_has_limits() -> None:
    assert {level.removeprefix("cuda-") for level in LEVELS["cuda"]} == set(cuda.MACHINES)
    for level in LEVELS["cuda"]:
        target = named_target(level)
        assert (target.name, target.kind) == (level, "cuda")
        assert schedules_for(target) is cuda
        assert named_target(level.upper().replace("_", "-")) == target


@pytest.mark.parametrize("arch", cuda.MACHINES)
def test_defaults_are_legal_for_all_head_dimensions(arch: str) -> None:
    machine = cuda.MACHINES[arch]
    for dim in DIMS:
        for queries in (1, 8, 512):
            w = AttentionWorkload(head_dim=dim, query_length=queries)
            candidate = cuda.default_candidate(w, machine)
            assert cuda.design_space(w, machine).refusal(candidate) is None
            assert candidate in cuda.starting_points(w, machine)
            assert (candidate.variant == "fused_split_kv") == (queries <= 8)


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90"])
def test_random_candidates_take_no_more_than_is_counted(arch: str) -> None:
    machine, rng = cuda.MACHINES[arch], Random(0)
    for n in range(6):
        w = AttentionWorkload(
            head_dim=(40, 64, 96)[n % 3], value_dim=(64, 80)[n % 2], query_length=(8, 64)[n % 2]
        )
        candidate = None
        while candidate is None:
            candidate = cuda.design_space(w, machine).sample(rng)
        code = code_of(w, candidate, arch)  # raises beyond the limits, which TVM verifies
        sizes = sizes_of(w, candidate)
        assert 0 < code.functions[0].shared_bytes <= sizes.shared <= machine.shared_per_block
        x, y = code.functions[0].threads
        assert x * y == sizes.threads


def test_refusals_say_which_limit() -> None:
    w = AttentionWorkload(head_dim=128)
    large = Candidate.of(
        "fused",
        {"row_threads": 16, "column_threads": 16, "rows": 4, "keys": 4, "score_steps": 4,
         "value_steps": 4, "vector": 4, "overlap": 0},
    )  # fmt: skip
    assert cuda.design_space(w, cuda.MACHINES["sm_80"]).refusal(large) is None
    refusals = {
        "sm_75": (large, "shared memory"),
        "sm_80": (large.replace(rows=8, column_threads=8), "registers"),
        "sm_90": (large.replace(row_threads=2, column_threads=8), "whole warps"),
    }
    for arch, (candidate, reason) in refusals.items():
        assert reason in str(cuda.design_space(w, cuda.MACHINES[arch]).refusal(candidate))
    odd = AttentionWorkload(head_dim=65)
    assert "vector" in str(cuda.design_space(odd, cuda.MACHINES["sm_80"]).refusal(large))


@pytest.mark.parametrize("dim", [6, 10, 18, 258])
def test_copies_end_on_whole_places_in_shared_memory(dim: int) -> None:
    """Rows of two more than whole vectors of four are made odd there: copies of two would be a fault."""
    w, machine = AttentionWorkload(head_dim=dim), cuda.MACHINES["sm_90"]
    default = cuda.default_candidate(w, machine)
    assert (default["overlap"], default["vector"]) == (1, 1)
    reason = str(cuda.design_space(w, machine).refusal(default.replace(vector=2)))
    assert "out of place" in reason
    for candidate in cuda.defaults(w, machine):
        assert (sizes_of(w, candidate).key_row % candidate["vector"] == 0) or not candidate[
            "overlap"
        ]


def test_what_exceeds_the_limits_is_not_built() -> None:
    w = AttentionWorkload(head_dim=128)
    candidate = cuda.default_candidate(w, cuda.MACHINES["sm_90"])
    with pytest.raises(KernelBuildError, match="65536 bytes of shared memory"):
        code_of(w, candidate, "sm_75")


def test_softmax_rows_have_no_variant() -> None:
    w = AttentionWorkload(head_dim=64, output="weights")
    with pytest.raises(UnsupportedError, match="weights"):
        cuda.default_candidate(w, cuda.MACHINES["sm_80"])
