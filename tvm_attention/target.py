"""The hardware a kernel is compiled for: detected, named, or the host cut down to less."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import archspec.cpu

from tvm_attention import environment, processor
from tvm_attention.caches import Cores, read_cores
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.hardware import HardwareFacts, HardwareTarget
from tvm_attention.isa import (
    ALIASES,
    ARM_CORES,
    LEVELS,
    features_of,
    llvm_features,
    unknown_target,
)

__all__ = [
    "LEVELS",
    "HardwareFacts",
    "HardwareTarget",
    "check_runnable",
    "cut_down",
    "detect_target",
    "features_of",
    "host_target",
    "levels_below",
    "named_target",
    "with_sve",
]

_FAMILIES = {"x86_64": "x86", "aarch64": "arm"}


def detect_target(override: str | None = None) -> HardwareTarget:
    """The processor this program runs on, cut down to ``override`` or TVM_ATTENTION_TARGET.

    Raises InvalidValueError for a name that is unknown or that this processor cannot run, and
    UnsupportedError for a processor below x86-64-v2 and aarch64.
    """
    host = _local_target(processor.usable_cpus())
    if override:
        return cut_down(host, override)
    name = environment.target_name()
    try:
        return host if name is None else cut_down(host, name)
    except InvalidValueError as error:
        raise InvalidValueError(f"{environment.TARGET}: {error}") from None


def named_target(name: str, cores: int = 1) -> HardwareTarget:
    """A target by name, to build for without running: a level ("x86-64-v3", "aarch64", "cuda-sm_87",
    "riscv64") or a micro-architecture ("icelake", "zen4", "cortex-a72"). Its caches and model are unknown.

    Raises InvalidValueError for an unknown name.
    """
    asked = name.strip().lower().replace("_", "-")
    for kind, levels in LEVELS.items():
        level = next((n for n in levels if n.replace("_", "-") == asked), None)
        if level is not None:
            return HardwareTarget(
                name=level,
                kind=kind,
                isa=level,
                features=features_of(level),
                cores=cores,
                micro_architecture=level.replace("-", "_"),
            )
    archspec_name = asked.replace("-", "_")
    archspec_name = ALIASES.get(archspec_name, archspec_name)
    arm = next((flags for core, flags in ARM_CORES.values() if core == archspec_name), None)
    if arm is not None:
        return _named(archspec_name, "arm", "aarch64", llvm_features("arm", arm.split()), cores)
    known = _micro_architectures().get(archspec_name)
    if known is None:
        raise InvalidValueError(unknown_target(name))
    kind = _FAMILIES[known.family.name]
    isa = known.generic.name.replace("_", "-") if kind == "x86" else "aarch64"
    if isa not in LEVELS[kind]:
        raise InvalidValueError(f"target {name!r}: expected x86-64-v2 or newer, got {isa}")
    return _named(archspec_name, kind, isa, llvm_features(kind, known.features), cores)


def with_sve(target: HardwareTarget, bits: int) -> HardwareTarget:
    """The target with vectors of SVE of exactly so many bits (128 to 2048, a power of two).

    Raises InvalidValueError for another length and for a target without SVE.
    """
    if "sve" not in target.features or bits not in (128, 256, 512, 1024, 2048):
        raise InvalidValueError(
            f"sve: expected a target with SVE and 128, 256, 512, 1024 or 2048 bits, "
            f"got {target.name} and {bits}"
        )
    return replace(target, sve_bits=bits)


def cut_down(host: HardwareTarget, name: str) -> HardwareTarget:
    """The named target on the host's cores and caches, as if the host had only its features.

    Raises InvalidValueError for an unknown name and for one that needs features the host lacks.
    """
    named = named_target(name)
    if named.name == host.name:
        return host
    check_runnable(named, host)
    micro = host.micro_architecture if named.is_generic else named.micro_architecture
    return replace(
        host, name=named.name, isa=named.isa, features=named.features, micro_architecture=micro
    )


def check_runnable(target: HardwareTarget, host: HardwareTarget | None = None) -> None:
    """Raise InvalidValueError for a target that needs what the host (default: this machine) lacks."""
    host = host or _local_target(processor.usable_cpus())
    missing = sorted(target.features - host.features)
    if target.kind != host.kind or missing:
        lacks = f"lacks {', '.join(missing)}" if target.kind == host.kind else f"is {host.kind}"
        raise InvalidValueError(
            f"target {target.name}: this machine ({host.name}) {lacks}; choose a target it can run, "
            f"such as {host.isa}, or unset {environment.TARGET}"
        )


def levels_below(target: HardwareTarget) -> tuple[str, ...]:
    """The instruction-set levels below the target's own, nearest first; it runs code for each."""
    levels = LEVELS[target.kind]
    return levels[: levels.index(target.isa)][::-1]


def host_target(found: processor.Processor, cores: Cores) -> HardwareTarget:
    """The target a processor with these cores is.

    Raises UnsupportedError for one below the lowest level, with the features it lacks.
    """
    levels = [level for level in LEVELS[found.kind] if features_of(level) <= found.features]
    if not levels:
        lowest = LEVELS[found.kind][0]
        lacks = ", ".join(sorted(features_of(lowest) - found.features))
        raise UnsupportedError(
            f"processor: expected {lowest} or newer, got one without {lacks}; name a target by "
            f"named_target() to build for another machine"
        )
    isa = levels[-1]
    target = HardwareTarget(
        name=found.micro_architecture,
        kind=found.kind,
        isa=isa,
        features=found.features,
        cores=cores.count,
        l1d=cores.l1d,
        l2=cores.l2,
        l3=cores.l3,
        model=found.model,
        micro_architecture=found.micro_architecture,
    )
    return replace(target, name=isa) if target.is_generic else target


@lru_cache(maxsize=4)  # the few affinities a process goes through
def _local_target(cpus: frozenset[int]) -> HardwareTarget:
    return host_target(processor.local_processor(cpus=cpus), read_cores(cpus))


def _named(name: str, kind: str, isa: str, features: frozenset[str], cores: int) -> HardwareTarget:
    return HardwareTarget(
        name=name, kind=kind, isa=isa, features=features, cores=cores, micro_architecture=name
    )


def _micro_architectures() -> dict[str, Any]:
    """archspec's micro-architectures of the kinds served, by name; the generic ones left out."""
    known = archspec.cpu.TARGETS.values()
    return {m.name: m for m in known if m.family.name in _FAMILIES and m.vendor != "generic"}
