"""Experimental archives: RISC-V under qemu, WebAssembly under Node, against float64."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_calls import C_SOURCES, Program, assert_right, build_program, call_of

from tvm_attention import reference
from tvm_attention.errors import UnsupportedError
from tvm_attention.export.building import export
from tvm_attention.random_calls import random_inputs
from tvm_attention.workload import AttentionWorkload

PLAIN = AttentionWorkload(head_dim=64)
DECODE = AttentionWorkload(head_dim=64, query_length=1, query_heads=8, kv_heads=2)
HALF = AttentionWorkload(
    head_dim=40, value_dim=24, dtype="float16", causal=True, mask="bool", mask_dense=True
)
QEMU = "qemu-riscv64-static"
WASM_TOOLS = ("node", "clang", "wasm-ld")


def cases(w: AttentionWorkload) -> list[AttentionWorkload]:
    lengths = ((1, 97),) if w is DECODE else ((1, 1), (13, 97))
    heads = {"query_heads": 8, "kv_heads": 2} if w is DECODE else {"query_heads": 4, "kv_heads": 2}
    return [replace(w, query_length=rows, key_length=keys, **heads) for rows, keys in lengths]


@pytest.mark.skipif(
    shutil.which(QEMU) is None or shutil.which("riscv64-linux-gnu-gcc") is None,
    reason="needs qemu-riscv64-static and riscv64-linux-gnu-gcc",
)
def test_riscv(tmp_path: Path) -> None:
    """With vectors of 128 and 256 bits; a processor without V is refused, and what would be wrong."""
    with pytest.raises(UnsupportedError, match="none of float16 for riscv64"):
        export([HALF], ["riscv64"], tmp_path)
    workloads = (PLAIN, DECODE, replace(HALF, dtype="bfloat16"))
    export(workloads, ["riscv64"], tmp_path)
    built = build_program(
        tmp_path, "riscv64", C_SOURCES / "calls.c", tmp_path / "program", "-static"
    )
    made = [
        (case, *call_of(case, seed=n, threads=1 + n % 2))
        for n, case in enumerate(case for w in workloads for case in cases(w))
    ]
    for bits, some in ((128, made), (256, made[:3])):  # which the emulator takes its time for
        program = Program(built.path, (QEMU, "-cpu", f"rv64,v=true,vlen={bits}"))
        outcomes = program.run([call for _, call, _, _ in some], tmp_path)
        for (case, _, tensors, options), outcome in zip(some, outcomes, strict=True):
            assert_right(outcome, case, tensors, options)
    [outcome] = Program(built.path, (QEMU, "-cpu", "rv64")).run([made[0][1]], tmp_path)
    assert outcome.status == "PROCESSOR"
    assert "lacks (v)" in outcome.message


SCRIPT = """
import { readFile, writeFile } from "node:fs/promises";
const [folder, asked] = process.argv.slice(2);
const { Archive } = await import(`${folder}/wasm32/tvm_attention.mjs`);
const archive = await Archive.open(await readFile(`${folder}/wasm32/tvm_attention.wasm`));
const kinds = { float32: Float32Array, float16: Uint16Array, bool: Uint8Array, int32: Int32Array };
const array = async ({ file, dtype }) => {
  const bytes = await readFile(file);
  return new kinds[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};
const answers = [];
for (const { query, key, value, options, mask, out } of JSON.parse(await readFile(asked))) {
  try {
    const more = mask ? { mask: await array(mask) } : {};
    const inputs = [await array(query), await array(key), await array(value)];
    const found = archive.attention(...inputs, { ...options, ...more });
    await writeFile(out, found);
    answers.push("");
  } catch (error) {
    answers.push(error.message);
  }
}
console.log(JSON.stringify(answers));
"""


def stored(name: str, array: Any, folder: Path) -> dict[str, str]:
    path = folder / name
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"file": str(path), "dtype": array.dtype.name}


def asked_of(case: AttentionWorkload, n: int, folder: Path) -> tuple[dict[str, Any], Any, Any]:
    """A call for the script, what it should give, and where it puts that."""
    q, k, v = random_inputs(case, n)
    options = {
        "queryHeads": case.query_heads, "kvHeads": case.kv_heads, "queryLength": case.query_length,
        "keyLength": case.key_length, "headDim": case.head_dim, "valueDim": case.value_dim,
        "dtype": case.dtype, "causal": case.causal or "none",
    }  # fmt: skip
    request = {x: stored(f"{x}{n}", y, folder) for x, y in (("query", q), ("key", k), ("value", v))}
    given: dict[str, Any] = {"causal": case.causal}
    if case.mask is not None:
        given["mask"] = mask = np.random.default_rng(n).random(q.shape[2:3] + k.shape[2:3]) < 0.7
        request["mask"] = stored(f"mask{n}", mask, folder)
    out = folder / f"out{n}"
    return (
        request | {"options": options, "out": str(out)},
        reference.attended(q, k, v, **given).out,
        out,
    )


@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in WASM_TOOLS) or not Path("/usr/include/wasm32-wasi").exists(),
    reason="needs node, clang, wasm-ld and wasi-libc",
)  # fmt: skip
def test_webassembly(tmp_path: Path) -> None:
    workloads = (PLAIN, DECODE, HALF)
    export(workloads, ["wasm32"], tmp_path)
    assert (tmp_path / "wasm32" / "tvm_attention.wasm").stat().st_size <= 400 << 10
    all_cases = [case for w in workloads for case in cases(w)]
    made = [asked_of(case, n, tmp_path) for n, case in enumerate(all_cases)]
    wrong = dict(made[0][0], options=made[0][0]["options"] | {"headDim": 32, "valueDim": 32})
    short = dict(made[1][0], options=made[1][0]["options"] | {"keyLength": 98})
    (tmp_path / "asked").write_text(
        json.dumps([request for request, _, _ in made] + [wrong, short])
    )
    (tmp_path / "script.mjs").write_text(SCRIPT)
    done = subprocess.run(
        ["node", "script.mjs", str(tmp_path), str(tmp_path / "asked")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *answers, refused, too_short = json.loads(done.stdout)
    assert answers == [""] * len(made)
    for case, (_, expected, out) in zip(all_cases, made, strict=True):
        found = np.frombuffer(out.read_bytes(), case.dtype).reshape(expected.shape)
        bound = 4e-6 if case.dtype == "float32" else 2e-3
        assert np.abs(found - expected).max() < bound
    assert "the archive has no kernel for head_dim 32" in refused
    assert too_short == "key: expected 12544 elements, got 12416"
