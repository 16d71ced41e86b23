"""Which records of several are worth keeping, and whether they still build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tvm_attention.database.lines import format_record
from tvm_attention.database.record import TuningRecord
from tvm_attention.errors import InvalidValueError

# The digest of the expression as it is now: of all kinds of hardware, or by kind; None does not compare it.
Expression = str | Mapping[str, str] | None

NOT_FASTER = "slower than the default schedule"
EXPRESSION_CHANGED = "expression changed"


def merge_records(*groups: Iterable[TuningRecord]) -> tuple[TuningRecord, ...]:
    """The record with the least ratio of tuned to default seconds for each key (target, machine,
    workload, threads, expression, measured or modelled). Those slower than the default are
    left out; a ratio of 1 says that the default schedule itself won."""
    best: dict[tuple[object, ...], TuningRecord] = {}
    for group in groups:
        for record in group:
            rival = best.setdefault(record.key, record)
            if _order(record) < _order(rival):
                best[record.key] = record
    return tuple(sorted((r for r in best.values() if r.ratio <= 1), key=format_record))


def prune_records(
    records: Iterable[TuningRecord], expression: Expression = None
) -> tuple[list[TuningRecord], list[tuple[TuningRecord, str]]]:
    """The records worth keeping, and the others with the reason each was dropped.

    ``expression`` is the digest of the expression as it is now; None does not compare it. A
    modelled record goes once its case is measured, since a measured one always outranks it.
    """
    everything = list(records)
    serving = [r for r in everything if _useless(r, expression) is None]
    kept = merge_records(serving)
    measured = {r.key[:-1] for r in kept if r.measured}
    kept_lines = {format_record(r) for r in kept if r.measured or r.key[:-1] not in measured}
    left: list[TuningRecord] = []
    dropped: list[tuple[TuningRecord, str]] = []
    for record in everything:
        line = format_record(record)
        if line in kept_lines:
            kept_lines.remove(line)
            left.append(record)
            continue
        beaten = "modelled, and its case is measured"
        if record.measured or record.key[:-1] not in measured:
            beaten = "beaten by another record of the same case, or its copy"
        dropped.append((record, _useless(record, expression) or beaten))
    return left, dropped


def left_to_measure(record: TuningRecord) -> list[tuple[str, dict[str, int]]]:
    """(variant, decisions) of a modelled record and of the runners-up that it keeps, to be measured on the
    machine; nothing of a measured one."""
    if record.measured:
        return []
    model = record.provenance.get("model")
    following = [] if model is None else [(r["variant"], r["decisions"]) for r in model["next"]]
    return [(record.variant, record.decisions), *following]


def verify(
    records: Iterable[TuningRecord],
    build: Callable[[TuningRecord], None],
    expression: Expression = None,
) -> list[tuple[TuningRecord, Exception | None]]:
    """Build each record and say what went wrong, or None.

    ``build`` compiles a record and raises if it cannot. With ``expression``, the digest of the
    expression as it is now, a record of another one fails without being built.
    """
    results: list[tuple[TuningRecord, Exception | None]] = []
    for record in records:
        error: Exception | None = None
        if _changed(record, expression):
            error = InvalidValueError(f"{EXPRESSION_CHANGED}; tune {record} again")
        else:
            try:
                build(record)
            except Exception as caught:
                error = caught
        results.append((record, error))
    return results


def _changed(record: TuningRecord, expression: Expression) -> bool:
    """Whether a record is of another expression than this one, by kinds of hardware or of any."""
    if isinstance(expression, Mapping):
        expression = expression[record.hardware["kind"]]
    return expression not in (None, record.expression)


def _useless(record: TuningRecord, expression: Expression) -> str | None:
    if _changed(record, expression):
        return EXPRESSION_CHANGED
    return None if record.ratio <= 1 else NOT_FASTER


def _order(record: TuningRecord) -> tuple[float, str]:
    return record.ratio, format_record(record)
