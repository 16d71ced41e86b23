"""Merging, pruning and verifying tuning records."""

from __future__ import annotations

import pytest
from tuning_records import DIGEST, machine, modelled, record

from tvm_attention.database import (
    TuningRecord,
    format_log,
    left_to_measure,
    merge_records,
    parse_log,
    prune_records,
    verify,
)
from tvm_attention.workload import AttentionWorkload


def test_merge_keeps_the_least_ratio() -> None:
    slow, fast = record(tuned=1.5e-3), record(tuned=1e-3, decisions={"tile": 8})
    # Less time but on a slower run: the ratio decides.
    busy = record(tuned=0.9e-3, default=0.95e-3)
    assert merge_records([slow, busy], [fast]) == (fast,)
    assert merge_records([fast], [slow], [busy]) == (fast,)
    assert merge_records([record(tuned=2.1e-3)]) == ()
    assert merge_records() == ()


@pytest.mark.parametrize(
    "other",
    [
        record(threads=1),
        record(expression="f" * 16),
        record(kind="modelled"),
        record(workload=AttentionWorkload(head_dim=64, key_length=1024)),
        record(machine(model="Another CPU")),
        record(machine("zen4")),
    ],
)
def test_merge_keeps_different_cases_apart(other: TuningRecord) -> None:
    assert len(merge_records([record()], [other])) == 2


def test_prune() -> None:
    kept = record(tuned=1e-3)
    records = [
        kept,
        record(tuned=1.2e-3),
        record(tuned=2.1e-3, threads=7),
        record(expression="f" * 16),
        record(kind="modelled", tuned=0.5e-3),
        record(kind="modelled", threads=3),
        kept,
    ]
    left, dropped = prune_records(records, DIGEST)
    assert left == [kept, records[5]]
    reasons = [reason for _, reason in dropped]
    assert [one for one, _ in dropped] == [*records[1:5], kept]
    for reason, part in zip(
        reasons, ["beaten", "slower", "expression changed", "measured", "copy"], strict=True
    ):
        assert part in reason
    assert len(prune_records(records)[0]) == 3


def test_verify() -> None:
    built: list[TuningRecord] = []

    def build(one: TuningRecord) -> None:
        built.append(one)
        if one.threads == 2:
            raise RuntimeError("no such tile")

    good, bad, stale = record(threads=1), record(threads=2), record(expression="f" * 16)
    results = verify([good, bad, stale], build, DIGEST)
    assert [one for one, _ in results] == [good, bad, stale]
    assert results[0][1] is None
    assert str(results[1][1]) == "no such tile"
    assert "expression changed" in str(results[2][1])
    assert built == [good, bad]
    assert verify([record(threads=1, expression="f" * 16)], build)[0][1] is None


def test_what_a_model_leaves_to_be_measured() -> None:
    one = modelled()
    assert parse_log(format_log([one]), "a log") == (one,)
    assert left_to_measure(one) == [
        (one.variant, one.decisions), ("row_block", {"query_tile": 1}), ("row_block", {"query_tile": 2}),
    ]  # fmt: skip
    assert left_to_measure(record()) == []
    older = record(kind="modelled")  # before models were described
    assert left_to_measure(older) == [(older.variant, older.decisions)]


def test_a_measured_record_takes_the_place_of_a_modelled_one() -> None:
    slower = record(tuned=1.9e-3)
    left, [(dropped, reason)] = prune_records([modelled(), slower])
    assert (left, dropped) == ([slower], modelled())
    assert "its case is measured" in reason
