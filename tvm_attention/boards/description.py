"""What a board says of itself when it is asked, as JSON; read on the other side as data of any origin."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import tvm_attention
from tvm_attention.boards.gpu_description import GpuDescription, gpu_of_this_machine
from tvm_attention.caches import cpu_list
from tvm_attention.database.shapes import (
    MOST_CHARACTERS,
    TARGET_NAME,
    mapping,
    matching_text,
    one_line,
    whole_number,
)
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    TuningError,
)
from tvm_attention.processor import core_kinds, usable_cpus
from tvm_attention.target import LEVELS, HardwareTarget, detect_target

PROTOCOL = 2  # of the functions that a board serves (tvm_attention.boards.service)
_MOST_CHARACTERS = 1 << 16
_SYSFS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardDescription:
    """A board as it is now.

    protocol, library, expression, tvm: versions of what it speaks and runs; ``expression`` is the digest
        of the tensor expressions. system: architecture and C library ("aarch64 Linux, glibc 2.36").
    hardware: of the logical processors ``cpus`` ("4-7") that the server is bound to; ``cores`` counts
        their kinds, ``governors`` names how their clocks are governed, () unknown.
    memory: bytes that are free. load: programs that run or wait, a minute's mean.
    gpu: the one that its driver shows first, None if it has none; then ``gpu_problem`` says why, unless
        there is no driver.
    """

    protocol: int
    library: str
    expression: str
    tvm: str
    system: str
    hardware: HardwareTarget
    cpus: str
    cores: dict[str, int]
    governors: tuple[str, ...]
    memory: int
    load: float
    gpu: GpuDescription | None = None
    gpu_problem: str = ""

    def part(self, kind: str) -> HardwareTarget | None:
        """The processor or, of kind "cuda", the GPU; None where there is none that has schedules."""
        if kind != "cuda":
            return self.hardware
        try:
            return None if self.gpu is None else self.gpu.target
        except InvalidValueError:
            return None

    def to_json(self) -> str:
        values = asdict(self) | {"governors": list(self.governors)}
        values["hardware"] |= {"features": sorted(self.hardware.features)}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> BoardDescription:
        """Raises TuningError, naming what is wrong, for anything that is no such description."""
        if len(text) > _MOST_CHARACTERS:
            raise TuningError(f"board: expected a description, got {len(text)} characters")
        try:
            values = json.loads(text)
            if isinstance(values, dict) and values.get("protocol") != PROTOCOL:
                raise TuningError(
                    f"board: expected one that speaks version {PROTOCOL} of what tuning asks, got version "
                    f"{values.get('protocol')!r}; install the same tvm-attention on both machines"
                )
            return cls(**_checked(values))
        except TuningError:
            raise
        except (AttentionError, ValueError, RecursionError) as error:
            raise TuningError(f"board: expected a description of itself: {error}") from error


def describe_this_board() -> BoardDescription:
    """This machine, as far as this process may use it."""
    cpus = usable_cpus()
    gpu, problem = _gpu()
    libc = " ".join(part for part in platform.libc_ver() if part)
    return BoardDescription(
        protocol=PROTOCOL,
        library=tvm_attention.__version__,
        expression=EXPRESSION_DIGEST,
        tvm=_tvm_version(),
        system=", ".join(filter(None, (f"{platform.machine()} {platform.system()}", libc))),
        hardware=detect_target(),
        cpus=cpu_list(cpus),
        cores=core_kinds(cpus),
        governors=governors(cpus),
        memory=psutil.virtual_memory().available,
        load=round(os.getloadavg()[0], 2),
        gpu=gpu,
        gpu_problem=problem,
    )


def _gpu() -> tuple[GpuDescription | None, str]:
    try:
        return gpu_of_this_machine(), ""
    except TuningError as error:
        text = "".join(c if c.isprintable() else " " for c in str(error))
        return None, text[:MOST_CHARACTERS]


def governors(cpus: frozenset[int], sysfs: Path = _SYSFS) -> tuple[str, ...]:
    """What governs the clocks of these processors ("ondemand"); () where the system does not say."""
    found = set()
    for cpu in cpus:
        try:
            found.add((sysfs / f"cpu{cpu}/cpufreq/scaling_governor").read_text().strip())
        except OSError:
            continue
    return tuple(sorted(name for name in found if TARGET_NAME.fullmatch(name)))


def _tvm_version() -> str:
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return "not installed"


def _checked(values: object) -> dict[str, Any]:
    """The fields of a description from plain data. Raises an AttentionError for another."""
    data = dict(mapping("description", values, set(BoardDescription.__dataclass_fields__)))
    for name in ("library", "expression", "tvm", "system", "cpus"):
        one_line(name, data[name])
    one_line("gpu_problem", data["gpu_problem"])
    if data["gpu"] is not None:
        names = set(GpuDescription.__dataclass_fields__)
        data["gpu"] = GpuDescription(**dict(mapping("gpu", data["gpu"], names)))  # type: ignore[arg-type]
    data["hardware"] = _hardware(data["hardware"])
    data["governors"] = tuple(_names("governors", data["governors"]))
    whole_number("memory", data["memory"], 0, 1 << 62)
    load = data["load"]
    if (
        not isinstance(data["cores"], dict)
        or not isinstance(load, int | float)
        or not 0 <= load < 1e9
    ):
        raise InvalidTypeError("description: expected cores by kind, and a load that is a number")
    for kind, count in data["cores"].items():
        matching_text("cores", kind, TARGET_NAME)
        whole_number("cores", count, 1, 4096)
    return data


def _hardware(values: object) -> HardwareTarget:
    data = dict(mapping("hardware", values, set(HardwareTarget.__dataclass_fields__)))
    for name in ("name", "micro_architecture", "kind", "isa"):
        matching_text(name, data[name], TARGET_NAME)
    if data["kind"] not in LEVELS or data["isa"] not in LEVELS[str(data["kind"])]:
        raise InvalidTypeError(f"hardware: expected a kind and its level, got {data['kind']!r:.40}")
    one_line("model", data["model"])
    whole_number("cores", data["cores"], 1, 4096)
    for name in ("l1d", "l2", "l3"):
        whole_number(name, data[name], 0, 1 << 40)
    data["features"] = frozenset(_names("features", data["features"]))
    return HardwareTarget(**data)  # type: ignore[arg-type]


def _names(where: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidTypeError(f"{where}: expected a list of names")
    for name in value:
        matching_text(where, name, TARGET_NAME)
    return value
