"""What an exported archive holds for C programs: its library, header and examples."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from attention_cases import runnable_levels
from exported_calls import (
    ARRAYS,
    C_SOURCES,
    Program,
    assert_right,
    build_program,
    call_of,
    needs_compiler,
)

import tvm_attention.export
from tvm_attention.export.archive import Archive
from tvm_attention.export.archive.interface import ABI, STATUSES, Prepared, Problem
from tvm_attention.export.building import export
from tvm_attention.export.linking import SHARED, STATIC
from tvm_attention.operands import geometry
from tvm_attention.splits import splits
from tvm_attention.target import features_of
from tvm_attention.workload import AttentionWorkload

pytestmark = needs_compiler

PLAIN = AttentionWorkload(head_dim=64)
DECODE = AttentionWorkload(head_dim=64, query_length=1, query_heads=8, kv_heads=2)
EXAMPLE = Path(__file__).parent.parent / "examples" / "c"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tvm-attention export` writes for one workload class at two levels."""
    folder = tmp_path_factory.mktemp("small")
    export([PLAIN], ["x86-64-v2", runnable_levels()[-1]], folder)
    return folder


def test_what_c_is_promised(small: Path, tmp_path: Path) -> None:
    wrapped = ("malloc", "calloc", "realloc", "posix_memalign", "pthread_create")
    program = build_program(
        small, "x86_64", C_SOURCES / "behaviour.c", tmp_path / "behaviour",
        *(f"-Wl,--wrap={name}" for name in wrapped),
    )  # fmt: skip
    done = program.start()
    assert (done.returncode, done.stdout) == (0, "holds\n"), done.stderr


def test_it_is_small_and_needs_only_libc(small: Path) -> None:
    library = small / "x86_64" / SHARED
    assert library.stat().st_size <= 400 << 10
    listed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", listed.stdout))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    names = subprocess.run(
        ["nm", "-D", "--defined-only", "-j", library], capture_output=True, text=True, check=True
    )
    assert names.stdout.split()
    assert all(name.startswith("tva_") for name in names.stdout.split())
    inside = subprocess.run(
        ["nm", "-g", "--defined-only", "-j", small / "x86_64" / STATIC],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(inside.stdout.split()) - {"whole.o:"} == set(names.stdout.split())


@pytest.mark.parametrize(
    "language", [("-xc", "-std=c99"), ("-xc", "-std=c11"), ("-xc++", "-std=c++11")]
)
def test_the_header_is_plain_c(small: Path, language: tuple[str, ...], tmp_path: Path) -> None:
    if language[0] == "-xc++" and shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler (c++)")
    source = tmp_path / "includes"
    source.write_text(
        '#include "tvm_attention.h"\nint main(void) { return (int)tva_abi() - TVA_ABI; }\n'
    )
    flags = (*language, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only")
    subprocess.run(["cc", *flags, f"-I{small / 'include'}", str(source)], check=True)


def test_python_has_the_headers_layout(small: Path, tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    source.write_text(
        '#include <stdio.h>\n#include "tvm_attention.h"\nint main(void) { printf("%zu %zu %zu %d %zu %zu", '
        "sizeof(tva_problem), sizeof(tva_prepared), sizeof(tva_arrays), TVA_ABI, "
        "offsetof(tva_problem, kv_dtype), offsetof(tva_problem, target)); return 0; }\n"
    )
    done = build_program(small, "x86_64", source, tmp_path / "sizes").start()
    sizes = [ctypes.sizeof(Problem), ctypes.sizeof(Prepared), 8 * len(ARRAYS), ABI]
    offsets = [Problem.kv_dtype.offset, Problem.target.offset]
    assert [int(n) for n in done.stdout.split()] == [*sizes, *offsets]
    header = (small / "include" / "tvm_attention.h").read_text()
    said = re.findall(r"TVA_(\w+) = (\d+),?(?= +/\*|\n)", header[: header.index("} tva_status")])
    assert [name for name, _ in said] == list(STATUSES)


def test_decoding_is_split_as_in_python(tmp_path: Path) -> None:
    runtime = Path(tvm_attention.export.__file__).parent / "runtime"
    cases = [
        (batch, kv_heads, keys, threads, rows)
        for batch, kv_heads in ((1, 1), (1, 8), (3, 5))
        for keys in (1, 127, 300, 5000, 100_000)
        for threads in (1, 2, 3, 16)
        for rows in (1, 4, 8)
    ]
    lines = [
        f"p.batch={b}; p.kv_heads={h}; p.key_length={n}; p.threads={t}; "
        f'printf("%d ", splits(&p, {r}));'
        for b, h, n, t, r in cases
    ]
    source = tmp_path / "splits.c"
    source.write_text(
        '#include "arguments.c"\n#include <stdio.h>\nconst tva_kernel tvi_kernels[1]; const int '
        "tvi_number_of_kernels; const char tvi_built_version[1], tvi_built_architecture[1];\n"
        "int main(void) { tva_problem p = {0}; " + "\n".join(lines) + " return 0; }\n"
    )
    others = [str(f) for f in sorted(runtime.glob("*.c")) if f.name != "arguments.c"]
    target = tmp_path / "splits"
    command = ["cc", "-std=gnu11", f"-I{runtime}", str(source), *others, "-o", str(target), "-lm"]
    subprocess.run([*command, "-pthread"], check=True)
    found = [int(n) for n in Program(target).start().stdout.split()]
    expected = []
    for b, h, n, t, r in cases:
        w = replace(DECODE, query_heads=r, kv_heads=1)
        shapes = (b, h * r, 1, 64), (b, h, n, 64), (b, h, n, 64)
        expected.append(splits(w, geometry(*shapes, enable_gqa=True), t))
    assert found == expected


def test_openmp_is_a_launcher(small: Path, tmp_path: Path) -> None:
    source = tmp_path / "openmp.c"
    text = (EXAMPLE / "attention.c").read_text()
    assert text.count("problem.launch = tva_pool_launch;") == 1
    source.write_text(
        text.replace("problem.launch = tva_pool_launch;", "problem.launch = tva_openmp_launch;")
    )
    done = build_program(small, "x86_64", source, tmp_path / "openmp", "-fopenmp").start("2")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("qemu-x86_64-static") is None, reason="needs qemu-user-static")
def test_an_emulated_processor_gets_what_it_can_run(small: Path, tmp_path: Path) -> None:
    """By cpuid: no variable hides anything."""
    built = build_program(small, "x86_64", C_SOURCES / "calls.c", tmp_path / "program", "-static")
    program = Program(built.path, ("qemu-x86_64-static", "-cpu", "Nehalem"))
    case = replace(PLAIN, query_heads=2, kv_heads=2, query_length=9, key_length=70)
    call, tensors, options = call_of(case)
    wanted = runnable_levels()[-1]
    refused, _, _ = call_of(case, target=wanted)
    outcomes = program.run([call, refused], tmp_path)
    assert outcomes[0].kernel == "tvk1"
    assert_right(outcomes[0], case, tensors, options)
    lacking = sorted(features_of(wanted) - features_of("x86-64-v2"))
    assert outcomes[1].status == "PROCESSOR"
    assert ", ".join(lacking) in outcomes[1].message


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_example_by_cmake(small: Path, tmp_path: Path) -> None:
    for step in (
        ["-S", str(EXAMPLE), "-B", str(tmp_path), f"-Dtvm_attention_DIR={small / 'cmake'}"],
        ["--build", str(tmp_path)],
    ):
        done = subprocess.run(["cmake", *step], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in ("attention", "attention_shared", "decode"):
        found = Program(tmp_path / name).start("2")
        assert found.returncode == 0, found.stderr
        assert "largest error" in found.stdout


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_the_example_by_pkg_config(small: Path, tmp_path: Path) -> None:
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "tvm_attention"], capture_output=True, text=True, check=True,
        env={**os.environ, "PKG_CONFIG_PATH": str(small / "x86_64" / "pkgconfig")},
    ).stdout.split()  # fmt: skip
    target = tmp_path / "attention"
    subprocess.run(
        ["cc", str(EXAMPLE / "attention.c"), "-o", str(target), *flags, "-lm"], check=True
    )
    done = Program(target).start(LD_LIBRARY_PATH=str(small / "x86_64"))
    assert done.returncode == 0, done.stderr


def test_the_loader_is_the_archives_own(small: Path) -> None:
    loaded = Archive.open(small)
    assert platform.machine() == loaded.manifest["architecture"]
    assert [k["target"] for k in loaded.kernels()] == [runnable_levels()[-1], "x86-64-v2"]
