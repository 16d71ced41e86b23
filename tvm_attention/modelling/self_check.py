"""A core's model against its vendor's guide: small loops whose cycles are known.

The rates of EXPECTED, by the documents that vendors publish (numbers are those of developer.arm.com):

==================  ==============================================  ==========================================
core                document                                        a cycle: vectors of 128 bits
==================  ==============================================  ==========================================
Cortex-A53          Arm publishes none                              taken to be no faster than the A55
Cortex-A55          Software Optimization Guide, EPM128372          one FMLA, one SDOT; a load takes two,
                                                                    alone, a pair four
Cortex-A72          Software Optimization Guide, UAN 0016           one FMLA (both of F0 and F1), one load
Cortex-A76          Software Optimization Guide, PJDOC-466751330-   two FMLA, SDOT and loads
                    7215
Cortex-A78          Software Optimization Guide, PJDOC-466751330-   two FMLA and SDOT; loads are taken to be
                    9691                                            the A76's
Neoverse N1         Software Optimization Guide, PJDOC-466751330-   two FMLA, SDOT and loads
                    9707
Neoverse V1         Software Optimization Guide, PJDOC-466751330-   four FMLA, SDOT, SMMLA, BFMMLA and FMLAL,
                    9685                                            three loads
Neoverse N2         Software Optimization Guide, PJDOC-466751330-   two FMLA, SDOT, SMMLA, BFMMLA and FMLAL,
                    18256                                           three loads
Apple M1            Apple Silicon CPU Optimization Guide            four vector pipelines, three loads
Sapphire Rapids     Intel 64 and IA-32 Architectures Optimization   two FMA and two loads of 512 bits
                    Reference Manual, 248966
==================  ==============================================  ==========================================
"""

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
    "24 SDOT": [f"sdot v{n}.4s, v30.16b, v31.16b" for n in range(24)],
    "24 BFMMLA": [f"bfmmla v{n}.4s, v30.8h, v31.8h" for n in range(24)],
    "24 FMLAL by element": [f"fmlal v{n}.4s, v30.4h, v15.h[1]" for n in range(15)]
    + [f"fmlal2 v{n}.4s, v30.4h, v15.h[1]" for n in range(16, 25)],
    "24 SMMLA": [f"smmla v{n}.4s, v30.16b, v31.16b" for n in range(24)],
}
_X86 = {
    "24 FMA": [f"vfmadd231ps %zmm30, %zmm31, %zmm{n}" for n in range(24)],
    "24 FMA that broadcast": [
        f"vfmadd231ps {4 * n}(%rax){{1to16}}, %zmm31, %zmm{n}" for n in range(24)
    ],
    "4 loads": [f"vmovups {64 * n}(%rax), %zmm{n}" for n in range(4)],
}
# Cycles, in the order of the loops above; None, or nothing at the end, where a core lacks their instructions.
EXPECTED: Mapping[str, tuple[float | None, ...]] = {
    "cortex_a53": (24, 24, 8, 8, 32),
    "cortex_a55": (24, 24, 8, 8, 32, 24),
    "cortex_a72": (24, 24, 4, 4, 24),
    "cortex_a76": (12, 12, 2, 2, 12, 12),
    "cortex_a78": (12, 12, 2, 2, 12, 12),
    "neoverse_n1": (12, 12, 2, 2, 12, 12),
    "neoverse_v1": (6, 6, 4 / 3, 4 / 3, 6, 6, 6, 6, 6),
    "neoverse_n2": (12, 12, 4 / 3, 4 / 3, 12, 12, 12, 12, 12),
    "m1": (6, 6, 4 / 3, 4 / 3, 6, 6, None, 6),
    "sapphirerapids": (12, 12, 2),
    "x86_64_v4": (12, 12, 2),
}
_X86_CORES = ("sapphirerapids", "x86_64_v4")


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
    kind, every = ("x86", _X86) if name in _X86_CORES else ("arm", _ARM)
    loops = {
        what: (tuple(loop), cycles)
        for (what, loop), cycles in zip(every.items(), EXPECTED[name], strict=False)
        if cycles is not None
    }
    found = steady_cycles(tuple(loop for loop, _ in loops.values()), kind, core)
    return [
        f"{what}: {got.cycles:.2f} cycles, {expected:.2f} by the guide"
        for (what, (_, expected)), got in zip(loops.items(), found, strict=True)
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
