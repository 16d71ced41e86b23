"""Kernels exported for GPUs, launched as their manifest says and by nothing else of the library's."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import built, library

from tvm_attention import reference, runtime
from tvm_attention.__main__ import main
from tvm_attention.cuda.export import export_cuda
from tvm_attention.cuda.launching import grids
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.operands import geometry
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.workload import AttentionWorkload

PREFILL = AttentionWorkload(
    head_dim=64, causal="bottom_right", query_heads=4, kv_heads=2, query_length=40, key_length=70
)
DECODE = AttentionWorkload(
    head_dim=64, causal="bottom_right", query_heads=4, kv_heads=2, query_length=1, key_length=70
)
C_TYPES: dict[str, Any] = {
    "address": ctypes.c_void_p, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
}  # fmt: skip


PACKED = replace(PREFILL, ragged=True, output="attention_and_lse")
PAGED = replace(DECODE, ragged=True, paged=True)


@pytest.fixture(scope="module", autouse=True)
def _small_tiles() -> Iterator[None]:
    """Default schedules that are soon compiled, and no records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "_TILES", ((4, 8, 2, 2),))
        patch.setattr(cuda, "_SPLIT_KV_TILES", ((16, 1),))
        patch.setattr(runtime, "available_logs", list)
        yield


def exported(folder: Path, targets: str, *workloads: AttentionWorkload) -> Path:
    command = ["export", "--targets", targets, "-o", str(folder)]
    for w in workloads:
        command += ["--workload", ",".join(f"{n}={v}" for n, v in w.to_dict().items())]
    assert main(command) == 0
    return folder / "cuda"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("a"), "cuda-sm_87,cuda-sm_75", PREFILL, DECODE)


@pytest.fixture(scope="module")
def ragged_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("a"), "cuda-sm_87", PACKED, PAGED)


def manifest_of(archive: Path) -> Any:
    return json.loads((archive / "manifest.json").read_text())


def test_every_kernel_has_its_files(archive: Path) -> None:
    kernels = manifest_of(archive)["kernels"]
    targets = ["cuda-sm_87", "cuda-sm_87", "cuda-sm_75", "cuda-sm_75"]
    assert [k["target"] for k in kernels] == targets * 2
    assert [k["aligned_elements"] for k in kernels] == [4, 1] * 4
    for kernel in kernels:
        assert (archive / f"{kernel['name']}.cubin").read_bytes().startswith(b"\x7fELF")
        ptx = (archive / f"{kernel['name']}.ptx").read_text()
        assert f".target {kernel['target'].removeprefix('cuda-')}" in ptx
        for function in kernel["functions"]:
            assert f".entry {function['name']}" in ptx
            assert 0 < function["registers"] <= 255


@pytest.mark.parametrize(("index", "workload"), [(0, PREFILL), (4, DECODE)])
def test_the_manifest_says_all_that_a_launch_needs(
    archive: Path, index: int, workload: AttentionWorkload
) -> None:
    kernel = manifest_of(archive)["kernels"][index]
    w = AttentionWorkload.from_dict(kernel["workload"])
    assert w == workload
    q, k, v = random_inputs(w, 0)
    out = np.full(q.shape, np.nan, np.float32)
    values: dict[str, Any] = {
        "batch": 1, "query_heads": 4, "group": 2, "query_length": w.query_length, "key_length": 70,
        "kv_batches": 1, "key_rows": 70, "causal_offset": 70 - w.query_length, "threads": 1,
        "scale_log2": np.log2(np.e) / 8,
    }  # fmt: skip
    values["splits"] = eval(kernel["most_splits"], {}, values)
    for name, array in {"query": q, "key": k, "value": v, "out": out}.items():
        values[name] = array.ctypes.data
        for axis, stride in zip(("batch", "head", "row"), array.strides, strict=False):
            values[f"{name}_{axis}_stride"] = stride // 4
    part = np.full(eval(kernel["workspace"]["floats"], {}, values), np.nan, np.float32)
    values[kernel["workspace"]["parameter"]] = part.ctypes.data
    text = (archive / f"{kernel['name']}.cu").read_text()
    made = ctypes.CDLL(str(library(text[text.index('extern "C" __global__') :])))
    for f in kernel["functions"]:
        given = [C_TYPES[p["type"]](values[p["name"]]) for p in f["parameters"]]
        pointers = (ctypes.c_void_p * len(given))(*(ctypes.addressof(x) for x in given))
        run = getattr(made, f"run_{f['name']}")
        assert (
            run(pointers, eval(f["blocks"], {}, values), *f["threads"], f["shared_bytes"], 2) == 0
        )
    expected = reference.attention(q, k, v, causal=w.causal)
    assert np.abs(out - expected).max() < 1e-5


@pytest.mark.parametrize("index", [0, 4])
def test_formulas_are_those_of_the_loader(archive: Path, index: int) -> None:
    kernel = manifest_of(archive)["kernels"][index]
    w = AttentionWorkload.from_dict(kernel["workload"])
    candidate = Candidate.of(kernel["variant"], kernel["decisions"])
    for keys in (1, 63, 64, 65, 1000):
        shapes = ((3, 4, w.query_length, 64), (3, 2, keys, 64), (3, 2, keys, 64))
        made = grids(w, candidate, geometry(*shapes, enable_gqa=True), 10)
        values = {
            "batch": 3, "query_heads": 4, "group": 2, "query_length": w.query_length,
            "key_length": keys, "splits": made.splits,
        }  # fmt: skip
        blocks = tuple(eval(f["blocks"], {}, values) for f in kernel["functions"])
        assert blocks == made.blocks
        assert eval(kernel["workspace"]["floats"], {}, values) == made.workspace
        assert 1 <= made.splits <= eval(kernel["most_splits"], {}, values)


def numbers(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Those of tests/c/cuda_calls.c."""
    made = np.empty(int(np.prod(shape)), np.float32)
    for i in range(made.size):
        seed = (seed * 1664525 + 1013904223) % 2**32
        made[i] = np.float32(seed >> 8) / np.float32(2**23) - np.float32(1)
    return made.reshape(shape)


Program = tuple[Path, Path]  # a C program of an archive's sources, its folder of kernels


def compiled(archive: Path, folder: Path) -> Program:
    """To run with the stand-in driver."""
    kernels = folder / "kernels"
    shutil.copytree(archive, kernels)
    for source in kernels.glob("*.cu"):  # the stand-in's machine code is the path of a library
        if "sm_87" not in source.name:
            continue
        text = source.read_text()
        made = library(text[text.index('extern "C" __global__') :])
        for ending in (".cubin", ".ptx"):
            source.with_suffix(ending).write_bytes(str(made).encode() + b"\0")
    driver = built(Path(__file__).with_name("cuda_driver.cc").read_text(), "driver")
    shutil.copy(driver, folder / "libcuda.so.1")
    made = folder / "cuda_calls"
    sources = [*kernels.glob("*.c"), Path(__file__).parent / "c" / "cuda_calls.c"]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    command = ["gcc", *flags, "-o", str(made), *map(str, sources), "-ldl", "-lm"]
    subprocess.run(command, check=True)
    return made, kernels


@pytest.fixture(scope="module")
def program(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compiled(archive, tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def ragged_program(ragged_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compiled(ragged_archive, tmp_path_factory.mktemp("c"))


def run(program: Program, kind: str, rows: int, keys: int, out: Path) -> tuple[str, Any, Any]:
    """(what it printed, the result and the log-sum-exp, each flat)."""
    made, kernels = program
    command = [str(made), str(kernels), kind, str(rows), str(keys), str(out)]
    surroundings = {"LD_LIBRARY_PATH": str(made.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, (done.returncode, done.stdout)
    size = 2 * 4 * rows * 64
    found = np.fromfile(out, np.float32)
    return done.stdout, found[:size], found[size:]


@pytest.mark.parametrize("kind", ["dense", "unaligned"])
@pytest.mark.parametrize(("rows", "name"), [(40, "attention0_sm_87"), (1, "attention2_sm_87")])
def test_a_c_program_runs_the_kernel_that_fits(
    program: Program, rows: int, name: str, kind: str, tmp_path: Path
) -> None:
    said, found, _ = run(program, kind, rows, 70, tmp_path / "out")
    assert said == f"{name}\n"
    q, k, v = numbers(1, 2, 4, rows, 64), numbers(2, 2, 2, 70, 64), numbers(3, 2, 2, 70, 64)
    expected = reference.attention(q, k, v, causal="bottom_right")
    assert np.abs(found.reshape(expected.shape) - expected).max() < 1e-5


def test_a_c_program_gives_lengths(ragged_program: Program, tmp_path: Path) -> None:
    said, found, sums = run(ragged_program, "lengths", 9, 70, tmp_path / "out")
    assert said == "attention0_sm_87\n"
    q, k, v = numbers(1, 2, 4, 9, 64), numbers(2, 2, 2, 70, 64), numbers(3, 2, 2, 70, 64)
    lengths = np.array([70, 23])
    expected = reference.attended(q, k, v, causal="bottom_right", kv_lengths=lengths)
    assert np.abs(found.reshape(expected.out.shape) - expected.out).max() < 1e-5
    assert np.abs(sums.reshape(expected.lse.shape) - expected.lse).max() < 1e-5


def test_a_c_program_packs_sequences(ragged_program: Program, tmp_path: Path) -> None:
    _, found, sums = run(ragged_program, "packed", 9, 70, tmp_path / "out")
    q, k, v = numbers(1, 1, 4, 18, 64), numbers(2, 1, 2, 140, 64), numbers(3, 1, 2, 140, 64)
    found, sums = found.reshape(q.shape), sums.reshape(q.shape[:3])
    for rows, keys in ((slice(0, 9), slice(0, 70)), (slice(9, 16), slice(70, 135))):
        parts = q[:, :, rows], k[:, :, keys], v[:, :, keys]
        expected = reference.attended(*parts, causal="bottom_right")
        assert np.abs(found[:, :, rows] - expected.out).max() < 1e-5
        assert np.abs(sums[:, :, rows] - expected.lse).max() < 1e-5
    assert (found[:, :, 16:] == 0).all()  # as they were


def test_a_c_program_has_its_keys_in_pages(ragged_program: Program, tmp_path: Path) -> None:
    said, found, _ = run(ragged_program, "pages", 1, 70, tmp_path / "out")
    assert said == "attention1_sm_87\n"
    q, pages = numbers(1, 2, 4, 1, 64), (numbers(n, 10, 2, 16, 64) for n in (2, 3))
    table = np.arange(9, -1, -1).reshape(2, 5)
    k, v = (x[table].swapaxes(1, 2).reshape(2, 2, 80, 64) for x in pages)
    expected = reference.attention(q, k, v, kv_lengths=np.array([70, 23]))
    assert np.abs(found.reshape(expected.shape) - expected).max() < 1e-5


def test_a_c_program_says_what_is_missing(program: Program, tmp_path: Path) -> None:
    made, kernels = program

    def said(folder: Path, libraries: Path) -> str:
        command = [str(made), str(folder), "dense", "40", "70", str(tmp_path / "out")]
        surroundings = {"LD_LIBRARY_PATH": str(libraries)}
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
        assert done.returncode == 1
        return done.stdout

    assert "expected NVIDIA's driver" in said(kernels, tmp_path)
    assert f"expected the file {tmp_path}/attention0_sm_87.cubin" in said(tmp_path, made.parent)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="none"):
        export_cuda([], ["cuda-sm_87"], tmp_path)
    with pytest.raises(InvalidValueError, match="cuda-sm_52"):
        export_cuda([PREFILL], ["cuda-sm_52"], tmp_path)
    with pytest.raises(UnsupportedError, match="GPU"):
        chosen_kernels([PREFILL], ["cuda-sm_87"])
