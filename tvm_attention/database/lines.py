"""Tuning records as text: JSON lines, a header first. Reading trusts nothing about the text."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tvm_attention.database.record import SCHEMA, TuningRecord
from tvm_attention.database.shapes import mapping, shown, whole_number
from tvm_attention.errors import AttentionError, InvalidValueError, TuningLogError

LIBRARY = "tvm_attention"
MAX_LOG_BYTES = 8 * 2**20
MAX_LINE_BYTES = 2**16
_MOST_REASON = 600  # characters of a refusal: names in a log may be long


def parse_log(data: bytes, name: str, target: str | None = None) -> tuple[TuningRecord, ...]:
    """The records of a log's bytes; with ``target``, all must be of that target.

    Raises TuningLogError with ``name``, line and reason for the first thing wrong: no record of a
    damaged log is used.
    """
    if len(data) > MAX_LOG_BYTES:
        raise _refused(name, None, f"expected at most {MAX_LOG_BYTES} bytes")
    lines = data.removesuffix(b"\n").split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            values = _parse_line(line)
            if number == 1:
                _check_header(values)
                continue
            record = TuningRecord.from_dict(values)
            if target not in (None, record.target):
                raise InvalidValueError(f"target: expected {target!r}, got {record.target!r}")
            records.append(record)
        except AttentionError as error:
            raise _refused(name, number, str(error)) from None
    return tuple(records)


def format_log(records: Iterable[TuningRecord]) -> bytes:
    """A log of these records, sorted. Raises TuningLogError for more than a reader takes."""
    header = _format_line({"schema": SCHEMA, "library": LIBRARY})
    data = "".join([header, *sorted(map(format_record, records))]).encode()
    if len(data) > MAX_LOG_BYTES:
        raise TuningLogError(
            f"tuning log: expected at most {MAX_LOG_BYTES} bytes, got {len(data)}; "
            f"prune it or keep the records in several files"
        )
    return data


def format_record(record: TuningRecord) -> str:
    """The line of a record: equal records, equal lines."""
    return _format_line(record.to_dict())


def _format_line(values: dict[str, object]) -> str:
    return json.dumps(values, sort_keys=True, allow_nan=False) + "\n"


def _check_header(values: object) -> None:
    header = mapping("header", values, {"schema", "library"})
    if header["library"] != LIBRARY:
        raise InvalidValueError(f"header: expected a log of {LIBRARY}, got a foreign file")
    schema = header["schema"]
    if isinstance(schema, int) and schema > SCHEMA:
        raise InvalidValueError(
            f"schema: expected {SCHEMA}, got the newer {shown(schema)}; a newer {LIBRARY} reads it"
        )
    whole_number("schema", schema, SCHEMA, SCHEMA)


def _parse_line(line: bytes) -> object:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidValueError(f"expected at most {MAX_LINE_BYTES} bytes a line")
    try:
        return json.loads(
            line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_repetition
        )
    except AttentionError:
        raise
    except UnicodeDecodeError:
        raise InvalidValueError("expected UTF-8 text") from None
    except RecursionError:
        raise InvalidValueError("expected no such deep nesting") from None
    except json.JSONDecodeError as error:
        raise InvalidValueError(
            f"expected JSON, got a line that is cut short or malformed at column {error.colno}"
        ) from None
    except ValueError:  # an int of more digits than Python converts
        raise InvalidValueError("expected no number of so many digits") from None


def _no_constant(name: str) -> object:
    raise InvalidValueError(f"expected finite numbers, got {name}")


def _no_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidValueError("expected each name once in an object")
    return values


def _refused(name: str, line: int | None, reason: str) -> TuningLogError:
    place = name if line is None else f"{name}: line {line}"
    reason = reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]} ..."
    return TuningLogError(
        f"{place}: {reason}; none of this tuning log is used, correct or delete it"
    )
