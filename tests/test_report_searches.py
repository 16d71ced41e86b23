"""What the report says of searches: the best so far, and which decision mattered."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_logs import SMALL, trial

from tvm_attention import environment
from tvm_attention.report.influence import best_so_far, influences
from tvm_attention.target import detect_target
from tvm_attention.tuning.journal import Journal
from tvm_attention.tuning.searches import searches


def test_best_so_far() -> None:
    trials = [trial(None), trial(3.0), trial(4.0), trial(None), trial(2.0)]
    assert best_so_far(trials) == [None, 3.0, 3.0, 3.0, 2.0]


def test_the_decision_that_matters_is_named() -> None:
    """Time doubles with ``matters``; ``noise`` alternates and ``fixed`` has one value."""
    trials = [
        trial(1e-3 * 2 ** (n % 4) * 1.01 ** (n * 7 % 5), matters=n % 4, noise=n // 4 % 3, fixed=1)
        for n in range(24)
    ]
    found = {i.decision: i.share for i in influences(trials)}
    assert next(iter(found)) == "matters"
    assert found["matters"] > 0.95
    assert found["noise"] < 0.05
    assert found.keys() == {"matters", "noise"}


def test_decisions_are_those_of_the_best_variant() -> None:
    slow = [trial(1.0 + n / 100, "row_block", score_rows=n % 3) for n in range(8)]
    fast = [trial(0.1 + n / 100 * (n % 2), "running", block=n % 2) for n in range(8)]
    found = {i.decision: i.share for i in influences(slow + fast + [trial(None, "streaming")])}
    assert list(found) == ["variant", "block"]
    assert found["variant"] > 0.8


def test_nothing_is_said_of_too_few_trials() -> None:
    assert influences([]) == []
    assert influences([trial(None)]) == []
    assert influences([trial(1.0, a=1), trial(2.0, a=2), trial(3.0, a=3)]) == []
    assert influences([trial(1.0, a=n % 2) for n in range(9)]) == []


def test_searches_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path))
    host = detect_target()
    journal = Journal(SMALL, host, 2)
    journal.start_again()
    assert searches() == []  # nothing was tried yet
    journal.add(trial(2.0))
    journal.add(trial(1.0))
    old = journal.path.with_name("old.jsonl")  # of a version that did not say what it searched
    old.write_text(journal.path.read_text().splitlines()[-1] + '\n{"ended": "all trials used"}\n')
    journal.path.with_name("bad.jsonl").write_bytes(b"\xff\xfe")
    journal.path.with_name("dir.jsonl").mkdir()
    ours, other = sorted(searches(), key=lambda s: s.path.name == "old.jsonl")
    assert (ours.workload, ours.target, ours.threads, ours.current) == (SMALL, host.name, 2, True)
    assert [t.seconds for t in ours.trials] == [2.0, 1.0]
    assert ours.ended is None
    assert (other.workload, other.current, other.ended) == (None, False, "all trials used")
