"""Tuning records as text: round trip, layout, and every sort of damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuning_records import modelled, record, several

from tvm_attention.database import TuningRecord, format_log, parse_log, read_log
from tvm_attention.errors import AttentionError, InvalidValueError, TuningLogError


def test_plain_data_round_trip() -> None:
    for one in several():
        assert TuningRecord.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_log_layout() -> None:
    header, *lines = format_log(several()).decode().splitlines()
    assert json.loads(header) == {"schema": 1, "library": "tvm_attention"}
    assert lines == sorted(lines)
    for line in lines:
        assert list(json.loads(line)) == sorted(json.loads(line))


def test_line_endings_and_a_last_line_without_one() -> None:
    data = format_log(several())
    whole = parse_log(data, "log")
    assert parse_log(data.replace(b"\n", b"\r\n"), "log") == whole
    assert parse_log(data.rstrip(b"\n"), "log") == whole


def lines_of(*changes: Callable[[dict[str, Any]], object]) -> bytes:
    """A log of one record after some changes to its plain data."""
    header, line = format_log([record()]).decode().splitlines()
    data = json.loads(line)
    for change in changes:
        change(data)
    return f"{header}\n{json.dumps(data)}\n".encode()


def put(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return change


GOOD = format_log([record()])
HEADER = GOOD.split(b"\n")[0]

DAMAGED: list[tuple[bytes, str]] = [
    (b"", "line 1: expected JSON"),
    (b"\n", "line 1: expected JSON"),
    (b"\x7fELF\x00\x01\xff", "line 1: expected UTF-8"),
    (b"[]\n", "line 1: header: expected a mapping, got list"),
    (GOOD.split(b"\n", 1)[1], "line 1: header: lacks library"),
    (b'{"schema": 1, "library": "other"}\n', "foreign"),
    (b'{"schema": 2, "library": "tvm_attention"}\n', "newer 2"),
    (b'{"schema": 0, "library": "tvm_attention"}\n', "schema: expected 1, got 0"),
    (b'{"schema": true, "library": "tvm_attention"}\n', "expected an int, got bool"),
    (b'{"schema": 1, "schema": 1, "library": "tvm_attention"}\n', "each name once"),
    (GOOD[: len(GOOD) // 2], "line 2: expected JSON"),
    (GOOD[:-3], "line 2: expected JSON"),
    (GOOD.replace(b"\n", b"\n\n", 1), "line 2: expected JSON"),
    (GOOD + b"null\n", "line 3: record: expected a mapping, got NoneType"),
    (GOOD.replace(b"Made-up", b"Made\xff\xfeup"), "line 2: expected UTF-8"),
    (GOOD.replace(b"0.001", b"NaN"), "finite numbers, got NaN"),
    (GOOD.replace(b"0.001", b"-Infinity"), "finite numbers, got -Infinity"),
    (GOOD.replace(b"0.001", b"1e999"), "seconds: tuned"),
    (GOOD.replace(b'"key_tile": 16', b'"key_tile": 16, "key_tile": 17'), "each name once"),
    (GOOD.replace(b": 16", b": 1" + b"0" * 400), "decisions: key_tile: expected 0 to 65536"),
    (GOOD.replace(b"0.001", b"1" + b"0" * 400), "seconds: tuned"),
    (GOOD.replace(b": 16", b": 1" + b"0" * 5000), "line 2: "),
    (HEADER + b"\n" + b"[" * 60_000 + b"\n", "line 2: expected"),
    (HEADER + b"\n" + b" " * 2**17 + b"\n", "bytes a line"),
    (b"\xef\xbb\xbf" + GOOD, "line 1: expected JSON"),
    (lines_of(lambda d: d.pop("date")), "record: lacks date"),
    (lines_of(put("extra", value=1)), "got .*extra"),
    (lines_of(put("schema", value=2)), "schema: expected 1, got 2"),
    (lines_of(put("target", value="../../etc/passwd")), "target: expected"),
    (lines_of(put("target", value="/etc")), "target: expected"),
    (lines_of(put("target", value="..")), "target: expected"),
    (lines_of(put("target", value="icelake\n")), "target: expected"),
    (lines_of(put("target", value=["icelake"])), "target: expected text, got list"),
    (lines_of(put("target", value="x86-64-v3")), "isa: expected 'x86-64-v3'"),
    (lines_of(put("length_class", value="long")), "length_class: expected 'medium'"),
    (lines_of(put("variant", value="__import__('os')")), "variant: expected"),
    (lines_of(put("variant", value="Row")), "variant: expected"),
    (lines_of(put("decisions", value=[1])), "decisions: expected a mapping"),
    (lines_of(put("decisions", "a/b", value=1)), "decisions: name"),
    (lines_of(put("decisions", "tile", value=1.5)), "tile: expected an int, got float"),
    (lines_of(put("decisions", "tile", value=True)), "tile: expected an int, got bool"),
    (lines_of(put("decisions", "tile", value=-1)), "tile: expected 0 to 65536"),
    (lines_of(put("decisions", value={"a" * i: i for i in range(1, 66)})), "at most 64"),
    (lines_of(put("seconds", "tuned", value="0.001")), "tuned: expected a number, got str"),
    (lines_of(put("seconds", "tuned", value=0)), "tuned: expected more than 0"),
    (lines_of(put("seconds", "default", value=-1.0)), "default: expected more than 0"),
    (lines_of(put("seconds", "spread", value=-1.0)), "spread: expected"),
    (lines_of(put("seconds", value={})), "seconds: lacks default, spread, tuned"),
    (lines_of(put("hardware", "model", value="\x1b[2J")), "printable"),
    (lines_of(put("hardware", "model", value="\ud800")), "printable"),
    (lines_of(put("hardware", "model", value="m" * 129)), "at most 128"),
    (lines_of(put("hardware", "kind", value="abacus")), "kind: expected one of x86"),
    (lines_of(put("hardware", "cores", value=0)), "cores: expected 1"),
    (lines_of(put("hardware", "l2", value=10**30)), "l2: expected 0 to"),
    (lines_of(put("threads", value="2")), "threads: expected an int, got str"),
    (lines_of(put("tvm", value="")), "tvm: expected"),
    (lines_of(put("expression", value="not hex")), "expression: expected"),
    (lines_of(put("provenance", "kind", value="guessed")), "measured, modelled"),
    (lines_of(put("provenance", "trials", value=None)), "trials: expected an int"),
    (lines_of(put("date", value="2025-02-30")), "day of the calendar"),
    (lines_of(put("date", value="20250131")), "date: expected"),
    (lines_of(put("workload", value="head_dim=64")), "workload: expected a mapping"),
    (lines_of(put("workload", "head_dim", value=10**6)), "head_dim: expected 1 to 512"),
    (lines_of(put("workload", "dtype", value="int3")), "dtype: expected"),
    (lines_of(put("workload", "causal", value=True)), "every field spelled out"),
    (lines_of(put("workload", "path", value="/tmp/x")), "field path; known: "),
]


def changed_model(**fields: object) -> bytes:
    """A log of a modelled record with fields of its model changed."""
    model = {**modelled().provenance["model"], **fields}
    return lines_of(
        put("provenance", value={"kind": "modelled", "on": "a", "trials": 1, "model": model})
    )


DAMAGED += [
    (lines_of(put("provenance", "model", value={})), "provenance: expected kind, on, trials"),
    (changed_model(tool="a\nb"), "model: tool: expected one line"),
    (changed_model(more=1), "model: expected"),
    (changed_model(next={}), "next: expected a list"),
    (changed_model(next=[{}]), "next: lacks decisions, seconds, variant"),
    (changed_model(next=[{"variant": "a", "decisions": {"b": -1}, "seconds": 1}]), "b: expected 0"),
    (
        changed_model(next=[{"variant": "a", "decisions": {}, "seconds": 0}]),
        "seconds: expected more",
    ),
    (changed_model(next=[{"variant": "a", "decisions": {}, "seconds": 1}] * 17), "at most 16"),
]


@pytest.mark.parametrize(("data", "reason"), DAMAGED)
def test_damaged_logs_are_refused_whole(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(data)
    with pytest.raises(TuningLogError, match=reason) as caught:
        read_log(path)
    message = str(caught.value)
    assert "damaged.jsonl: line " in message
    assert "delete it" in message
    assert len(message) < 900
    assert message.isprintable()


def test_one_damaged_line_refuses_all_good_ones() -> None:
    data = format_log(several()) + lines_of(put("threads", value=0)).split(b"\n", 1)[1]
    with pytest.raises(TuningLogError, match="log: line 5: threads"):
        parse_log(data, "log")


def test_every_truncation_is_refused_or_loses_whole_records_only() -> None:
    data = format_log(several())
    whole = parse_log(data, "log")
    for end in range(0, len(data), 7):
        try:
            found = parse_log(data[:end], "log")
        except TuningLogError:
            continue
        assert found == whole[: len(found)]
        assert data[end - 1 : end + 1].count(b"\n")


def test_records_are_checked_when_made() -> None:
    with pytest.raises(InvalidValueError, match="variant"):
        record(variant="Row Block")
    with pytest.raises(InvalidValueError, match="seconds: tuned"):
        record(tuned=float("nan"))
    with pytest.raises(InvalidValueError, match="decisions: tile"):
        record(decisions={"tile": 10**5000})
    with pytest.raises(AttentionError, match="hardware"):
        record(hardware={})
