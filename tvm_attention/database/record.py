"""A tuning record: its fields, its checks and its form as plain data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from typing import Any, TypedDict, cast

from tvm_attention.database.provenance import Provenance, check_provenance
from tvm_attention.database.shapes import (
    TARGET_NAME,
    WORD,
    decisions,
    mapping,
    matching_text,
    one_line,
    seconds,
    whole_number,
    wrong,
    wrong_type,
)
from tvm_attention.target import LEVELS, HardwareFacts
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import NO_OPTIONS, feature_text

SCHEMA = 1
KINDS = ("x86", "arm", "cuda")

_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{8,128}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Seconds(TypedDict):
    """Times of one interleaved run in seconds; ``spread`` is that of the tuned times."""

    tuned: float
    default: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """The schedule that a search found for a workload on a machine.

    target: name of the target it was compiled for, also the folder of its log.
    variant, decisions: the candidate, by name. Here only their shape is checked; whether a design
        space allows them is for the schedule module to say.
    expression: digest of the tensor expression that was tuned.
    tvm: version of TVM. date: "YYYY-MM-DD". threads: threads of the measurement.

    Raises InvalidTypeError or InvalidValueError, naming the field, for anything out of shape.
    """

    schema: int = SCHEMA
    target: str
    workload: AttentionWorkload
    length_class: str
    variant: str
    decisions: dict[str, int]
    seconds: Seconds
    hardware: HardwareFacts
    threads: int
    tvm: str
    expression: str
    provenance: Provenance
    date: str

    def __post_init__(self) -> None:
        whole_number("schema", self.schema, SCHEMA, SCHEMA)
        matching_text("target", self.target, TARGET_NAME)
        if self.length_class != self.workload.length_class:
            raise wrong("length_class", f"{self.workload.length_class!r}", self.length_class)
        matching_text("variant", self.variant, WORD)
        decisions("decisions", self.decisions)
        _check_seconds(self.seconds)
        _check_hardware(self.hardware, self.target)
        whole_number("threads", self.threads, 1, 4096)
        matching_text("tvm", self.tvm, _VERSION)
        matching_text("expression", self.expression, _DIGEST)
        check_provenance(self.provenance)
        matching_text("date", self.date, _DATE)
        try:
            date.fromisoformat(self.date)
        except ValueError:
            raise wrong("date", "a day of the calendar", self.date) from None

    @property
    def ratio(self) -> float:
        """Tuned over default seconds; 1 where the search confirmed the default schedule."""
        return self.seconds["tuned"] / self.seconds["default"]

    @property
    def key(self) -> tuple[object, ...]:
        """What two records must share for one to replace the other."""
        hardware = self.hardware
        machine = (hardware["micro_architecture"], hardware["model"])
        return (self.target, machine, self.workload, self.threads, self.expression, self.measured)

    @property
    def measured(self) -> bool:
        """Whether its times were measured; a model's otherwise."""
        return self.provenance["kind"] == "measured"

    def __str__(self) -> str:
        w = self.workload
        dims = f"{w.head_dim}" if w.head_dim == w.value_dim else f"{w.head_dim}/{w.value_dim}"
        causal = " causal" if w.causal else ""
        shape = f"{w.batch}x{w.query_heads}x{w.query_length}x{w.key_length}x{dims}"
        options = feature_text(replace(w, causal=None))
        more = "" if options == NO_OPTIONS else f" with {options}"
        return f"{self.variant} for {shape} {w.dtype}{causal}{more} on {self.target}"

    def to_dict(self) -> dict[str, object]:
        """Plain data that :meth:`from_dict` takes back."""
        return asdict(self) | {"workload": self.workload.to_dict()}

    @classmethod
    def from_dict(cls, values: object) -> TuningRecord:
        """From plain data of any origin; every field must be there and none besides.

        Raises InvalidTypeError, InvalidValueError or UnsupportedError, naming the field.
        """
        data = mapping("record", values, {f.name for f in fields(cls)})
        # A schema of its own is told apart from a damaged record first.
        whole_number("schema", data["schema"], SCHEMA, SCHEMA)
        if not isinstance(data["workload"], dict):
            raise wrong_type("workload", "a mapping", data["workload"])
        workload = AttentionWorkload.from_dict(data["workload"])
        if workload.to_dict() != data["workload"]:
            raise wrong("workload", "every field spelled out", data["workload"])
        return cls(**cast("dict[str, Any]", {**data, "workload": workload}))


def _check_seconds(value: object) -> None:
    data = mapping("seconds", value, set(Seconds.__annotations__))
    for name, value in data.items():
        seconds(f"seconds: {name}", value, may_be_zero=name == "spread")


def _check_hardware(hardware: object, target: str) -> None:
    data = mapping("hardware", hardware, set(HardwareFacts.__annotations__))
    if data["kind"] not in KINDS:
        raise wrong("hardware: kind", f"one of {', '.join(KINDS)}", data["kind"])
    matching_text("hardware: isa", data["isa"], TARGET_NAME)
    matching_text("hardware: micro_architecture", data["micro_architecture"], TARGET_NAME)
    one_line("hardware: model", data["model"])
    whole_number("hardware: cores", data["cores"], 1, 4096)
    for cache in ("l1d", "l2", "l3"):
        whole_number(f"hardware: {cache}", data[cache], 0, 2**40)
    if any(target in levels for levels in LEVELS.values()) and target != data["isa"]:
        raise wrong("hardware: isa", f"{target!r}, the record's target", data["isa"])
