"""What lies beside the kernels: the loader and what it refuses, the command line, compilers, the choice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_calls import needs_compiler

from tvm_attention import reference
from tvm_attention.__main__ import main
from tvm_attention.errors import InvalidValueError, KernelBuildError, UnsupportedError
from tvm_attention.export.archive import Archive, ArchiveError, files
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.export.table import table_source
from tvm_attention.export.toolchain import find_toolchain, parsed_compilers
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import written

PLAIN = AttentionWorkload(head_dim=64)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command line, for this machine: plain and with options."""
    folder = tmp_path_factory.mktemp("exported")
    options = "head_dim=32,mask=float32,softcap=true,alibi=true,sinks=true,output=attention_and_lse"
    arguments = ["--workload", "head_dim=64", "--workload", options, "--targets", "native"]
    assert main(["export", *arguments, "-o", str(folder)]) == 0
    return folder


@needs_compiler
def test_json_says_what_was_written(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", "head_dim=64", "--targets", "native", "-o", str(tmp_path / "x")]
    assert main(["export", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no progress where no terminal is
    (archive,) = json.loads(captured.out)["archives"]
    folder = tmp_path / "x" / architecture()
    assert archive["folder"] == str(folder)
    assert archive["architecture"] == architecture()
    assert archive["bytes"] == {
        name: (folder / name).stat().st_size
        for name in ("libtvm_attention.so", "libtvm_attention.a")
    }
    (kernel,) = archive["kernels"]
    assert kernel["workload"] == PLAIN.to_dict()
    assert kernel["target"] == detect_target().name
    assert kernel["source"]


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def architecture() -> str:
    return {"x86": "x86_64", "arm": "aarch64"}[detect_target().kind]


@needs_compiler
def test_the_loader_needs_numpy_alone(exported: Path) -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from tvm_attention_archive import Archive
archive = Archive.open(sys.argv[2])
rng = np.random.default_rng(0)
q = rng.standard_normal((2, 5, 3, 64), np.float32).transpose(0, 2, 1, 3)
k, v = rng.standard_normal((2, 2, 3, 40, 64), np.float32)
out = archive.attention(q, k, v, threads=2)
s = np.einsum("bhid,bhjd->bhij", q, k).astype(np.float64) / 8
w = np.exp(s - s.max(-1, keepdims=True))
assert np.abs(out - np.einsum("bhij,bhjd->bhid", w / w.sum(-1, keepdims=True), v)).max() < 2e-6
archive.close()
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"tvm", "tvm_ffi", "tvm_attention", "torch", "archspec"}, loaded
print("right")
"""
    paths = (str(exported / "python"), str(exported))
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *paths], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "tvm_attention.h"

int main(void) {
  size_t count = 12 * 384 * 64;
  float *q = calloc(count, 4), *k = calloc(count, 4), *v = malloc(4 * count), *out = calloc(count, 4);
  for (size_t i = 0; i < count; ++i) v[i] = 3.0f;
%s
  for (size_t i = 0; i < count; ++i)
    if (!(out[i] > 2.9999f && out[i] < 3.0001f)) return 1;
  return 0;
}
"""


@needs_compiler
def test_the_readme_s_c_is_a_program(exported: Path, tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```c\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.c").write_text(PROGRAM % block)
    library = exported / architecture() / "libtvm_attention.a"
    options = ["-Wall", "-Werror", f"-I{exported}/include", str(library), "-pthread", "-lm"]
    subprocess.run(["cc", "program.c", *options, "-o", "program"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "program"], check=True)


@needs_compiler
def test_the_loader_passes_options_on(exported: Path) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 4, n, 32), np.float32) for n in (9, 30, 30))
    options: dict[str, Any] = {
        "mask": np.where(rng.random((9, 30)) < 0.7, 0.5, -np.inf).astype(np.float32),
        "softcap": 20.0, "alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "sinks": [0.0, 1.0, -1.0, 2.0],
    }  # fmt: skip
    archive = Archive.open(exported / architecture())
    out, lse = archive.attention(q, k, v, return_lse=True, **options)
    expected = reference.attended(q, k, v, **options)
    assert np.abs(out - expected.out).max() < 4e-6
    assert np.abs(lse - expected.lse).max() < 4e-5
    with pytest.raises(ArchiveError, match="no kernel for head_dim 32") as refused:
        archive.attention(q, k, v)
    assert refused.value.status == "UNSUPPORTED"
    with pytest.raises(ArchiveError, match="dtype: expected"):
        archive.attention(q.astype(np.float64), k, v)
    with pytest.raises(ArchiveError, match="shapes: expected"):
        archive.attention(q, k[:1], v)


def rewritten(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = place / "manifest.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@needs_compiler
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("schema", 2, "expected schema 1, got 2"),
        ("schema", None, "expected schema 1, got None"),
        ("library", "something", "expected a manifest of tvm_attention"),
        ("abi", 9, "expected ABI 2, got 9"),
        ("architecture", 5, "expected architecture to be a str, got 5"),
        ("architecture", "riscv64", "got one for 'riscv64'; export for a target of this machine"),
        ("files", {}, "expected a shared library in the manifest, found none"),
        ("files", {"shared": {"name": "../x"}}, "expected a file of this folder"),
        ("files", {"shared": {"name": "gone.so"}}, "expected the library of the manifest"),
    ],
)
def test_manifests_refused(copy: Path, name: str, value: object, why: str) -> None:
    rewritten(copy / architecture(), lambda found: found.update({name: value}))
    with pytest.raises(ArchiveError) as refused:
        Archive.open(copy)
    assert why in str(refused.value)


@needs_compiler
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[: len(data) // 2], "truncated?"),
        (lambda data: bytes([*data[:-1], data[-1] ^ 1]), "not what the manifest was written for"),
        (lambda data: b"", "got 0: truncated?"),
    ],
)
def test_libraries_refused(copy: Path, change: Callable[[bytes], bytes], why: str) -> None:
    library = copy / architecture() / "libtvm_attention.so"
    library.write_bytes(change(library.read_bytes()))
    with pytest.raises(ArchiveError) as refused:
        Archive.open(copy)
    assert why in str(refused.value)


@needs_compiler
def test_a_library_of_another_architecture_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "aarch64" if architecture() == "x86_64" else "x86_64"
    monkeypatch.setattr(files.platform, "machine", lambda: other)
    with pytest.raises(
        ArchiveError, match=f"expected an archive for {other}, it has {architecture()}"
    ):
        Archive.open(copy)
    with pytest.raises(ArchiveError, match=f"got one for '{architecture()}'"):
        Archive.open(copy / architecture())


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"library": "tvm_attention"}'])
def test_damaged_manifests_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArchiveError, match="expected"):
        Archive.open(tmp_path)
    with pytest.raises(ArchiveError, match="it holds no archive"):
        Archive.open(tmp_path / "nowhere")


@needs_compiler
def test_the_manifest_says_what_is_there(exported: Path) -> None:
    found = json.loads((exported / architecture() / "manifest.json").read_text())
    assert found["schema"] == 1
    first, second = found["kernels"]
    assert first["workload"] == PLAIN.to_dict()
    assert set(first["features"]) <= detect_target().features
    assert second["workload"]["output"] == "attention_and_lse"
    assert {"variant", "decisions", "schedule", "rung", "target", "length_class"} <= set(first)
    for file in found["files"].values():
        assert (exported / architecture() / file["name"]).stat().st_size == file["bytes"]


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
