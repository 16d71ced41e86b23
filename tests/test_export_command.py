"""What is exported by the command line: which kernels, in which order, by which compilers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_calls import ARCHITECTURE, needs_compiler

from tvm_attention.__main__ import main
from tvm_attention.errors import InvalidValueError, KernelBuildError, UnsupportedError
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.export.table import table_source
from tvm_attention.export.toolchain import find_toolchain, parsed_compilers
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import written

PLAIN = AttentionWorkload(head_dim=64)


@needs_compiler
def test_json_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "head_dim=64", "--targets", "native", "-o", str(tmp_path / "x")]
    assert main(["export", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no progress where no terminal is
    (archive,) = json.loads(captured.out)["archives"]
    folder = tmp_path / "x" / ARCHITECTURE
    assert archive["folder"] == str(folder)
    assert archive["architecture"] == ARCHITECTURE
    assert archive["bytes"] == {
        name: (folder / name).stat().st_size
        for name in ("libtvm_attention.so", "libtvm_attention.a")
    }
    (kernel,) = archive["kernels"]
    assert kernel["workload"] == PLAIN.to_dict()
    assert kernel["target"] == detect_target().name
    assert kernel["source"]


def test_choice_and_order() -> None:
    targets = ["cortex-a72", "x86-64-v2", "cortex-a53", "x86-64-v4", "neoverse-n1", "X86_64_V2"]
    chosen = chosen_kernels([PLAIN, PLAIN, AttentionWorkload(head_dim=80)], targets)
    order = {a: [(k.workload.head_dim, k.target.name) for k in ks] for a, ks in chosen.items()}
    assert order == {
        "x86_64": [(d, t) for d in (64, 80) for t in ("x86-64-v4", "x86-64-v2")],
        "aarch64": [(d, t) for d in (64, 80) for t in ("neoverse_n1", "cortex_a72", "cortex_a53")],
    }
    cores = {k.target.name: k.core for k in chosen["aarch64"]}
    assert cores == {"neoverse_n1": 0x410D0C, "cortex_a72": 0x410D08, "cortex_a53": 0x410D03}
    text = table_source(chosen["aarch64"], "1.0", "aarch64")
    assert text.count(".core = 0x410d08") == 2
    assert "tvi_number_of_kernels = 6;" in text


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (AttentionWorkload(head_dim=64, output="weights"), "weights"),
    ],
)
def test_workloads_refused(workload: AttentionWorkload, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        chosen_kernels([workload], ["x86-64-v2"])


def test_workloads_as_text_are_read_back() -> None:
    for workload in (
        PLAIN,
        AttentionWorkload(
            head_dim=40, value_dim=8, causal=True, window=(3, -1), softcap=True, mask="bool"
        ),
    ):
        assert AttentionWorkload.from_text(written(workload)) == workload


def test_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed_compilers(["aarch64=gcc -O1"]) == {"aarch64": "gcc -O1"}
    for pair in ("aarch64", "mips=gcc"):
        with pytest.raises(InvalidValueError, match="expected ARCHITECTURE=COMMAND"):
            parsed_compilers([pair])
    with pytest.raises(KernelBuildError, match="'/nowhere/cc', which is not there"):
        find_toolchain("x86_64", {"x86_64": "/nowhere/cc"})
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(KernelBuildError, match="apt install gcc-aarch64-linux-gnu"):
        find_toolchain("aarch64")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "head_dim=64", "--targets", ","], "at least one workload and one target"),
        (["--workload", "head_dim=64", "--targets", "pentium"], "pentium"),
        (
            ["--workload", "head_dim=64", "--targets", "x86-64-v2", "--compiler", "gcc"],
            "ARCHITECTURE=",
        ),
        (["--workload", "head_dim=64,output=weights", "--targets", "x86-64-v2"], "weights"),
        (
            ["--workload", "head_dim=64", "--targets", "x86-64-v2", "--compiler", "x86_64=false"],
            "failed",
        ),
    ],
)
def test_commands_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments, "-o", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
