"""Where a tuning record's times come from: which machine measured them, or which model."""

from __future__ import annotations

import re
from typing import TypedDict

from tvm_attention.database.shapes import (
    TARGET_NAME,
    WORD,
    decisions,
    mapping,
    matching_text,
    one_line,
    seconds,
    whole_number,
    whole_numbers,
    wrong,
    wrong_type,
)
from tvm_attention.errors import InvalidValueError

PROVENANCES = ("measured", "modelled")

_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_MOST_NEXT = 16  # candidates after the record's own


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


def check_provenance(provenance: object) -> None:
    """Raise InvalidTypeError or InvalidValueError, naming the field, for anything out of shape."""
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
        whole_numbers("provenance: cores", data["cores"], TARGET_NAME, most=16, low=1, high=4096)
    if "model" in data:
        _check_model(data["model"])


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
        matching_text("provenance: model: next: variant", fields_of["variant"], WORD)
        decisions("provenance: model: next: decisions", fields_of["decisions"])
        seconds("provenance: model: next: seconds", fields_of["seconds"])
