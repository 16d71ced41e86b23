"""The search: what it proposes, and that it learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tvm_attention.schedules import Candidate, DesignSpace, schedules_for
from tvm_attention.target import named_target
from tvm_attention.tuning import strategy
from tvm_attention.tuning.journal import Trial
from tvm_attention.tuning.strategy import FIRST_MODEL, CandidateSearch
from tvm_attention.workload import AttentionWorkload

TARGET = named_target("x86-64-v3", cores=2)
PREFILL = AttentionWorkload(head_dim=16, query_heads=2, query_length=64, key_length=64)
DECODE = AttentionWorkload(head_dim=16, query_length=1, key_length=64)


@pytest.fixture(autouse=True)
def small_populations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is ranked costs 30 ms."""
    monkeypatch.setattr(strategy, "CHILDREN", 12)
    monkeypatch.setattr(strategy, "STRANGERS", 8)


def space_of(workload: AttentionWorkload) -> DesignSpace:
    schedules = schedules_for(TARGET)
    found = schedules.design_space(workload, schedules.machine_parameters(TARGET))
    assert isinstance(found, DesignSpace)
    return found


def default_of(workload: AttentionWorkload) -> Candidate:
    schedules = schedules_for(TARGET)
    found = schedules.default_candidate(workload, schedules.machine_parameters(TARGET))
    assert isinstance(found, Candidate)
    return found


def search_of(
    workload: AttentionWorkload, *seeds: Candidate, seed: int = 0, space: DesignSpace | None = None
) -> CandidateSearch:
    return CandidateSearch(workload, TARGET, space or space_of(workload), seeds, seed)


def run(
    search: CandidateSearch, seconds: Callable[[Candidate], float | None], trials: int
) -> list[Trial]:
    """Propose, measure by a formula and learn."""
    done: list[Trial] = []
    while len(done) < trials:
        batch = search.propose(min(8, trials - len(done)))
        if not batch:
            break
        found = [Trial(c, seconds(c), "") for c in batch]
        search.learn(found)
        done += found
    return done


def test_seeds_come_first_and_only_legal_ones() -> None:
    default = default_of(PREFILL)
    other = default.replace(value_columns_outer=1 - default["value_columns_outer"])
    illegal = default.replace(query_block=7)
    batch = search_of(PREFILL, default, illegal, other, default).propose(8)
    assert batch[:2] == [default, other]
    assert len(batch) == len(set(batch)) == 8
    assert illegal not in batch


def test_proposals_are_legal_new_and_repeatable() -> None:
    space = space_of(PREFILL)

    def made_up(candidate: Candidate) -> float | None:
        return None if candidate["score_rows"] == 4 else 1e-3 / candidate["query_block"]

    runs = [run(search_of(PREFILL, seed=3), made_up, 24) for _ in range(2)]
    candidates = [t.candidate for t in runs[0]]
    assert len(set(candidates)) == 24
    assert all(space.refusal(c) is None for c in candidates)
    assert runs[0] == runs[1]
    assert run(search_of(PREFILL, seed=4), made_up, 8) != runs[0][:8]


def test_what_was_measured_before_is_not_proposed_again() -> None:
    first = run(search_of(PREFILL), lambda c: 1e-3, 12)
    again = search_of(PREFILL, *(t.candidate for t in first))
    again.learn(first)
    batch = again.propose(8)
    assert len(batch) == 8
    assert not {t.candidate for t in first} & set(batch)


def test_a_space_that_is_exhausted_ends_the_search() -> None:
    space = space_of(DECODE)
    every = set(space.candidates())
    done = run(search_of(DECODE), lambda c: 1e-3, len(every) + 50)
    assert {t.candidate for t in done} <= every
    assert len(done) > 0.9 * len(every)


def test_a_search_finds_its_way_to_the_fast_end() -> None:
    """By a formula that one decision rules: later proposals are faster than strangers."""

    def seconds(candidate: Candidate) -> float:
        return 1e-3 * (1 + abs(candidate["query_block"] - 112))

    done = run(search_of(PREFILL, seed=1), seconds, 56)
    first = sorted(seconds(t.candidate) for t in done[:FIRST_MODEL])
    last = sorted(seconds(t.candidate) for t in done[-16:])
    assert last[len(last) // 2] < first[len(first) // 2]
    assert min(last) == 1e-3


def test_when_everything_fails_the_search_goes_on() -> None:
    done = run(search_of(PREFILL), lambda c: None, 12)
    assert len({t.candidate for t in done}) == 12


@pytest.mark.parametrize("workload", [PREFILL, DECODE])
def test_the_default_is_proposed_first_of_all(workload: AttentionWorkload) -> None:
    assert search_of(workload, default_of(workload)).propose(1) == [default_of(workload)]
