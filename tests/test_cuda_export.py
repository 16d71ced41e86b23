"""Kernels exported for GPUs, launched as their manifest says and by nothing else of the library's."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import library

from tvm_attention import reference
from tvm_attention.__main__ import main
from tvm_attention.cuda.export import export_cuda
from tvm_attention.cuda.launching import grids
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.export.chosen import chosen_kernels
from tvm_attention.operands import geometry
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate
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


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    fields = [f"{n}={v}" for n, v in PREFILL.to_dict().items()]
    decode = [f"{n}={v}" for n, v in DECODE.to_dict().items()]
    command = ["export", "--targets", "cuda-sm_87,cuda-sm_75", "-o", str(folder)]
    assert main([*command, "--workload", ",".join(fields), "--workload", ",".join(decode)]) == 0
    return folder / "cuda"


def manifest_of(archive: Path) -> Any:
    return json.loads((archive / "manifest.json").read_text())


def test_every_kernel_has_its_files(archive: Path) -> None:
    kernels = manifest_of(archive)["kernels"]
    assert [k["target"] for k in kernels] == ["cuda-sm_87", "cuda-sm_75"] * 2
    for kernel in kernels:
        assert (archive / f"{kernel['name']}.cubin").read_bytes().startswith(b"\x7fELF")
        ptx = (archive / f"{kernel['name']}.ptx").read_text()
        assert f".target {kernel['target'].removeprefix('cuda-')}" in ptx
        for function in kernel["functions"]:
            assert f".entry {function['name']}" in ptx
            assert 0 < function["registers"] <= 255


@pytest.mark.parametrize(("index", "workload"), [(0, PREFILL), (2, DECODE)])
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


@pytest.mark.parametrize("index", [0, 2])
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


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="none"):
        export_cuda([], ["cuda-sm_87"], tmp_path)
    with pytest.raises(InvalidValueError, match="cuda-sm_52"):
        export_cuda([PREFILL], ["cuda-sm_52"], tmp_path)
    with pytest.raises(UnsupportedError, match="GPU"):
        chosen_kernels([PREFILL], ["cuda-sm_87"])
