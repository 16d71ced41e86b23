"""The cores that can be modelled: whose pipelines, and what memory costs them.

Each is checked against what its vendor's guide says (tvm_attention.modelling.self_check) before it is
believed. LLVM 19's own models are wrong for some: it takes the Cortex-A76 and A78 for a Cortex-A57, with
one 128-bit FMLA a cycle instead of two; has none of the Cortex-A53's results forwarded; gives the
Cortex-A55 two 128-bit FMLA a cycle instead of one and six cycles to a pair of loads; and takes Apple's
M1 for a Cyclone, with three vector pipelines instead of four. For Sapphire Rapids it has one 512-bit FMA
a cycle instead of two, which Skylake's model has. The documents are named beside the rates, there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_attention.errors import TuningError
from tvm_attention.modelling.pipelines import Pipelines, Use
from tvm_attention.target import HardwareTarget


@dataclass(frozen=True)
class Core:
    """model: LLVM's name of a processor, or pipelines of our own. compiled_as: the target whose code is
    modelled; cores of one share it. clock: GHz. window: instructions that start out of order, with which
    short loops overlap; 0 in order. spill: cycles of a store and reload. line_l1, line_l2: cycles for a
    line of 64 bytes from L2 and from beyond, of which a core fetches several at a time. line_memory: the
    same from memory with all cores reading."""

    name: str
    model: str | Pipelines
    compiled_as: str
    clock: float
    window: int
    spill: float
    line_l1: float
    line_l2: float
    line_memory: float

    @property
    def model_name(self) -> str:
        return self.model if isinstance(self.model, str) else "own pipelines"


def _uses(
    multiply: int, latency: int, wide_load: Use, load: Use, wide_store: Use, fp: str
) -> dict[str, Use]:
    return {
        "multiply": Use(fp, 1, multiply),
        "float": Use(fp, 1, latency),
        "vector": Use(fp, 1, latency - 1),
        "divide": Use(fp, 10, 14),
        "wide load": wide_load,
        "pair wide load": Use(
            wide_load.pipeline, 2 * wide_load.cycles, wide_load.latency, wide_load.alone
        ),
        "load": load,
        "pair load": Use(load.pipeline, 2 * load.cycles, load.latency, load.alone),
        "wide store": wide_store,
        "pair wide store": Use(wide_store.pipeline, 2 * wide_store.cycles, 1, wide_store.alone),
        "store": Use(wide_store.pipeline, 1, 1),
        "pair store": Use(wide_store.pipeline, 1, 1),
        "prefetch": Use(load.pipeline, 1, 1),
        "integer": Use("integer", 1, 1),
        "branch": Use("branch", 1, 1),
    }


# In order, two a cycle. Vectors of 128 bits take both halves of the NEON unit: one a cycle. A load of
# 128 bits takes two cycles in which nothing else starts (Arm Cortex-A55 Software Optimization Guide; of
# the A53 Arm publishes none, and ncnn's notes on dual issue say the same of it).
_LITTLE = {"neon": 1, "memory": 1, "integer": 2, "branch": 1}
_WIDE = Use("memory", 2, 5, alone=True)
_A53 = Pipelines(2, _LITTLE, 0, _uses(
    8, 4, _WIDE, Use("memory", 1, 4), Use("memory", 2, 1, alone=True), "neon",
))  # fmt: skip
_A55 = Pipelines(2, _LITTLE, 0, _uses(
    4, 4, _WIDE, Use("memory", 1, 3), Use("memory", 1, 1), "neon",
))  # fmt: skip
# Eight a cycle, four vector pipelines, three loads or two stores (Apple Silicon CPU Optimization Guide);
# four cycles to a multiply-add (D. Johnson, Apple Microarchitecture Research).
_M1 = Pipelines(
    8, {"neon": 4, "load": 3, "store": 2, "integer": 6, "branch": 2}, 600,
    _uses(4, 3, Use("load", 1, 6), Use("load", 1, 4), Use("store", 1, 1), "neon"),
)  # fmt: skip

# Clocks are those of common boards and servers. Lines: what a core waits for one that is fetched by
# itself, among others, from L2; from beyond; and from memory when all cores read: 64 bytes at what each
# of four gets. A Raspberry Pi 4 at 1.5 GHz reads some 4 GB/s in all. Sapphire Rapids' figures were
# measured (two cores), the others are assumed by vendors' bandwidths; they decide between candidates
# only where memory does.
_ALL = (
    Core("sapphirerapids", "skylake-avx512", "x86-64-v4", 2.8, 512, 1.0, 0.7, 4.0, 6.4),
    Core("x86_64_v4", "skylake-avx512", "x86-64-v4", 2.8, 512, 1.0, 0.7, 4.0, 6.4),
    Core("cortex_a53", _A53, "cortex-a53", 1.4, 0, 0.0, 6.0, 16.0, 90.0),
    Core("cortex_a55", _A55, "cortex-a55", 1.8, 0, 0.0, 4.0, 12.0, 80.0),
    Core("cortex_a72", "cortex-a72", "cortex-a72", 1.5, 128, 1.0, 2.0, 8.0, 96.0),
    Core("cortex_a76", "neoverse-n1", "cortex-a76", 2.4, 128, 1.0, 1.0, 6.0, 40.0),
    Core("cortex_a78", "neoverse-n1", "cortex-a76", 2.4, 160, 1.0, 1.0, 6.0, 40.0),
    Core("neoverse_n1", "neoverse-n1", "cortex-a76", 2.6, 128, 1.0, 1.0, 4.0, 24.0),
    Core("neoverse_v1", "neoverse-v1", "neoverse-v1", 2.6, 256, 1.0, 0.75, 3.0, 18.0),
    Core("neoverse_n2", "neoverse-n2", "neoverse-v1", 2.8, 160, 1.0, 0.75, 4.0, 20.0),
    Core("m1", _M1, "m1", 3.2, 600, 1.0, 0.5, 2.0, 12.0),
)
CORES: Mapping[str, Core] = {core.name: core for core in _ALL}


def core_of(target: HardwareTarget) -> Core:
    """The model of a target's core. Raises TuningError where there is none."""
    for name in (target.name, target.micro_architecture):
        known = CORES.get(name.replace("-", "_"))
        if known is not None:
            return known
    names = ", ".join(name.replace("_", "-") for name in CORES)
    raise TuningError(
        f"target {target.name}: expected a core that there is a model of ({names}); "
        f"tune on the machine itself instead"
    )
