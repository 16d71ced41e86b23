"""What the report reads of files of results, and which it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tvm_attention.errors import InvalidValueError
from tvm_attention.report.results import read_result
from tvm_attention.work import all_bytes, flops

CORE = Path(__file__).parent.parent / "bench" / "results" / "core.json"


def test_what_a_result_says() -> None:
    result = read_result(CORE)
    content = json.loads(CORE.read_text())
    entries = {w["name"]: w for w in content["workloads"]}
    assert [m.name for m in result.measurements] == list(entries)
    for m in result.measurements:
        entry = entries[m.name]
        assert m.seconds.median == entry["measured"]["ours"]["seconds"]["median"]
        assert m.peers["torch"].q3 == entry["measured"]["torch"]["ratio"]["q3"]
        assert m.gflops * 1e9 * m.seconds.median == pytest.approx(flops(m.workload))
        assert m.intensity == flops(m.workload) / all_bytes(m.workload)
    fma = sorted(
        e["ceilings"]["machine"] for e in entries.values() if e["ceilings"]["limit"] == "fma"
    )
    assert result.fma_peak == fma[len(fma) // 2]
    memory, best = result.read_peaks or (math.nan, math.nan)
    assert memory == entries["decode-8192"]["ceilings"]["machine"]
    assert best >= memory


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(schema=2),
        lambda c: c.update(mode="other"),
        lambda c: c.pop("machine"),
        lambda c: c.update(workloads=7),
        lambda c: c["workloads"][0].pop("measured"),
        lambda c: c["workloads"][0]["workload"].update(head_dim=0),
        lambda c: c["workloads"][0]["measured"]["ours"]["seconds"].update(median=-1),
        lambda c: c["workloads"][0]["measured"]["torch"]["ratio"].update(q1="fast"),
    ],
)
def test_a_damaged_result_is_refused(change: Any, tmp_path: Path) -> None:
    content = json.loads(CORE.read_text())
    change(content)
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match=r"bad\.json: expected a"):
        read_result(tmp_path / "bad.json")


@pytest.mark.parametrize("text", ["", "[1", "[]", "null"])
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidValueError, match=r"bad\.json: expected a"):
        read_result(tmp_path / "bad.json")
