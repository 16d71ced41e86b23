"""A tuning record: its fields, its checks and its form as plain data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from typing import Any, TypedDict, cast

from tvm_attention.database.shapes import (
    mapping,
    matching_text,
    one_line,
    whole_number,
    wrong,
    wrong_type,
)
from tvm_attention.errors import InvalidValueError
from tvm_attention.target import LEVELS, HardwareFacts
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import NO_OPTIONS, feature_text

SCHEMA = 1
KINDS = ("x86", "arm", "cuda")
PROVENANCES = ("measured", "modelled")

TARGET_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,63}")
_WORD = re.compile(r"[a-z_]{1,64}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{8,128}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_MAX_CORE_KINDS = 16
_MAX_DECISIONS = 64
_MOST_NEXT = 16
_MAX_DECISION = 65536
_MAX_SECONDS = 1e6


class Seconds(TypedDict):
    """Times of one interleaved run in seconds; ``spread`` is that of the tuned times."""

    tuned: float
    default: float
    spread: float


class Runner(TypedDict):
    """A candidate that came after the record's own, and its modelled seconds."""

    variant: str
    decisions: dict[str, int]
    seconds: float


class Model(TypedDict):
    """The tool with its version, the core whose model it used, how the way of modelling did where it could be
    measured, and the next best candidates, to be measured later."""

    tool: str
    core: str
    validation: str
    next: list[Runner]


class _Origin(TypedDict):
    kind: str
    on: str
    trials: int


class Provenance(_Origin, total=False):
    """``kind`` "measured" or "modelled", on or by what, and after how many trials.

    Of a measured one also, where known, ``cpus``: the logical processors that the measurement was bound
    to ("4-7"), and ``cores``: how many of them are of which micro-architecture ({"cortex_a76": 4}).
    ``model`` is there for records that ``tvm-attention tune --modelled`` wrote.
    """

    cpus: str
    cores: dict[str, int]
    model: Model


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
        matching_text("variant", self.variant, _WORD)
        _check_decisions(self.decisions)
        _check_seconds(self.seconds)
        _check_hardware(self.hardware, self.target)
        whole_number("threads", self.threads, 1, 4096)
        matching_text("tvm", self.tvm, _VERSION)
        matching_text("expression", self.expression, _DIGEST)
        _check_provenance(self.provenance)
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


def _check_decisions(decisions: object) -> None:
    if not isinstance(decisions, dict):
        raise wrong_type("decisions", "a mapping of names to ints", decisions)
    if len(decisions) > _MAX_DECISIONS:
        raise InvalidValueError(f"decisions: expected at most {_MAX_DECISIONS}")
    for name, value in decisions.items():
        matching_text("decisions: name", name, _WORD)
        whole_number(f"decisions: {name}", value, 0, _MAX_DECISION)


def _check_seconds(seconds: object) -> None:
    data = mapping("seconds", seconds, set(Seconds.__annotations__))
    for name, value in data.items():
        _check_time(f"seconds: {name}", value, may_be_zero=name == "spread")


def _check_time(where: str, value: object, *, may_be_zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(where, "a number", value)
    # NaN fails every comparison; math.isfinite would overflow on a very long int.
    if not (0 <= value <= _MAX_SECONDS) or (value == 0 and not may_be_zero):
        raise wrong(where, f"more than 0 and at most {_MAX_SECONDS:g}", value)


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


def _check_provenance(provenance: object) -> None:
    given: set[str] = set(provenance) if isinstance(provenance, dict) else set()
    modelled = isinstance(provenance, dict) and provenance.get("kind") == "modelled"
    optional = {"model"} if modelled else {"cpus", "cores"}
    data = mapping("provenance", provenance, {*_Origin.__annotations__, *(given & optional)})
    if data["kind"] not in PROVENANCES:
        raise wrong("provenance: kind", f"one of {', '.join(PROVENANCES)}", data["kind"])
    one_line("provenance: on", data["on"])
    whole_number("provenance: trials", data["trials"], 0, 10**9)
    if "cpus" in data:
        one_line("provenance: cpus", data["cpus"])
        matching_text("provenance: cpus", data["cpus"], _CPUS)
    if "cores" in data:
        _check_cores(data["cores"])
    if "model" in data:
        _check_model(data["model"])


def _check_cores(cores: object) -> None:
    if not isinstance(cores, dict):
        raise wrong_type("provenance: cores", "a mapping of names to ints", cores)
    if len(cores) > _MAX_CORE_KINDS:
        raise InvalidValueError(f"provenance: cores: expected at most {_MAX_CORE_KINDS} kinds")
    for name, count in cores.items():
        matching_text("provenance: cores: name", name, TARGET_NAME)
        whole_number(f"provenance: cores: {name}", count, 1, 4096)


def _check_model(model: object) -> None:
    data = mapping("provenance: model", model, set(Model.__annotations__))
    for name in ("tool", "core", "validation"):
        one_line(f"provenance: model: {name}", data[name])
    if not isinstance(data["next"], list):
        raise wrong_type("provenance: model: next", "a list", data["next"])
    if len(data["next"]) > _MOST_NEXT:
        raise InvalidValueError(f"provenance: model: next: expected at most {_MOST_NEXT}")
    for runner in data["next"]:
        fields_of = mapping("provenance: model: next", runner, set(Runner.__annotations__))
        matching_text("provenance: model: next: variant", fields_of["variant"], _WORD)
        _check_decisions(fields_of["decisions"])
        _check_time("provenance: model: next: seconds", fields_of["seconds"])
