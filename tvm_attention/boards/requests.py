"""What tuning asks of a board and what it answers: JSON, kernels beside it as files of the session."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_attention.errors import InvalidValueError
from tvm_attention.schedules import Candidate
from tvm_attention.tuning.place import Outcome
from tvm_attention.workload import AttentionWorkload

# Names of the functions that a board's RPC server has beside TVM's own.
DESCRIBE = "tvm_attention.board.describe"
PERFORM = "tvm_attention.board.perform"
LAUNCH = "launch.so"  # the file of a session that runs kernels' parallel loops
MEASURE, CONFIRM = "measure", "confirm"
_LIBRARY = re.compile(r"kernel-[0-9]{1,9}\.so")


@dataclass(frozen=True, slots=True)
class Request:
    """``task`` MEASURE (one library and candidate, ``best`` seconds to beat, infinite for none) or CONFIRM
    (the default schedule first). ``libraries`` are names of files that were uploaded, ``limit`` the seconds
    after which the board gives up, ``on_gpu`` whether its GPU is to run the kernels."""

    task: str
    libraries: tuple[str, ...]
    workload: AttentionWorkload
    candidates: tuple[Candidate, ...]
    threads: int
    limit: float
    best: float = math.inf
    on_gpu: bool = False

    def to_json(self) -> str:
        values = {
            "task": self.task,
            "libraries": list(self.libraries),
            "workload": self.workload.to_dict(),
            "candidates": [[c.variant, dict(c.decisions)] for c in self.candidates],
            "threads": self.threads,
            "limit": self.limit,
            "best": None if math.isinf(self.best) else self.best,
            "on_gpu": self.on_gpu,
        }
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Request:
        values = json.loads(text)
        libraries = tuple(values["libraries"])
        if values["task"] not in (MEASURE, CONFIRM) or not all(map(_LIBRARY.fullmatch, libraries)):
            raise InvalidValueError("request: expected a task and libraries that were uploaded")
        return cls(
            values["task"],
            libraries,
            AttentionWorkload.from_dict(values["workload"]),
            tuple(Candidate.of(variant, decisions) for variant, decisions in values["candidates"]),
            values["threads"],
            values["limit"],
            math.inf if values["best"] is None else values["best"],
            bool(values["on_gpu"]),
        )


def library_name(number: int) -> str:
    """The name of a kernel's file in a session: the system knows loaded libraries by their names, so no two
    have the same."""
    return f"kernel-{number}.so"


def answer_text(outcome: Outcome) -> str:
    """An outcome as JSON: seconds of a measurement, Finalists of a confirmation."""
    value, error = outcome
    plain = [asdict(x) for x in value] if isinstance(value, list) else value
    return json.dumps({"value": plain, "error": error})


def answer_of(task: str, text: str) -> Outcome:
    """An outcome from JSON of any origin. Raises ValueError for anything else."""
    try:
        values = json.loads(text)
        value, error = values["value"], values["error"]
        if value is None:
            return None, "".join(c if c.isprintable() else " " for c in str(error))[:128]
        return (_seconds(value) if task == MEASURE else _finalists(value)), ""
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no answer: {error}") from error


def _seconds(value: Any) -> float:
    if not 0.0 < float(value) < math.inf:
        raise ValueError(f"seconds: {value!r:.40}")
    return float(value)


def _finalists(values: Sequence[dict[str, Any]]) -> list[Any]:
    from tvm_attention.tuning.trials import Finalist

    names = Finalist.__dataclass_fields__
    return [Finalist(**{name: _seconds(one[name]) for name in names}) for one in values]
