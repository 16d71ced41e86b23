"""Calls of exported archives by a C program (tests/c/calls.c), natively or under qemu."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near, score_size
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.export.archive.calls import set_options, strides_of
from tvm_attention.export.archive.interface import ABI, CAUSAL, DTYPES, STATUSES, Problem
from tvm_attention.export.building import export_kernels
from tvm_attention.export.chosen import ExportedKernel, kernel_for
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.random_calls import random_inputs, random_options
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload, default_scale

ARCHITECTURE = platform.machine()
C_SOURCES = Path(__file__).parent / "c"
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
QEMU = "qemu-aarch64-static"
SYSROOT = "/usr/aarch64-linux-gnu"
ARRAYS = (
    "query", "key", "value", "out", "mask", "alibi_slopes", "sinks", "kv_lengths", "key_scale",
    "value_scale", "lse", "sequences", "page_table",
)  # fmt: skip

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or ARCHITECTURE != "x86_64",
    reason="needs a C compiler (cc) on x86-64",
)
needs_qemu = pytest.mark.skipif(
    shutil.which(QEMU) is None or shutil.which("aarch64-linux-gnu-gcc") is None,
    reason=f"needs {QEMU} and aarch64-linux-gnu-gcc: apt install qemu-user-static gcc-aarch64-linux-gnu",
)


class _Call(ctypes.Structure):
    _fields_ = [
        ("problem", Problem),
        ("target", ctypes.c_char * 64),
        ("bytes", ctypes.c_int64 * len(ARRAYS)),
        ("workspace", ctypes.c_int64),
    ]


class _Answer(ctypes.Structure):
    _fields_ = [
        ("status", ctypes.c_int32),
        ("guard", ctypes.c_int32),
        ("workspace", ctypes.c_int64),
        ("message", ctypes.c_char * 256),
        ("kernel", ctypes.c_char * 64),
    ]


@dataclass
class ExportedCall:
    """One call for the program: a problem and its arrays by name; ``out`` and ``lse`` start as NaN."""

    problem: Problem
    arrays: dict[str, NDArray[Any]]
    target: str = ""
    workspace: int = 0  # bytes passed beyond those needed


@dataclass(frozen=True)
class Outcome:
    status: str
    message: str
    kernel: str
    workspace: int
    out: NDArray[Any] | None
    lse: NDArray[Any] | None


@dataclass(frozen=True)
class Program:
    """A compiled C program and how to start it."""

    path: Path
    emulator: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.emulator, str(self.path), *arguments],
            env={**os.environ, **self.environment, **environment},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def on(self, core: str) -> Program:
        """The program under an emulator of a core, which faults on instructions that the core lacks."""
        return Program(self.path, (QEMU, "-cpu", core, "-L", SYSROOT))

    def run(self, calls: Sequence[ExportedCall], folder: Path, **environment: str) -> list[Outcome]:
        asked, answered = folder / "calls", folder / "answers"
        with asked.open("wb") as file:
            for call in calls:
                _write(call, file)
        done = self.start(str(asked), str(answered), **environment)
        assert done.returncode == 0, f"{self.emulator}: {done.returncode} {done.stderr[-3000:]}"
        with answered.open("rb") as file:
            outcomes = [_read(call, file) for call in calls]
            assert not file.read(1)
        return outcomes


def _write(call: ExportedCall, file: Any) -> None:
    record = _Call(call.problem, call.target.encode(), workspace=call.workspace)
    arrays = [call.arrays.get(name) for name in ARRAYS]
    record.bytes = tuple(-1 if x is None else x.nbytes for x in arrays)
    file.write(bytes(record))
    for array in arrays:
        if array is not None:
            file.write(array.tobytes(order="A"))


def _read(call: ExportedCall, file: Any) -> Outcome:
    answer = _Answer.from_buffer_copy(file.read(ctypes.sizeof(_Answer)))
    found: dict[str, NDArray[Any] | None] = {"out": None, "lse": None}
    for name in found:
        array = call.arrays.get(name)
        if array is not None:
            found[name] = np.frombuffer(file.read(array.nbytes), array.dtype).reshape(array.shape)
    assert not answer.guard, "a kernel wrote behind its workspace"
    return Outcome(
        STATUSES[answer.status], answer.message.decode(), answer.kernel.decode(), answer.workspace,
        found["out"], found["lse"],
    )  # fmt: skip


# The kinds of problem that tests/c/any_input.c draws.
ANY_INPUT = (
    AttentionWorkload(head_dim=64),
    AttentionWorkload(head_dim=64, query_length=1, query_heads=8, kv_heads=2),
    AttentionWorkload(
        head_dim=64, mask="bool", ragged=True, output="attention_and_lse", key_length=100, causal=True
    ),
    AttentionWorkload(head_dim=64, kv_dtype="int8", causal="bottom_right"),
    AttentionWorkload(head_dim=64, ragged=True, paged=True, causal="bottom_right"),
    AttentionWorkload(head_dim=64, window=(3, 3), softcap=True, alibi=True, sinks=True),
)  # fmt: skip


def any_input_kernels() -> list[ExportedKernel]:
    """Their kernels, for AVX2."""
    target = named_target("x86-64-v3")
    return [kernel_for(f"tvk_any{i}", w, target) for i, w in enumerate(ANY_INPUT)]


def build_archive(kernels: Mapping[str, Sequence[ExportedKernel]], folder: Path) -> Path:
    export_kernels(kernels, {a: find_toolchain(a) for a in kernels}, folder)
    return folder


def build_program(
    archive: Path, architecture: str, source: Path, target: Path, *flags: str
) -> Program:
    """A program linked with an archive's static library."""
    tools = find_toolchain(architecture)
    include = f"-I{archive / 'include'}"
    sources = (source, archive / architecture / "libtvm_attention.a")
    tools.link(target, sources, include, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", *flags,
               "-pthread", "-lm")  # fmt: skip
    return Program(target)


def call_of(
    case: AttentionWorkload, seed: int = 0, threads: int = 1, target: str = ""
) -> tuple[ExportedCall, dict[str, Any], dict[str, Any]]:
    """A random call of a workload, with its tensors and options by the reference's names."""
    q, k, v = random_inputs(case, seed)
    options = random_options(case, seed)
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    problem = Problem(
        ABI, DTYPES[case.dtype], q.shape[3], v.shape[3], q.shape[0], q.shape[1], k.shape[1],
        q.shape[2], k.shape[2], CAUSAL[case.causal], *(strides_of(x) for x in (q, k, v, out)),
        threads=threads,
    )  # fmt: skip
    arrays: dict[str, Any] = {"query": q, "key": k, "value": v, "out": out}
    arrays |= set_options(problem, q.shape, k.shape[2], **options)
    if "mask" in arrays:  # as it lies in memory: nothing is repeated there
        arrays["mask"] = mask = options["mask"]
        problem.mask_strides = tuple(
            s // mask.itemsize if n > 1 else 0
            for s, n in zip(mask.strides, mask.shape, strict=True)
        )
    if case.output == "attention_and_lse":
        problem.has_lse, arrays["lse"] = 1, np.full(q.shape[:3], np.nan, np.float32)
    return ExportedCall(problem, arrays, target), {"query": q, "key": k, "value": v}, options


def quantised(
    call: ExportedCall, tensors: dict[str, Any], seed: int = 0, *, per_token: bool = True
) -> None:
    """Replaces the keys and values of a call of one batch by int8 ones with scales."""
    rng = np.random.default_rng(seed)
    for name in ("key", "value"):
        _, heads, keys, _ = tensors[name].shape
        stored = rng.integers(-127, 128, tensors[name].shape, np.int8)
        scale = rng.uniform(0.005, 0.02, (1, heads, keys if per_token else 1, 1)).astype(np.float32)
        tensors[name] = stored * scale
        call.arrays |= {name: stored, f"{name}_scale": scale}
        # A batch of one: its stride is free.
        setattr(call.problem, f"{name}_scale", (0, keys, 1) if per_token else (0, 1, 0))
    call.problem.kv_dtype = DTYPES["int8"]


def assert_right(
    outcome: Outcome, case: AttentionWorkload, tensors: dict[str, Any], options: dict[str, Any]
) -> None:
    """That an outcome is what float64 gives, by the bounds of the library's own tests."""
    what = f"{case} {outcome.kernel}"
    assert outcome.status == "OK", f"{what}: {outcome.message}"
    expected = reference.attended(**tensors, **options)
    added = [options["mask"]] if case.mask not in (None, "bool") else []
    size = score_size(
        tensors["query"], tensors["key"], default_scale(case.head_dim),
        *(x.astype(np.float64) for x in added),
    )  # fmt: skip
    if case.alibi:
        size += case.query_length + case.key_length
    assert outcome.out is not None
    span = float(np.ptp(tensors["value"].astype(np.float64)))
    assert_near(outcome.out, expected.out, case.dtype, span=span, size=size, what=what)
    if case.output == "attention_and_lse":
        assert outcome.lse is not None
        assert_near(outcome.lse, expected.lse, "float32", span=1.0, size=size, what=what)
