"""What the operating system says about the processor: features, micro-architecture, caches, cores.

Features come from flags, never from a processor's name or model number: virtual machines report
names that promise more than the flags hold, and model numbers that belong to other processors.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import archspec.cpu
import psutil

from tvm_attention import matrix_unit
from tvm_attention.errors import UnsupportedError
from tvm_attention.isa import ARM_CORES, MACHINES, llvm_features

# Bits of AT_HWCAP (16) and AT_HWCAP2 (26), part of Linux's interface on ARM.
_HWCAPS = {
    16: {
        1: "asimd", 7: "crc32", 8: "atomics", 10: "asimdhp", 12: "asimdrdm", 13: "jscvt", 14: "fcma",
        15: "lrcpc", 20: "asimddp", 22: "sve", 23: "asimdfhm",
    },
    26: {1: "sve2", 13: "i8mm", 14: "bf16"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor as its operating system describes it.

    ``kind`` is "x86" or "arm", ``micro_architecture`` archspec's name (a generic one, "x86_64_v3"
    or "aarch64", where no more is known), ``features`` LLVM names, ``model`` a readable name or "".
    """

    kind: str
    micro_architecture: str
    features: frozenset[str]
    model: str


def read_processor(
    machine: str, cpuinfo: str, device_model: str = "", cpus: Collection[int] | None = None
) -> Processor:
    """From platform.machine(), the text of /proc/cpuinfo and an ARM board's device tree model.

    ``cpus``: of these logical processors alone, where the text numbers them. Features are those all of
    them share. Where they differ in kind (big.LITTLE), the commonest gives the name; of two as common
    the last, the bigger. Raises UnsupportedError for another machine than x86-64 or aarch64.
    """
    kind = kind_of(machine)
    cores = _cores(kind, cpuinfo, cpus)
    listed = _LISTED[kind]
    flags = frozenset[str]()
    if cores:
        flags = frozenset.intersection(*(frozenset(core[listed].split()) for core in cores))
    commonest = _commonest(cores)
    micro = _micro_architecture(kind, {**commonest, listed: " ".join(flags)})
    if kind == "x86":
        model = commonest.get("model name", "")
    else:
        model = device_model or commonest.get("model name", "")
    return Processor(kind, micro, llvm_features(kind, flags), _readable(model))


def core_kinds(cpus: Collection[int], cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, int]:
    """How many of these logical processors are of which micro-architecture: {"cortex_a76": 4}. All are
    "aarch64" or "x86_64" where the system says no more."""
    kind = kind_of(platform.machine())
    cores = _cores(kind, _read(cpuinfo), cpus)
    counts = Counter(_micro_architecture(kind, core) for core in cores)
    counts[MACHINES[kind][0]] += max(0, len(cpus) - len(cores))
    return dict(sorted((+counts).items()))


def local_processor(
    sysfs: Path = Path("/sys"),
    cpuinfo: Path = Path("/proc/cpuinfo"),
    cpus: Collection[int] | None = None,
) -> Processor:
    """The processor this program runs on, or those logical processors of it. Where there is no
    /proc/cpuinfo, archspec asks the operating system. Raises UnsupportedError for another machine than
    x86-64 or aarch64."""
    text = _read(cpuinfo)
    machine = platform.machine()
    if machine.lower() in MACHINES["arm"] and "Features" not in text:
        # An emulator (qemu-user, as containers use it) shows the text of the machine below.
        features = llvm_features("arm", _hardware_capabilities())
        return Processor("arm", "aarch64", features, "")
    if text:
        board = _read(sysfs / "firmware/devicetree/base/model")
        return _as_permitted(read_processor(machine, text, board, cpus))
    host = archspec.cpu.host()
    kind = kind_of(host.family.name)
    features = llvm_features(kind, host.features)
    model = _readable(archspec.cpu.brand_string() or "")
    return _as_permitted(Processor(kind, host.name, features, model))


def _as_permitted(found: Processor) -> Processor:
    """The processor without a matrix unit that this process may not use."""
    if not found.features & matrix_unit.FEATURES or matrix_unit.permitted():
        return found
    return replace(found, features=found.features - matrix_unit.FEATURES)


def _hardware_capabilities() -> list[str]:
    """Flags as /proc/cpuinfo names them, from the C library's getauxval."""
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return [
        flag
        for vector, flags in _HWCAPS.items()
        for bit, flag in flags.items()
        if ask(vector) >> bit & 1
    ]


def kind_of(machine: str) -> str:
    """ "x86" or "arm" for what platform.machine() says."""
    for kind, names in MACHINES.items():
        if machine.lower() in names:
            return kind
    raise UnsupportedError(f"processor: expected x86_64 or aarch64, got {machine!r}")


def usable_cpus() -> frozenset[int]:
    """Numbers of the logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))


# Where /proc/cpuinfo has a processor's features.
_LISTED = {"x86": "flags", "arm": "Features"}


def _cores(kind: str, cpuinfo: str, cpus: Collection[int] | None) -> list[dict[str, str]]:
    """The fields of each processor, or of those that are asked for if the text numbers them."""
    blocks = [_fields(block) for block in cpuinfo.replace("\r", "").split("\n\n")]
    cores = [block for block in blocks if _LISTED[kind] in block]
    wanted = [c for c in cores if cpus is None or c.get("processor", "") in map(str, cpus)]
    return wanted or cores


def _micro_architecture(kind: str, core: Mapping[str, str]) -> str:
    if kind == "arm":
        return _arm_micro_architecture(core)
    flags = frozenset(core.get(_LISTED[kind], "").split())
    return _x86_micro_architecture(core.get("vendor_id", ""), flags)


# What virtual machines hide of a processor, and no kernel uses: waiting in user mode, devices' stores.
_HIDDEN = frozenset({"waitpkg", "enqcmd", "cldemote", "movdiri", "movdir64b", "serialize"})


def _x86_micro_architecture(vendor: str, flags: frozenset[str]) -> str:
    """The newest of the vendor's micro-architectures whose every flag is there and that descends
    from the best generic level: archspec.cpu.host()'s rule, on flags from anywhere, and blind to
    what virtual machines hide."""
    flags = flags | {"sse3"} if flags & {"pni", "ssse3"} else flags
    flags = flags | _HIDDEN if "amx_tile" in flags else flags
    known = [
        m
        for m in archspec.cpu.TARGETS.values()
        if m.family.name == "x86_64" and m.vendor in (vendor, "generic") and m.features <= flags
    ]
    if not known:
        return "x86_64"
    order = {m.name: (len(m.ancestors), len(m.features)) for m in known}
    generic = max((m for m in known if m.vendor == "generic"), key=lambda m: order[m.name])
    best = max((m for m in known if m >= generic), key=lambda m: order[m.name])
    return str(best.name)


def _arm_micro_architecture(core: Mapping[str, str]) -> str:
    implementer, part = core.get("CPU implementer", "").lower(), core.get("CPU part", "").lower()
    if implementer == "0x41" and part in ARM_CORES:
        return ARM_CORES[part][0]
    vendors = {"0x41": "ARM", "0x43": "Cavium", "0x46": "Fujitsu", "0x4e": "Nvidia"}
    vendors |= {"0x61": "Apple", "0xc0": "Ampere"}
    for m in archspec.cpu.TARGETS.values():
        if m.cpu_part == part and m.vendor == vendors.get(implementer) and m.family == "aarch64":
            return str(m.name)
    return "aarch64"


def _commonest(cores: list[dict[str, str]]) -> Mapping[str, str]:
    """The fields of the commonest sort of core; of the last, the bigger, if two are as common."""
    sorts = [(c.get("CPU implementer"), c.get("CPU part"), c.get("model name")) for c in cores]
    if not sorts:
        return {}
    count = Counter(sorts)
    return cores[max(range(len(cores)), key=lambda i: (count[sorts[i]], i))]


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _readable(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:128]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n")
    except OSError:
        return ""
