"""ARM: machines, detection, default schedules, the ladder."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from tuning_records import log, machine, modelled, record

from tvm_attention.caches import Cores
from tvm_attention.database import match
from tvm_attention.processor import read_processor
from tvm_attention.schedules import arm, schedules_for
from tvm_attention.target import host_target, named_target
from tvm_attention.workload import AttentionWorkload

CORES = ("cortex-a53", "cortex-a55", "cortex-a72", "cortex-a76", "cortex-a78", "neoverse-n1",
         "neoverse-v1", "neoverse-n2", "apple-m1")  # fmt: skip


@pytest.mark.parametrize("name", CORES)
def test_every_core_has_its_machine(name: str) -> None:
    target = named_target(name)
    machine = schedules_for(target).machine_parameters(target)
    has = {
        "bfmmla": name in ("neoverse-v1", "neoverse-n2"),
        "dot_run": 0 if name in ("cortex-a53", "cortex-a72") else 4,
        "dot_sums": name not in ("cortex-a53", "cortex-a72"),
        "half_products": name in ("neoverse-v1", "neoverse-n2", "apple-m1"),
        "pair_products": name in ("neoverse-v1", "neoverse-n2"),
    }
    assert machine == replace(arm.MACHINES[target.micro_architecture], **has)
    assert (machine.lanes, machine.registers, machine.broadcast_operand) == (4, 32, False)
    assert machine.in_order == (name in ("cortex-a53", "cortex-a55"))
    assert target.llvm()["mtriple"] == "aarch64-linux-gnu"
    assert target.llvm()["mcpu"] == name


def test_a_machines_own_caches_count() -> None:
    target = replace(named_target("cortex-a72"), l1d=48 << 10, l2=2 << 20)
    machine = arm.machine_parameters(target)
    assert (machine.l1, machine.l2) == (48 << 10, 2 << 20)
    unknown = replace(target, micro_architecture="cortex_x9", l1d=0)
    assert arm.machine_parameters(unknown).l1 == arm.MACHINES["aarch64"].l1


@pytest.mark.parametrize("name", ["cortex-a53", "cortex-a72", "apple-m1"])
def test_default_schedules_are_in_the_design_space(name: str) -> None:
    target = named_target(name)
    machine = arm.machine_parameters(target)
    rng, refused = Random(1), []
    for _ in range(400):
        workload = AttentionWorkload(
            head_dim=rng.choice((1, 3, 40, 64, 96, 128, 512)), value_dim=rng.choice((None, 1, 7, 80)),
            dtype=rng.choice(("float32", "float16", "bfloat16")),
            causal=rng.choice((None, "top_left")), key_length=rng.choice((60, 700, 4000)),
            query_length=rng.choice((1, 2, 300)), kv_heads=rng.choice((8, 2)),
            mask=rng.choice((None, "bool", "float32")), sinks=rng.random() < 0.3,
            ragged=rng.random() < 0.3, kv_dtype=rng.choice((None, None, "int8")),
            output=rng.choice(("attention", "attention_and_lse", "weights")),
        )  # fmt: skip
        if workload.mask is not None:
            workload = replace(workload, mask_dense=rng.random() < 0.5)
        candidate = arm.default_candidate(workload, machine)
        why = arm.design_space(workload, machine).refusal(candidate)
        refused += [f"{workload}: {candidate}: {why}"] if why else []
    assert refused == []


def test_in_order_cores_keep_registers_free() -> None:
    workload = AttentionWorkload(head_dim=64)
    a53, a72 = (
        arm.default_candidate(workload, arm.MACHINES[core]) for core in ("cortex_a53", "cortex_a72")
    )
    assert (a53["value_rows"] * a53["value_vectors"], a72["value_rows"] * a72["value_vectors"]) == (
        16,
        24,
    )
    # Accumulators, keys of four steps a row, queries.
    used = {c["score_rows"] * (c["score_vectors"] + 1) + c["score_vectors"] for c in (a53, a72)}
    assert used == {26, 27}


def test_key_blocks_fit_into_half_of_l1() -> None:
    for core, dim in product(arm.MACHINES.values(), (32, 64, 128)):
        block = arm.default_candidate(AttentionWorkload(head_dim=dim), core)["key_block"]
        smallest = 64 if core.in_order else 96  # of whole score tiles
        assert 2 * block * dim * 4 <= core.l1 or block == smallest


def test_a_raspberry_pi_is_detected() -> None:
    core = (
        "processor : {}\nFeatures : fp asimd evtstrm crc32 cpuid\n"
        "CPU implementer : 0x41\nCPU part : 0xd08\n"
    )
    found = read_processor(
        "aarch64", "\n".join(core.format(i) for i in range(4)), "Raspberry Pi 4 Model B"
    )
    host = host_target(found, Cores(4, 32 << 10, 256 << 10, 0))
    assert (host.name, host.kind, host.model) == ("cortex_a72", "arm", "Raspberry Pi 4 Model B")
    # It has no cryptography, which must not keep a kernel for its core away.
    assert named_target("cortex-a72").features <= host.features
    assert schedules_for(host).machine_parameters(host).lanes == 4


def test_measured_records_outrank_modelled_ones() -> None:
    """Of this machine always, whatever the head dimension; of the core, for the same case."""
    named = named_target("cortex-a72")
    board = replace(named, model="Raspberry Pi 4", l1d=32 << 10, l2=1 << 20)
    shipped = log(modelled(host=replace(named, l1d=32 << 10, l2=256 << 10), tuned=1e-5))
    [one] = shipped.records
    assert match(one.workload, board, [shipped]).record == one
    for measured in (
        record(board, tuned=1.9e-3, workload=replace(one.workload, head_dim=80, value_dim=80)),
        record(replace(board, model="Another board"), tuned=1.9e-3),
    ):
        assert match(one.workload, board, [shipped, log(measured)]).record == measured


def test_the_ladder_on_arm() -> None:
    there = machine("cortex_a72", "aarch64", l1d=32 << 10, l2=256 << 10, kind="arm")
    one = record(there)
    logs = [log(one)]
    assert match(one.workload, there, logs).rung == "exact machine"
    another = replace(there, model="Another board")
    assert match(one.workload, another, logs).rung == "same micro-architecture"
    a76 = replace(another, name="cortex_a76", micro_architecture="cortex_a76")
    assert match(one.workload, a76, logs).rung == "same instruction set, similar caches"
    found = match(one.workload, replace(a76, l1d=128 << 10), logs)
    assert found.record is None
    assert "caches differ" in found.reasons[1]
