"""The loader that lies beside exported kernels: what it passes on and what it refuses; the README's C."""

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
from exported_calls import ARCHITECTURE, needs_compiler

from tvm_attention import reference
from tvm_attention.__main__ import main
from tvm_attention.export.archive import Archive, ArchiveError, files
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload

PLAIN = AttentionWorkload(head_dim=64)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command line, for this machine: plain and with options."""
    folder = tmp_path_factory.mktemp("exported")
    options = "head_dim=32,mask=float32,softcap=true,alibi=true,sinks=true,output=attention_and_lse"
    arguments = ["--workload", "head_dim=64", "--workload", options, "--targets", "native"]
    assert main(["export", *arguments, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


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
    library = exported / ARCHITECTURE / "libtvm_attention.a"
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
    archive = Archive.open(exported / ARCHITECTURE)
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
    rewritten(copy / ARCHITECTURE, lambda found: found.update({name: value}))
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
    library = copy / ARCHITECTURE / "libtvm_attention.so"
    library.write_bytes(change(library.read_bytes()))
    with pytest.raises(ArchiveError) as refused:
        Archive.open(copy)
    assert why in str(refused.value)


@needs_compiler
def test_a_library_of_another_architecture_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "aarch64" if ARCHITECTURE == "x86_64" else "x86_64"
    monkeypatch.setattr(files.platform, "machine", lambda: other)
    with pytest.raises(
        ArchiveError, match=f"expected an archive for {other}, it has {ARCHITECTURE}"
    ):
        Archive.open(copy)
    with pytest.raises(ArchiveError, match=f"got one for '{ARCHITECTURE}'"):
        Archive.open(copy / ARCHITECTURE)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"library": "tvm_attention"}'])
def test_damaged_manifests_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArchiveError, match="expected"):
        Archive.open(tmp_path)
    with pytest.raises(ArchiveError, match="it holds no archive"):
        Archive.open(tmp_path / "nowhere")


@needs_compiler
def test_the_manifest_says_what_is_there(exported: Path) -> None:
    found = json.loads((exported / ARCHITECTURE / "manifest.json").read_text())
    assert found["schema"] == 1
    first, second = found["kernels"]
    assert first["workload"] == PLAIN.to_dict()
    assert set(first["features"]) <= detect_target().features
    assert second["workload"]["output"] == "attention_and_lse"
    assert {"variant", "decisions", "schedule", "rung", "target", "length_class"} <= set(first)
    for file in found["files"].values():
        assert (exported / ARCHITECTURE / file["name"]).stat().st_size == file["bytes"]
