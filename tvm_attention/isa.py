"""Names of instruction-set levels, features and cores: the kernel's, archspec's and LLVM's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import archspec.cpu

from tvm_attention.errors import InvalidValueError
from tvm_attention.foreign import FOREIGN

# Instruction-set levels of each kind, each a superset of the one before.
LEVELS: Mapping[str, tuple[str, ...]] = {
    "x86": ("x86-64-v2", "x86-64-v3", "x86-64-v4"),
    "arm": ("aarch64",),
    # Compute capabilities: schedules for one may serve the next, machine code may not.
    "cuda": (
        "cuda-sm_75", "cuda-sm_80", "cuda-sm_86", "cuda-sm_87", "cuda-sm_89", "cuda-sm_90", "cuda-sm_100",
    ),
    **{kind: (foreign.architecture,) for kind, foreign in FOREIGN.items()},
}  # fmt: skip
# The LLVM in the apache-tvm wheel this version is pinned to; archspec translates names for it.
LLVM_VERSION = "22.0"


def _names(text: str) -> Mapping[str, str]:
    """{"a": "a", "b": "c"} from "a b=c"."""
    return {flag: llvm or flag for flag, _, llvm in (p.partition("=") for p in text.split())}


# Flags of /proc/cpuinfo that a code generator acts on, and LLVM's names for them. What is left out
# (sha_ni, rdseed, clwb, ARM's cryptography, which a Raspberry Pi 4 lacks, ...) is reached only through
# intrinsics that no kernel here uses.
FEATURE_NAMES: Mapping[str, Mapping[str, str]] = {
    "x86": _names(
        "pni=sse3 sse3 ssse3 sse4_1=sse4.1 sse4_2=sse4.2 popcnt cx16 lahf_lm=sahf abm=lzcnt movbe "
        "xsave bmi1=bmi bmi2 avx avx2 f16c fma sse4a fma4 xop tbm aes pclmulqdq=pclmul vaes "
        "vpclmulqdq gfni avx512f avx512bw avx512cd avx512dq avx512vl avx512ifma avx512vbmi "
        "avx512_vbmi2=avx512vbmi2 avx512_vnni=avx512vnni avx512_bitalg=avx512bitalg "
        "avx512_vpopcntdq=avx512vpopcntdq avx512_vp2intersect=avx512vp2intersect "
        "avx512_bf16=avx512bf16 avx512_fp16=avx512fp16 avx_vnni=avxvnni avx_ifma=avxifma "
        "amx_tile=amx-tile amx_int8=amx-int8 amx_bf16=amx-bf16 amx_fp16=amx-fp16 "
        # No Linux kernel lists these so far, so they never count as present; LLVM's arrowlake
        # implies them.
        "avx_vnni_int8=avxvnniint8 avx_vnni_int16=avxvnniint16 avx_ne_convert=avxneconvert"
    ),
    "arm": _names(
        "asimd=neon crc32=crc atomics=lse asimdrdm=rdm asimdhp=fullfp16 asimdfhm=fp16fml "
        "asimddp=dotprod lrcpc=rcpc fcma=complxnum jscvt=jsconv i8mm bf16 sve sve2"
    ),
}
# Other names of archspec's micro-architectures.
ALIASES: Mapping[str, str] = {"apple_m1": "m1", "apple_m2": "m2"}
# What platform.machine() calls each kind, in lower case.
MACHINES = {"x86": ("x86_64", "amd64"), "arm": ("aarch64", "arm64")}
# Folders of an archive, by kind.
ARCHITECTURES = {kind: names[0] for kind, names in MACHINES.items()} | {
    kind: foreign.architecture for kind, foreign in FOREIGN.items()
}

_ARMV8_0 = "asimd crc32"
_ARMV8_2 = f"{_ARMV8_0} atomics asimdrdm asimdhp asimddp lrcpc"
_ARMV9_0 = f"{_ARMV8_2} asimdfhm fcma jscvt i8mm bf16 sve sve2"
# Cores of ARM Ltd. (implementer 0x41) that archspec does not know: part number -> name, flags. By
# flags alone archspec takes a Cortex-A53, an in-order core, for a Cortex-A72.
ARM_CORES: Mapping[str, tuple[str, str]] = {
    "0xd04": ("cortex_a35", _ARMV8_0),
    "0xd03": ("cortex_a53", _ARMV8_0),
    "0xd07": ("cortex_a57", _ARMV8_0),
    "0xd09": ("cortex_a73", _ARMV8_0),
    "0xd05": ("cortex_a55", _ARMV8_2),
    "0xd0a": ("cortex_a75", _ARMV8_2),
    "0xd0b": ("cortex_a76", _ARMV8_2),
    "0xd0d": ("cortex_a77", _ARMV8_2),
    "0xd41": ("cortex_a78", _ARMV8_2),
    "0xd42": ("cortex_a78ae", _ARMV8_2),
    "0xd44": ("cortex_x1", _ARMV8_2),
    "0xd46": ("cortex_a510", _ARMV9_0),
    "0xd80": ("cortex_a520", _ARMV9_0),
    "0xd47": ("cortex_a710", _ARMV9_0),
    "0xd4d": ("cortex_a715", _ARMV9_0),
    "0xd81": ("cortex_a720", _ARMV9_0),
    "0xd48": ("cortex_x2", _ARMV9_0),
    "0xd4e": ("cortex_x3", _ARMV9_0),
    "0xd82": ("cortex_x4", _ARMV9_0),
}


def llvm_features(kind: str, flags: Iterable[str]) -> frozenset[str]:
    """LLVM's names of those flags of /proc/cpuinfo that a code generator acts on."""
    names = FEATURE_NAMES[kind]
    return frozenset(names[flag] for flag in flags if flag in names)


def features_of(isa_level: str) -> frozenset[str]:
    """LLVM names of the features a level of LEVELS needs, beyond the x86-64 baseline.

    Raises InvalidValueError for an unknown level.
    """
    if isa_level in LEVELS["arm"]:
        return frozenset({"neon"})
    if isa_level in LEVELS["cuda"]:
        return frozenset()
    for foreign in FOREIGN.values():
        if isa_level == foreign.architecture:
            return foreign.features
    if isa_level not in LEVELS["x86"]:
        raise InvalidValueError(unknown_target(isa_level))
    return llvm_features("x86", archspec.cpu.TARGETS[isa_level.replace("-", "_")].features)


def llvm_name(name: str) -> str:
    """LLVM's name of a micro-architecture; of its nearest ancestor where LLVM is older than it."""
    if any(name == core for core, _ in ARM_CORES.values()):
        return name.replace("_", "-")
    known = archspec.cpu.TARGETS[name]
    if known.family.name == "aarch64":
        # The version ranges of these entries overlap; the last is for the newest compilers.
        flags, switch = known.compilers["clang"][-1]["flags"], "-mcpu="
    else:
        try:
            flags, switch = known.optimization_flags("clang", LLVM_VERSION), "-march="
        except archspec.cpu.UnsupportedMicroarchitecture:
            return llvm_name(known.parents[0].name)
    found = re.search(rf"{switch}(\S+)", flags)
    return found[1] if found else "generic"


def unknown_target(name: str) -> str:
    """The message of an error about an unknown name."""
    levels = ", ".join(level for levels in LEVELS.values() for level in levels)
    return (
        f"target {name[:40]!r}: expected one of {levels} or a micro-architecture such as icelake, "
        f"zen4 or cortex_a72"
    )
