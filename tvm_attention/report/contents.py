"""What a report shows, gathered from files and from the hardware; nothing is built or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_attention.errors import InvalidValueError
from tvm_attention.report.results import ResultFile, read_result
from tvm_attention.runtime import Explanation, explain
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.tuning.searches import Search, searches
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True, slots=True)
class Contents:
    """The machine, which kernel each workload gets on it, the measurements and the searches.

    ``refused``: why files that were asked for are left out.
    """

    target: HardwareTarget
    explanations: Mapping[str, Explanation]
    results: tuple[ResultFile, ...]
    searches: tuple[Search, ...]
    refused: tuple[str, ...]


def gather(
    workloads: Mapping[str, AttentionWorkload],
    results: Sequence[Path] = (),
    journals: Path | None = None,
) -> Contents:
    """For some workloads by name, files of results and a folder of journals (default: that of tuning).

    Raises InvalidValueError for a result file that does not exist; one that is no result is left out,
    see Contents.refused.
    """
    target = detect_target()
    read, refused = [], []
    for path in results:
        if not path.is_file():
            raise InvalidValueError(f"results: expected a file that exists, got {path}")
        try:
            read.append(read_result(path))
        except InvalidValueError as error:
            refused.append(str(error))
    explanations = {name: explain(workload, target) for name, workload in workloads.items()}
    found = sorted(
        searches(journals), key=lambda s: (not s.current, s.workload is None, -len(s.trials))
    )
    return Contents(target, explanations, tuple(read), tuple(found), tuple(refused))
