"""A processor or GPU as kernels are compiled for it, and as LLVM names it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TypedDict

from tvm_attention.foreign import FOREIGN
from tvm_attention.isa import FEATURE_NAMES, LEVELS, MACHINES, llvm_name


class HardwareFacts(TypedDict):
    """What a tuning record keeps of the machine it was measured on; sizes in bytes, 0 unknown."""

    kind: str
    isa: str
    micro_architecture: str
    model: str
    cores: int
    l1d: int
    l2: int
    l3: int


_DOT_SUMS = {"avxvnni", "avx512vnni"}  # features with VPDPWSSD


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareTarget:
    """A processor or a GPU to compile for.

    name: the most specific name known: a micro-architecture ("icelake") or a level ("x86-64-v4").
    kind: "x86", "arm", "cuda", "riscv" or "wasm", the key of the schedules registry.
    isa: instruction-set level, one of ``LEVELS[kind]``.
    features: LLVM feature names that the processor really has, beyond the x86-64 baseline.
    cores: cores this process may use.
    l1d, l2, l3: cache bytes, per core, per core and shared; 0 where unknown.
    model: the processor's readable name, "" where unknown.
    micro_architecture: archspec's name of the processor; a generic one ("x86_64_v3") where unknown.
    sve_bits: the length of SVE's vectors that code is made for, which is then wrong for any other; 0 for
    NEON.
    """

    name: str
    kind: str
    isa: str
    features: frozenset[str]
    cores: int = 1
    l1d: int = 0
    l2: int = 0
    l3: int = 0
    model: str = ""
    micro_architecture: str
    sve_bits: int = 0

    def llvm(self) -> dict[str, str | int | list[str]]:
        """The argument of tvm.target.Target.

        A level is its own LLVM name. A micro-architecture is followed by every feature the code
        generator acts on, as "+name" or "-name": LLVM's name alone would imply features that
        virtual machines hide.
        """
        if self.kind in FOREIGN:
            return dict(FOREIGN[self.kind].llvm)
        target: dict[str, str | int | list[str]] = {"kind": "llvm", "num-cores": self.cores}
        if self.sve_bits:
            bounds = (f"-aarch64-sve-vector-bits-{b}:int={self.sve_bits}" for b in ("min", "max"))
            target["cl-opt"] = list(bounds)
        if platform.machine().lower() not in MACHINES[self.kind]:
            machine = MACHINES[self.kind][0]
            target["mtriple"] = f"{machine}-linux-gnu"
        if self.name in LEVELS["x86"]:
            return target | {"mcpu": self.name}
        known = set(FEATURE_NAMES[self.kind].values())
        # Removals come last: adding a feature also adds what LLVM says it implies.
        features = [f"+{f}" for f in sorted(self.features)]
        if self.features & _DOT_SUMS:
            # Else LLVM makes VPMADDWD and VPADDD of it again, for one sum's sake: here are many.
            features.append("+fast-dpwssd")
        features += [f"-{f}" for f in sorted(known - self.features)]
        return target | {"mcpu": llvm_name(self.name), "mattr": features}

    @property
    def arch(self) -> str:
        """NVIDIA's name of a GPU's compute capability ("sm_87")."""
        return self.isa.removeprefix("cuda-")

    def facts(self) -> HardwareFacts:
        """What a tuning record keeps of this machine."""
        return HardwareFacts(
            kind=self.kind,
            isa=self.isa,
            micro_architecture=self.micro_architecture,
            model=self.model,
            cores=self.cores,
            l1d=self.l1d,
            l2=self.l2,
            l3=self.l3,
        )

    @property
    def is_generic(self) -> bool:
        """Whether no more than the instruction-set level is known of the processor."""
        return self.micro_architecture.replace("_", "-") in ("x86-64", *LEVELS["x86"], "aarch64")
