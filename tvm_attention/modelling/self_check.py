"""A core's model against its vendor's guide: small loops whose cycles are known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tvm_attention.errors import TuningError
from tvm_attention.modelling import machine_code, pipelines
from tvm_attention.modelling.cores import CORES, Core
from tvm_attention.modelling.machine_code import Steady

TOLERANCE = 0.06  # of the cycles expected

_FMLA = [f"fmla v{n}.4s, v30.4s, v31.4s" for n in range(24)]
_LANE = [f"fmla v{n}.4s, v30.4s, v31.s[1]" for n in range(24)]
_LOADS = [f"ldr q{24 + n}, [x1, #{16 * n}]" for n in range(4)]
_ARM = {
    "24 FMLA": _FMLA,
    "24 FMLA by element": _LANE,
    "4 loads of 128 bits": _LOADS,
    "2 pairs of loads": ["ldp q0, q1, [x1]", "ldp q2, q3, [x1, #32]"],
    "4 loads and 24 FMLA": [x for n in range(4) for x in (_LOADS[n], *_FMLA[6 * n : 6 * n + 6])],
}
_X86 = {
    "24 FMA": [f"vfmadd231ps %zmm30, %zmm31, %zmm{n}" for n in range(24)],
    "24 FMA that broadcast": [
        f"vfmadd231ps {4 * n}(%rax){{1to16}}, %zmm31, %zmm{n}" for n in range(24)
    ],
    "4 loads": [f"vmovups {64 * n}(%rax), %zmm{n}" for n in range(4)],
}
# Cycles, in the order of the loops above, by the rates that vendors publish:
# Cortex-A72 Software Optimization Guide: FMLA, Q-form, one a cycle (F0, F1 halves); one load (L).
# Arm Neoverse N1 Software Optimization Guide: two FMLA a cycle (V), two loads (L); those of the
# Cortex-A76 and A78 give the same two rates, so that N1's model stands for them.
# Arm Neoverse V1 and N2 Software Optimization Guides: four and two FMLA a cycle, three loads.
# Arm Cortex-A55 Software Optimization Guide: one FMLA, Q-form, a cycle; a load of 128 bits takes two
# cycles and issues alone. The Cortex-A53, of which Arm has no guide, is taken to be no faster.
# Apple Silicon CPU Optimization Guide: four vector pipelines, three loads a cycle.
# Intel 64 and IA-32 Architectures Optimization Reference Manual: two 512-bit FMA, two 512-bit loads.
EXPECTED: Mapping[str, tuple[float, ...]] = {
    "cortex_a53": (24, 24, 8, 8, 32),
    "cortex_a55": (24, 24, 8, 8, 32),
    "cortex_a72": (24, 24, 4, 4, 24),
    "cortex_a76": (12, 12, 2, 2, 12),
    "cortex_a78": (12, 12, 2, 2, 12),
    "neoverse_n1": (12, 12, 2, 2, 12),
    "neoverse_v1": (6, 6, 4 / 3, 4 / 3, 6),
    "neoverse_n2": (12, 12, 4 / 3, 4 / 3, 12),
    "m1": (6, 6, 4 / 3, 4 / 3, 6),
    "sapphirerapids": (12, 12, 2),
    "x86_64_v4": (12, 12, 2),
}


def steady_cycles(loops: tuple[tuple[str, ...], ...], kind: str, core: Core) -> tuple[Steady, ...]:
    """Steady cycles of loops on a core, by whichever model it has."""
    if isinstance(core.model, str):
        return _analysed(loops, kind, core.model)
    return tuple(pipelines.steady(loops, core.model))


@lru_cache(maxsize=8)  # several cores have the same model
def _analysed(loops: tuple[tuple[str, ...], ...], kind: str, processor: str) -> tuple[Steady, ...]:
    return tuple(machine_code.steady(loops, kind, processor, FEATURES[kind]))


# What our kernels may use: the analyser refuses instructions that its processor lacks.
FEATURES = {"x86": "", "arm": "+fullfp16,+fp16fml,+dotprod,+bf16,+i8mm"}


def differences(name: str) -> list[str]:
    """What a core's model says otherwise than its vendor's guide."""
    core = CORES[name]
    loops = _X86 if len(EXPECTED[name]) == len(_X86) else _ARM
    kind = "x86" if loops is _X86 else "arm"
    found = steady_cycles(tuple(map(tuple, loops.values())), kind, core)
    return [
        f"{what}: {got.cycles:.2f} cycles, {expected:.2f} by the guide"
        for what, got, expected in zip(loops, found, EXPECTED[name], strict=True)
        if not abs(got.cycles - expected) <= TOLERANCE * expected
    ]


@lru_cache(maxsize=32)
def require_checked(name: str) -> None:
    """Raises TuningError for a model that is not what the vendor's guide says."""
    wrong = differences(name)
    if wrong:
        raise TuningError(
            f"model of {name}: {'; '.join(wrong)}: it is not used; is llvm-mca of LLVM 19?"
        )
