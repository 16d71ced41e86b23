"""Cross-compiled ARM kernels against float64, run by a C program under qemu, which faults on every
instruction that the core it plays lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from attention_variants import MATRIX, PREFILL, check_legal, decode_candidate, prefill_candidate
from exported_calls import (
    C_SOURCES,
    Program,
    assert_right,
    build_archive,
    build_program,
    call_of,
    needs_qemu,
)
from hot_loops import hot_loops

from tvm_attention.export.building import export
from tvm_attention.export.chosen import ExportedKernel, kernel_for
from tvm_attention.export.linking import SHARED
from tvm_attention.export.objects import write_object
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

pytestmark = needs_qemu

# Emulated cores and the targets whose kernels they must be able to run.
CORES = {
    "cortex-a53": ("cortex_a53",),
    "cortex-a72": ("cortex_a72", "cortex_a53"),
    "cortex-a76": ("cortex_a76", "cortex_a72"),
    "neoverse-n1": ("neoverse_n1",),
    "max": ("neoverse_n2", "neoverse_n1"),
}
LENGTHS = ((1, 1), (3, 40), (13, 97), (25, 211))
DECODE_LENGTHS = ((1, 1), (1, 97), (2, 300))
# Default schedules: dtypes, masks, causal, options, head dimensions on and off every vector.
DEFAULTS = (
    AttentionWorkload(head_dim=64),
    AttentionWorkload(head_dim=64, causal=True, dtype="float16"),
    AttentionWorkload(head_dim=80, value_dim=40, dtype="bfloat16", mask="bool", mask_dense=True),
    AttentionWorkload(head_dim=7, value_dim=5, mask="float32", key_length=2000),
    AttentionWorkload(head_dim=128, causal="bottom_right", window=(30, -1), softcap=True, key_length=128),
    AttentionWorkload(head_dim=64, alibi=True, sinks=True, ragged=True, output="attention_and_lse"),
    AttentionWorkload(head_dim=64, query_length=1, kv_heads=2, dtype="float16"),
    AttentionWorkload(head_dim=128, query_length=1, kv_heads=8, ragged=True),
)  # fmt: skip


def variant_kernels() -> list[ExportedKernel]:
    """Every variant with small tiles; value dimensions, causality and dtypes keep them apart."""
    target, kernels = named_target("cortex-a53"), []
    dtypes = ("float32", "bfloat16", "float16")
    for n, name in enumerate(x for x in PREFILL if x not in MATRIX):
        for causal in (None, "top_left"):
            dtype = dtypes[(n + bool(causal)) % 3]
            w = AttentionWorkload(head_dim=48, value_dim=64 - 8 * n, dtype=dtype, causal=causal)
            kernels.append((w, prefill_candidate(name, 4, 64 - 8 * n, dtype)))
    for dtype in dtypes:
        w = AttentionWorkload(
            head_dim=48, value_dim=80, dtype=dtype, query_length=2, query_heads=4, kv_heads=2
        )
        kernels.append((w, decode_candidate(4)))
    for w, candidate in kernels:
        check_legal(w, target, candidate)
    return [_kernel(i, w, candidate) for i, (w, candidate) in enumerate(kernels)]


def _kernel(i: int, w: AttentionWorkload, candidate: Candidate) -> ExportedKernel:
    source = KernelSource(candidate, None, "chosen by a test", ())
    return ExportedKernel(f"tvk_v{i}", w, named_target("cortex-a53"), source)


VARIANTS = variant_kernels()


def default_kernels() -> list[ExportedKernel]:
    targets = sorted({t for targets in CORES.values() for t in targets})
    kernels = [
        kernel_for(f"tvk_d{i}_{target}", w, named_target(target))
        for i, w in enumerate(DEFAULTS)
        for n, target in enumerate(targets)
        # All of them for one target without and one with half precision, some for each other.
        if target in ("cortex_a53", "neoverse_n2") or (i + n) % 4 == 0
    ]
    return sorted(kernels, key=lambda k: -len(k.target.features))  # as an export has them


DEFAULT_KERNELS = default_kernels()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("arm")
    build_archive({"aarch64": [*DEFAULT_KERNELS, *VARIANTS]}, folder)
    return build_program(folder, "aarch64", C_SOURCES / "calls.c", folder / "calls", "-static")


def cases(w: AttentionWorkload) -> list[AttentionWorkload]:
    decodes = w.length_class.startswith("decode")
    heads = (
        {"query_heads": 2 * w.group, "kv_heads": 2}
        if decodes
        else {"query_heads": 4, "kv_heads": 2}
    )
    lengths = DECODE_LENGTHS if decodes else LENGTHS
    most = max(1, w.query_length) if decodes else 1 << 30
    return [
        replace(w, batch=1 + n % 2, query_length=min(rows, most), key_length=keys, **heads)
        for n, (rows, keys) in enumerate(lengths)
    ]


def check(program: Program, kernels: list[ExportedKernel], folder: Path) -> None:
    made = [
        (kernel, case, call_of(case, seed=n, threads=1 + n % 3, target=kernel.target.name))
        for kernel in kernels
        for n, case in enumerate(cases(kernel.workload))
    ]
    outcomes = program.run([call for _, _, (call, _, _) in made], folder)
    for (kernel, case, (_, tensors, options)), outcome in zip(made, outcomes, strict=True):
        assert outcome.kernel in (kernel.name, ""), outcome.message
        assert_right(outcome, case, tensors, options)


@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a76"])
def test_every_variant(program: Program, core: str, tmp_path: Path) -> None:
    check(program.on(core), VARIANTS, tmp_path)


@pytest.mark.parametrize("core", CORES)
def test_default_schedules(program: Program, core: str, tmp_path: Path) -> None:
    kernels = [k for k in DEFAULT_KERNELS if k.target.name in CORES[core]]
    assert len(kernels) >= 2
    check(program.on(core), kernels, tmp_path)


PLAIN = AttentionWorkload(head_dim=64)


@pytest.mark.parametrize(
    ("core", "target"),
    [("cortex-a53", "cortex_a53"), ("cortex-a72", "cortex_a53"), ("max", "neoverse_n2")],
)
def test_the_kernel_that_needs_most_of_what_there_is_is_taken(
    program: Program, core: str, target: str, tmp_path: Path
) -> None:
    case = replace(PLAIN, query_length=9, key_length=70, query_heads=2, kv_heads=2)
    call, tensors, options = call_of(case)
    [outcome] = program.on(core).run([call], tmp_path)
    [expected] = [
        k.name for k in DEFAULT_KERNELS if k.workload == PLAIN and k.target.name == target
    ]
    assert outcome.kernel == expected
    assert_right(outcome, case, tensors, options)


def test_a_kernel_is_refused_where_features_are_missing(program: Program, tmp_path: Path) -> None:
    case = replace(PLAIN, query_length=9, key_length=70, query_heads=2, kv_heads=2)
    call, _, _ = call_of(case, target="neoverse_n2")
    for core, lacking in (("cortex-a72", "bf16"), ("neoverse-n1", "sve2")):
        [outcome] = program.on(core).run([call], tmp_path)
        assert outcome.status == "PROCESSOR"
        assert lacking in outcome.message
        assert "export for a target without them" in outcome.message


def test_a_static_program_is_small(tmp_path: Path) -> None:
    """The example with kernels for two cores."""
    export([PLAIN], ["cortex-a72", "cortex-a53"], tmp_path)
    example = Path(__file__).parent.parent / "examples" / "c" / "attention.c"
    program = build_program(tmp_path, "aarch64", example, tmp_path / "example", "-static", "-s")
    assert program.path.stat().st_size <= 1 << 20
    assert (tmp_path / "aarch64" / SHARED).stat().st_size <= 400 << 10
    done = program.on("cortex-a72").start("2")
    assert done.returncode == 0, done.stderr
    assert "kernel tvk0" in done.stdout
    shared = tmp_path / "shared"
    find_toolchain("aarch64").link(
        shared, [example, tmp_path / "aarch64" / SHARED], f"-I{tmp_path / 'include'}", "-std=c99", "-lm",
        f"-Wl,-rpath,{tmp_path / 'aarch64'}",
    )  # fmt: skip
    done = Program(shared).on("cortex-a53").start()
    assert done.returncode == 0, done.stderr
    assert "kernel tvk1" in done.stdout


@pytest.mark.parametrize("options", [{}, {"causal": True, "key_length": 2048, "head_dim": 128}])
def test_the_hot_loops_are_multiply_adds(options: dict[str, object], tmp_path: Path) -> None:
    """Of the full tiles of both products, loads counted: 18 accumulators by 4 steps, and 24 by 1."""
    w = AttentionWorkload(**{"head_dim": 64, **options})  # type: ignore[arg-type]
    write_object(kernel_for("tvk", w, named_target("cortex-a72")), tmp_path / "kernel.o")
    loops = hot_loops(tmp_path / "kernel.o")
    scores = [loop for loop in loops if loop.fmla == 72]
    values = [loop for loop in loops if loop.fmla == 24 and loop.loads < 8]
    assert len(scores) == 1
    assert len(values) == 1
    for loop in (*scores, *values):
        assert loop.fmla >= 0.85 * loop.vector
        assert loop.fmla == loop.vector - loop.loads
