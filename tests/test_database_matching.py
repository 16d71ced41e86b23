"""The ladder: which record is taken for a workload on a machine, and the reasons given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_records import DIGEST, log, machine, record

from tvm_attention import environment
from tvm_attention.database import (
    RUNGS,
    Match,
    TuningLog,
    TuningRecord,
    match,
    user_log_path,
    write_log,
)
from tvm_attention.target import HardwareTarget, cut_down, named_target
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=64)
EXACT, MICRO, LEVEL, LOWER, DEFAULT = RUNGS


def find(*records: TuningRecord, target: HardwareTarget | None = None) -> Match:
    return match(WORKLOAD, target or machine(), [log(*records)])


def refused(one: TuningRecord, why: str, target: HardwareTarget | None = None) -> None:
    """The record is not taken, and the reason says why."""
    found = find(one, target=target)
    assert (found.record, found.rung) == (None, DEFAULT)
    assert len(found.reasons) == 2
    assert found.reasons[0].startswith("default schedule: taken")
    assert f"{one}: refused: " in found.reasons[1]
    assert why in found.reasons[1]


V3 = machine("haswell", "x86-64-v3", l1d=32 << 10, l2=256 << 10)
V2 = machine("nehalem", "x86-64-v2", l1d=32 << 10, l2=256 << 10)


@pytest.mark.parametrize(
    ("there", "rung"),
    [
        (machine(), EXACT),
        (machine(model="Another CPU"), MICRO),
        (machine(l2=1 << 20), MICRO),
        (machine("zen4", l1d=32 << 10, l2=1 << 20), LEVEL),
        (V3, LOWER),
        (V2, LOWER),
    ],
)
def test_rungs(there: HardwareTarget, rung: str) -> None:
    one = record(there)
    found = find(one)
    assert (found.record, found.rung) == (one, rung)
    assert len(found.reasons) == 1
    assert f"shipped folder/a.jsonl: {one}: taken: {rung}" in found.reasons[0]


def test_the_highest_rung_wins_whatever_the_times() -> None:
    exact, micro = record(tuned=1.9e-3), record(machine(model="Another CPU"), tuned=1e-3)
    level, lower = record(machine("zen4"), tuned=1e-4), record(V3, tuned=1e-5)
    lowest = record(V2, tuned=1e-6)
    ladder = [exact, micro, level, lower, lowest]
    while ladder:
        found = find(*reversed(ladder))
        assert found.record == ladder[0]
        assert [r.split(": ")[2] for r in found.reasons[1:]] == ["outranked"] * (len(ladder) - 1)
        ladder.pop(0)
    assert find() == Match(
        None, DEFAULT, ("default schedule: taken: no tuning record fits icelake",)
    )


def test_a_lower_level_is_said_so() -> None:
    assert "tuned for x86-64-v3, this machine has x86-64-v4" in find(record(V3)).reasons[0]


def test_machine_refusals() -> None:
    refused(record(), "needs avx512bw", V3)
    refused(record(machine("zen4", l2=512 << 10)), "caches differ: L1d 48 KiB and L2 512 KiB")
    refused(record(machine("haswell", "x86-64-v3", l2=8 << 20)), "caches differ")
    arm = machine("cortex_a72", "aarch64", kind="arm")
    refused(record(arm), "for arm, this machine is x86")
    refused(record(), "for x86, this machine is arm", arm)
    strange = {**machine().facts(), "isa": "x86-64-v9"}
    refused(record(hardware=strange), "unknown instruction set x86-64-v9")


def test_features_count_rather_than_the_level_named() -> None:
    host = machine()
    hiding = replace(host, features=host.features - {"avx512vl"})
    refused(record(machine("zen4")), "needs avx512vl, which icelake lacks", hiding)


def test_unknown_caches_are_not_compared_and_said_so() -> None:
    one = record(machine("zen4", l1d=32 << 10, l2=512 << 10))
    found = find(one, target=named_target("x86-64-v4"))
    assert (found.record, found.rung) == (one, LEVEL)
    assert "cache sizes not all known" in found.reasons[0]


def test_generic_names_and_empty_models_prove_nothing() -> None:
    generic = machine("x86-64-v4", model="", micro_architecture="x86_64_v4")
    found = find(record(generic), target=generic)
    assert found.rung == LEVEL
    assert find(
        record(replace(generic, model="CPU")), target=replace(generic, model="CPU")
    ).rung == (EXACT)


def test_a_host_cut_down_takes_records_of_itself_cut_down() -> None:
    low = cut_down(machine(), "x86-64-v3")
    one = record(low)
    found = find(record(), one, target=low)
    assert (found.record, found.rung) == (one, EXACT)
    assert "needs avx512bw" in found.reasons[1]


@pytest.mark.parametrize(
    ("tuned", "why"),
    [
        (AttentionWorkload(head_dim=64, causal=True), "causal top_left, wanted None"),
        (AttentionWorkload(head_dim=64, key_length=4096), "length class long, wanted medium"),
        (AttentionWorkload(head_dim=64, query_length=1), "length class decode-r1, wanted medium"),
        (AttentionWorkload(head_dim=64, query_length=63), "63 queries, too far from "),
        (AttentionWorkload(head_dim=129), "head dimensions 129/129, too far from 64/64"),
        (AttentionWorkload(head_dim=31), "too far"),
        (AttentionWorkload(head_dim=64, value_dim=256), "head dimensions 64/256, too far"),
    ],
)
def test_workload_refusals(tuned: AttentionWorkload, why: str) -> None:
    refused(record(workload=tuned), why)


def test_dtype_refusal() -> None:
    found = match(replace(WORKLOAD, dtype="bfloat16"), machine(), [log(record())])
    assert "dtype float32, wanted bfloat16" in found.reasons[1]


def with_options(**options: Any) -> TuningRecord:
    return record(workload=replace(WORKLOAD, **options))


def test_the_record_of_the_nearest_options_is_taken() -> None:
    """A schedule tuned with other options serves, said so, unless one is nearer."""
    masked = replace(WORKLOAD, mask="bool", softcap=True)
    plain, capped = with_options(), with_options(softcap=True)
    other, same = with_options(alibi=True, sinks=True), with_options(mask="bool", softcap=True)
    ladder = [same, capped, plain, other]
    while ladder:
        found = match(masked, machine(), [log(*reversed(ladder))])
        assert found.record == ladder[0]
        said = "its schedule, tuned with other options" in found.reasons[0]
        assert said is (ladder[0] is not same)
        ladder.pop(0)
    assert find(capped, plain).record == plain


def test_options_count_after_head_dimensions_and_before_times() -> None:
    wanted = replace(WORKLOAD, mask="bool")
    exact = record(workload=replace(wanted, mask=None), tuned=1.9e-3)
    near = record(workload=replace(wanted, head_dim=80), tuned=1e-4)
    assert match(wanted, machine(), [log(near, exact)]).record == exact


def test_numbers_are_no_options() -> None:
    narrow = with_options(window=(16, 0))
    found = match(replace(WORKLOAD, window=(512, 512)), machine(), [log(narrow)])
    assert found.record == narrow
    assert "other options" not in found.reasons[0]


def test_options_of_a_record_in_words() -> None:
    assert str(with_options()).endswith("512x512x64 float32 on icelake")
    words = str(with_options(causal=True, mask="bool", softcap=True))
    assert words.endswith("float32 causal with mask bool, softcap on icelake")


def test_both_causal_kinds_share_records() -> None:
    tuned = record(workload=AttentionWorkload(head_dim=64, causal="bottom_right"))
    found = match(AttentionWorkload(head_dim=64, causal="top_left"), machine(), [log(tuned)])
    assert found.record == tuned


def test_nearest_head_dimension_is_said_so() -> None:
    far, near = (record(workload=AttentionWorkload(head_dim=d)) for d in (128, 80))
    found = find(far, near)
    assert found.record == near
    assert "head dimensions 80/80 are the nearest tuned to 64/64" in found.reasons[0]
    exact = record(tuned=1.99e-3)
    assert find(far, near, exact).record == exact


def test_measured_before_modelled_before_times() -> None:
    measured, modelled = record(tuned=1.9e-3), record(kind="modelled", tuned=1e-5)
    assert find(modelled, measured).record == measured
    assert "modelled by Made-up CPU, not measured" in find(modelled).reasons[0]
    logs = [log(modelled, user=True), log(measured)]
    found = match(WORKLOAD, machine(), logs)
    assert found.record == measured
    assert found.reasons[1].endswith("outranked: exact machine, modelled")


@pytest.mark.parametrize(
    "measured",
    [
        record(machine("zen4"), tuned=1.9e-3),
        record(machine("x86-64-v4", model="", micro_architecture="x86_64_v4"), tuned=1.9e-3),
        record(V3, tuned=1.9e-3),
        record(machine("zen4"), tuned=1.9e-3, workload=AttentionWorkload(head_dim=80)),
        record(machine("zen4"), tuned=1.9e-3, workload=replace(WORKLOAD, softcap=True)),
    ],
    ids=["near core", "generic", "lower level", "near head dimension", "other options"],
)
def test_any_measured_record_outranks_the_modelled_one_of_this_machine(
    measured: TuningRecord,
) -> None:
    modelled = record(kind="modelled", tuned=1e-5)
    logs = [log(modelled, user=True), log(measured)]
    found = match(WORKLOAD, machine(), logs)
    assert found.record == measured
    # One that may not serve at all does not stand in its way.
    refused_one = record(machine("zen4", l2=512 << 10), tuned=1e-6)
    assert match(WORKLOAD, machine(), [log(modelled, refused_one)]).record == modelled


def test_user_before_shipped() -> None:
    own, shipped = record(tuned=1.9e-3), record(tuned=1e-4)
    found = match(WORKLOAD, machine(), [log(shipped), log(own, user=True)])
    assert found.record == own
    assert found.reasons[0].startswith("user folder/a.jsonl")
    assert found.reasons[1].endswith("outranked: exact machine")


def test_near_lengths_then_threads_then_times() -> None:
    near = record(workload=AttentionWorkload(head_dim=64, key_length=600), tuned=1.9e-3)
    far = record(workload=AttentionWorkload(head_dim=64, key_length=1024))
    assert find(far, near).record == near
    near = record(workload=AttentionWorkload(head_dim=64, query_length=500), tuned=1.9e-3)
    far = record(workload=AttentionWorkload(head_dim=64, query_length=64))
    assert find(far, near).record == near
    near = record(workload=AttentionWorkload(head_dim=64, batch=2), tuned=1.9e-3)
    far = record(workload=AttentionWorkload(head_dim=64, query_heads=128))
    assert find(far, near).record == near
    two, four = record(threads=2, tuned=1.9e-3), record(threads=4)
    logs = [log(four, two)]
    assert match(WORKLOAD, machine(), logs).record == two
    assert match(WORKLOAD, machine(), logs, threads=4).record == four
    slow, fast = record(tuned=1.5e-3), record(tuned=1.4e-3, variant="streaming")
    assert find(slow, fast).record == fast


def test_expression_and_ties() -> None:
    logs = [log(record())]
    assert match(WORKLOAD, machine(), logs, expression=DIGEST).record is not None
    changed = match(WORKLOAD, machine(), logs, expression="f" * 16)
    assert changed.record is None
    assert changed.reasons[1].endswith("refused: expression changed")
    assert match(WORKLOAD, machine(), [log(record(tuned=2e-3))]).record is not None
    refused(record(tuned=2.1e-3), "slower than the default schedule")


def test_what_the_design_space_does_not_allow() -> None:
    def legal(one: TuningRecord) -> str | None:
        return "query_tile 32 is not allowed" if one.decisions["query_tile"] == 32 else None

    bad, good = record(), record(tuned=1.9e-3, decisions={"query_tile": 16})
    found = match(WORKLOAD, machine(), [log(bad, good)], legal=legal)
    assert found.record == good
    assert found.reasons[1].endswith(f"{bad}: refused: query_tile 32 is not allowed")


def test_records_refused_alike_share_a_line() -> None:
    many = [record(kind="modelled", threads=i, expression="f" * 16) for i in range(1, 10)]
    found = match(WORKLOAD, machine(), [log(*many)], expression=DIGEST)
    assert len(found.reasons) == 2
    assert " and 6 more: refused: expression changed" in found.reasons[1]


def test_a_refused_log_is_listed_and_the_others_serve() -> None:
    damaged = TuningLog("user a/b.jsonl", True, (), "user a/b.jsonl: line 2: not JSON")
    found = match(WORKLOAD, machine(), [damaged, log(record())])
    assert found.rung == EXACT
    assert found.reasons[1] == "refused whole: user a/b.jsonl: line 2: not JSON"


def test_logs_on_disk_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path))
    write_log(user_log_path("icelake"), [record()])
    (tmp_path / "icelake" / "bad.jsonl").write_bytes(b"\xff")
    found = match(WORKLOAD, machine())
    assert (found.record, found.rung) == (record(), EXACT)
    assert any("user icelake/bad.jsonl: line 1: expected UTF-8" in r for r in found.reasons)
