"""The script for a GPU, rehearsed on a stand-in from end to end: no minute on a GPU is lost to a typo."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gpu_stand_in import all_put_back

from bench.gpu import calls, cases, classes, peers, results, supervision
from bench.gpu import place as places
from bench.gpu.bundle import Bundle, build_one
from bench.gpu.journal import Journal
from bench.gpu.plan import Plan
from bench.gpu_suite import JOURNAL, main
from tvm_attention.database import read_log
from tvm_attention.errors import TuningError
from tvm_attention.schedules import cuda

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = ("float32 plain", "call ", "prefill-f16-64", "decode-f32-128")
OPTIONS = ["--place", "gpu_stand_in", "--candidates", "2", "--small", "64", "--only", *CHOSEN]


@pytest.fixture(scope="module", autouse=True)
def _all_put_back() -> Iterator[None]:
    with all_put_back():
        yield


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], int]:
    """A whole run: (what it wrote, its arguments, its exit status)."""
    folder = tmp_path_factory.mktemp("rehearsal")
    libraries, kernels = folder / "libraries", folder / "kernels"
    libraries.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_STAND_IN", str(libraries))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        made = ["--bundle", str(kernels), *OPTIONS]
        assert main(["prepare", "--arch", "sm_87", "--jobs", "2", *made]) == 0
        run = ["run", "--out", str(folder / "out"), "--minutes", "600", "--silence", "36000", *made]
        return folder / "out", run, main(run)


@pytest.fixture
def again(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of the run, in the same surroundings."""
    out, run, _ = rehearsal
    monkeypatch.setenv("GPU_STAND_IN", str(out.parent / "libraries"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    return list(run)


def test_every_part_is_done(rehearsal: Any) -> None:
    out, _, status = rehearsal
    assert status in (0, 1)  # 1: a figure was missed, on a processor
    journal = Journal(out / JOURNAL)
    for part in results.PARTS:
        assert journal.failed(part) == {}, part
        assert journal.done(part), part
    checked = journal.done("correctness")
    assert {"float32 plain", "float32 plain decode", "float32 plain, streams"} <= checked.keys()
    assert "float32 plain decode, unaligned" in checked
    assert all(0 <= found["error"] <= 4 for found in checked.values())


def test_peers_are_timed_and_those_that_are_not_there_say_why(rehearsal: Any) -> None:
    out, _, _ = rehearsal
    timing = json.loads((out / "gpu.json").read_text())["parts"]["timing"]["done"]
    assert timing.keys() == {"prefill-f16-64", "decode-f32-128"}
    for found in timing.values():
        timed, refused = found["contenders"], found["refused"]
        assert {"ours", "torch math", "flex"} <= timed.keys()
        assert (
            timed.keys() - {"ours", "ours, default schedule"} | refused.keys()
            == peers.peers().keys()
        )
        assert all(reason for reason in refused.values())
        assert timed["ours"]["ratio"]["median"] == 1.0
        assert all(c["seconds"]["median"] > 0 and c["host_seconds"] > 0 for c in timed.values())


def test_winners_become_records_and_pictures_are_drawn(rehearsal: Any) -> None:
    out, _, _ = rehearsal
    records = read_log(out / "cuda-sm_87" / "measured.jsonl")
    assert len(records) == 2
    for record in records:
        assert record.provenance["kind"] == "measured"
        assert record.provenance["on"] == "a stand-in"
        assert record.ratio <= 1
    for name in ("speed.svg", "tuning.svg"):
        assert "</svg>" in (out / name).read_text()


def test_a_run_goes_on_where_it_was(rehearsal: Any, again: list[str]) -> None:
    """Cut off while its last line was written, and with another kernel for one case, which is wrong."""
    out, _, _ = rehearsal
    lines = (out / JOURNAL).read_text().splitlines(keepends=True)
    kept = [x for x in lines if json.loads(x)["name"] != "float32 plain decode"]
    (out / JOURNAL).write_text("".join(kept[:-1]) + kept[-1][:20])
    for file in (out.parent / "kernels").glob("*.json"):
        values = json.loads(file.read_text())
        if len(values["code"]["functions"]) == 2:  # without its second half
            values["code"]["functions"][1]["threads"] = [32, 0]
            file.write_text(json.dumps(values))
    assert main(again) == 1
    text = (out / JOURNAL).read_text()
    assert text.startswith("".join(kept[:-1]))  # what was done is not done again
    journal = Journal(out / JOURNAL)
    assert journal.last().keys() == {(j["part"], j["name"]) for j in map(json.loads, lines)}
    assert journal.crashed() == []
    assert "wrong result" in journal.failed("correctness")["float32 plain decode"]["error"]


def test_the_candidates_are_those_that_were_built(rehearsal: Any) -> None:
    out, _, _ = rehearsal
    kept = Bundle(out.parent / "kernels").kept()
    assert kept.keys() == {"prefill-f16-64", "decode-f32-128"}
    plan = Plan("sm_87", 7, CHOSEN, 64, kept)  # of another number, which is not asked for then
    assert {s.name: s.candidates for s in plan.searches} == kept


def test_a_bundle_of_another_gpu_is_refused_before_anything_runs(
    again: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = ["--bundle", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*again, *empty]) == 2
    assert "expected kernels for sm_87, got none" in capsys.readouterr().err
    assert not (tmp_path / "out" / JOURNAL).exists()


def test_kernels_for_a_real_gpu_are_compiled_here() -> None:
    """By what no rehearsal uses: the compiler that comes without a stand-in."""
    build = next(calls.builds("sm_90"))
    values = json.loads(build_one(build, places.GPU))
    assert base64.b64decode(values["cubin"]).startswith(b"\x7fELF")
    assert values["resources"].keys() == {f["name"] for f in values["code"]["functions"]}


def test_a_process_that_dies_costs_its_unit_only(tmp_path: Path) -> None:
    journal, program = tmp_path / JOURNAL, tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bench.gpu.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for name in 'abc':\n"
        "    journal.run('part', name, lambda: os._exit(9) if name == 'b' else {'name': name})\n"
    )
    command = [sys.executable, str(program), str(journal)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        assert supervision.supervise(command, journal, time.monotonic() + 36000) == 2
    book = Journal(journal)
    assert book.done("part").keys() == {"a", "c"}
    assert "exit status 9" in book.failed("part")["b"]["error"]


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MOST_STARTS", 2)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(RuntimeError, match="at most 2 processes"):
        supervision.supervise(command, tmp_path / JOURNAL, time.monotonic() + 36000, 0.5)


@pytest.mark.parametrize("arch", ["sm_90", "sm_75"])
def test_every_kernel_of_a_run_is_in_the_design_space(arch: str) -> None:
    machine = cuda.MACHINES[arch]
    found = cases.cases(arch)
    assert len({c.name for c in found}) == len(found) > 60
    assert {c.candidate.variant for c in found} == {"fused", "fused_tensor", "fused_split_kv"}
    for case in found:
        for build in case.builds(arch):
            for workload in case.workloads:
                space = cuda.design_space(workload, machine)
                assert space.refusal(build.candidate) is None, (case.name, workload)
    chosen = dict(list(classes.workloads().items())[:2])
    for search in classes.searches(arch, 3, chosen, {}):
        space = cuda.design_space(search.workload, machine)
        assert search.candidates[0] == cuda.default_candidate(search.workload, machine)
        assert len(search.candidates) == 3
        assert all(space.refusal(c) is None for c in search.candidates)


def test_what_is_asked_for_is_compared_with_the_right_peers() -> None:
    def timed(**ratios: float) -> dict[str, Any]:
        known = {n.replace("_", " "): {"ratio": {"median": r}} for n, r in ratios.items()}
        return {"contenders": known | {"ours": {"ratio": {"median": 1.0}}}}

    found = results.figures(
        {
            "prefill-f16-128": timed(torch_flash=0.7, torch_efficient=1.1, triton=0.5),
            "prefill-bf16-64": timed(torch_flash=0.7, torch_efficient=0.9),
            "prefill-bf16-128": timed(torch_efficient=1.2),
            "decode-f32-128": timed(torch_math=1.2, torch_efficient=0.95),
            "prefill-f32-64": timed(torch_math=3.0, torch_efficient=0.99),
            "prefill-f32-128": timed(flex=0.5),
        }
    )
    assert {n: f["holds"] for n, f in found.items()} == {
        "prefill-f16-128": True,
        "prefill-bf16-64": False,
        "prefill-bf16-128": None,
        "decode-f32-128": True,
        "prefill-f32-64": False,
        "prefill-f32-128": None,
    }


def test_a_call_is_right_only_if_all_its_results_are(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(array=np.asarray)
    monkeypatch.setattr(calls, "_loaded_from", lambda *_: nullcontext())
    for second in (np.nan, 1.0):
        pairs = [(np.zeros(2), np.zeros(2)), (np.array([0.0, second]), np.zeros(2))]
        monkeypatch.setitem(calls.CALLS, "made", lambda _, pairs=pairs: pairs)
        with pytest.raises(TuningError, match="wrong result"):
            calls.check(cast(Any, place), cast(Any, None), "made")


def test_the_summary_names_what_compared_nothing() -> None:
    done = {"call others": {"errors": []}, "call graph": {"errors": [1e-6]}}
    parts = {"calls": {"done": done, "failed": {}}, "timing": {"done": {}, "failed": {}}}
    device = {"name": "none", "arch": "sm_90"}
    [line] = [
        x
        for x in results.summary({"device": device, "parts": parts}).splitlines()
        if "NOTHING" in x
    ]
    assert line.endswith(": call others")


def test_the_machine_of_a_gpu_needs_no_tvm() -> None:
    program = (
        "import sys\n"
        "sys.modules['tvm'] = sys.modules['tvm_ffi'] = None\n"
        "import bench.gpu_suite, bench.gpu.plots, bench.gpu.timing\n"
        "from bench.gpu.plan import Plan\n"
        "assert list(Plan('sm_90', 2, ('decode-f32',)).builds())\n"
    )
    surroundings = dict(os.environ, PYTHONPATH=str(ROOT))
    subprocess.run([sys.executable, "-c", program], check=True, env=surroundings)
