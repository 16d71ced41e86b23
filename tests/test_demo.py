import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

import tvm_attention
from tvm_attention import demo, demo_timing, reference
from tvm_attention.__main__ import main
from tvm_attention.errors import InvalidValueError
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload

TINY = {
    "plain": AttentionWorkload(head_dim=8, query_heads=2, query_length=20, key_length=24),
    "causal": AttentionWorkload(head_dim=8, causal=True, query_length=9, key_length=9),
    "decode": AttentionWorkload(
        head_dim=16, query_heads=4, kv_heads=2, query_length=1, key_length=33
    ),
}


class _StandInKernel:
    source = KernelSource(
        Candidate.of("row_block", {}), None, "default", ("default schedule: taken: a stand-in",)
    )

    def __init__(self, workload, error):
        self.workload, self.error = workload, error

    def __call__(self, query, key, value, out):
        out[:] = reference.attention(query, key, value, causal=self.workload.causal)
        out[0, 0, 0, 0] += self.error


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a stand-in of the library's calls in place that errs by the given amounts."""

    def place(kernel_error=0.0, example_error=0.0):
        def attention(query, key, value, is_causal=False, enable_gqa=False):
            heads = [x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (query, key, value)]
            result = reference.attention(*heads, causal="top_left" if is_causal else None)
            return result.reshape(*query.shape[:-1], -1).astype(np.float32) + example_error

        monkeypatch.setattr(tvm_attention, "scaled_dot_product_attention", attention, raising=False)
        monkeypatch.setattr(
            tvm_attention, "load", lambda w: _StandInKernel(w, kernel_error), raising=False
        )

    return place


def _run(workloads=None, seconds=0.02):
    out = io.StringIO()
    findings = demo.run(Console(file=out, width=100), workloads or TINY, seconds)
    return int(bool(findings.wrong)), out.getvalue()


def test_everything_right_is_status_zero_and_shown(stand_in):
    stand_in()
    status, text = _run()
    assert status == 0
    for expected in (
        "weights 0.3302 and 0.6698, result 16.698",
        "causal: row_block, default schedule: taken: a stand-in",
        "1x4/2x1x33x16",
        "NumPy / ours",
        "every check held",
    ):
        assert expected in text
    assert "WRONG" not in text


@pytest.mark.parametrize("error", [1e-4, math.nan])
def test_a_wrong_kernel_is_status_one_and_named(stand_in, error):
    stand_in(kernel_error=error)
    status, text = _run({"decode": TINY["decode"]})
    assert status == 1
    assert "wrong: decode" in text
    assert "WRONG" in text


@pytest.mark.parametrize("error", [1e-4, math.nan])
def test_a_wrong_worked_example_is_status_one(stand_in, error):
    stand_in(example_error=error)
    status, text = _run()
    assert status == 1
    assert "wrong: the worked example" in text


@pytest.mark.parametrize("error", [0.0, 1e-4, math.nan])
def test_json(stand_in, monkeypatch, capsys, error):
    stand_in(kernel_error=error)
    monkeypatch.setattr(demo.run, "__defaults__", (None, None, 0.02, lambda _: None))
    text = "head_dim=8,query_heads=2,query_length=20,key_length=24"
    assert main(["demo", "--json", "--workload", text]) == bool(error)
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert captured.err == ""
    assert said["ok"] is not bool(error)
    (outcome,) = said["workloads"]
    assert said["wrong"] == ([outcome["name"]] if error else [])
    assert outcome["workload"] == TINY["plain"].to_dict()
    assert (outcome["max_error"] is None) == math.isnan(error)
    assert outcome["seconds"]["tvm_attention"]["median"] > 0
    assert outcome["ratios"]["NumPy"]["median"] > 0


def test_each_workload_is_announced_as_it_begins(stand_in):
    stand_in()
    begun = []
    demo.run(Console(file=io.StringIO()), TINY, 0.02, begun.append)
    assert begun == list(TINY)


def test_who_is_left_out_is_named_with_the_reason(stand_in, monkeypatch):
    stand_in()
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        demo_timing.psutil, "virtual_memory", lambda: type("M", (), {"available": 6000})
    )
    status, text = _run({"plain": TINY["plain"]})
    assert status == 0
    assert "plain: without torch, not installed" in text
    assert "plain: without NumPy, its scores would take 0.0 GiB" in text


def test_a_workload_larger_than_memory_is_refused_at_once(stand_in):
    stand_in()
    huge = AttentionWorkload(head_dim=64, query_heads=2**31 - 1, query_length=2**31 - 1)
    with pytest.raises(InvalidValueError, match="memory"):
        _run({"plain": TINY["plain"], "huge": huge})


def test_no_name_is_cut_on_a_narrow_terminal(stand_in):
    stand_in()
    out = io.StringIO()
    name = "a-workload-of-a-very-long-name-indeed"
    assert not demo.run(Console(file=out, width=60), {name: TINY["plain"]}, 0.02).wrong
    table = out.getvalue()[out.getvalue().index("max error") :]
    assert "…" not in table
    cells = [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
    assert name in "".join(cells)


def test_the_demo_holds_with_the_library_itself():
    status, text = _run()
    assert status == 0, text
    assert "stand-in" not in text
