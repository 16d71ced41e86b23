"""Modelled times against measured ones: what is summarised."""

from __future__ import annotations

import pytest

from bench import bench_modelled


def test_modelled_against_measured():
    drawn = {"name": "a", "kind": "drawn", "error": "", "variant": "x", "decisions": {}}
    times = ((1.0, 2.0), (2.0, 3.0), (3.0, 5.0), (4.0, 4.0))
    rows = [{**drawn, "modelled": m, "measured": t} for m, t in times]
    rows.append({**drawn, "modelled": None, "error": "no"})
    [found] = bench_modelled._random_summary(rows)["workloads"]
    assert (found["candidates"], found["not_modelled"], found["lost_by_first"]) == (4, 1, 0)
    assert found["rank_correlation"] == pytest.approx(0.8)
    ratios = {"shipped": 1.0, "default": 1.1, "model": 1.21, "record": 1.1}
    rows = [
        {"name": name, "kind": kind, "modelled": 1.0, "measured": r, "ratio": r}
        for name in ("a", "b")
        for kind, r in ratios.items()
    ]
    summary = bench_modelled._search_summary(rows)
    assert summary["mean_lost"] == pytest.approx(0.21)
    assert summary["mean_lost_by_record"] == pytest.approx(0.1)
    assert [w["name"] for w in summary["workloads"]] == ["a", "b"]
