"""The entry points of an archive under libFuzzer: python tests/fuzz_archive.py SECONDS [CORPUS].

Needs clang with its sanitizers and libFuzzer (Debian: apt install clang libclang-rt-14-dev). What goes in is
drawn by tests/c/any_input.c, which the tests run with pseudo-random numbers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from exported_calls import C_SOURCES, any_input_kernels

from tvm_attention.export.objects import write_object
from tvm_attention.export.table import table_source

WATCHED = ("-g", "-O1", "-fsanitize=address,undefined,fuzzer", "-fno-sanitize-recover=all")


def built(work: Path) -> Path:
    kernels = any_input_kernels()
    objects = [work / f"{kernel.name}.o" for kernel in kernels]
    for kernel, path in zip(kernels, objects, strict=True):
        write_object(kernel, path)
    table = work / "kernels.c"
    table.write_text(table_source(kernels, "fuzzed", "x86_64"))
    runtime = Path(str(files("tvm_attention.export"))) / "runtime"
    sources = (C_SOURCES / "any_input.c", table, *sorted(runtime.glob("*.c")))
    program = work / "fuzz"
    subprocess.run(
        ["clang", "-std=gnu11", "-DFUZZ", *WATCHED, f"-I{runtime}", *map(str, (*sources, *objects)),
         "-o", str(program), "-pthread", "-lm"],
        check=True,
    )  # fmt: skip
    return program


def main() -> int:
    seconds, corpus = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        limits = (
            f"-max_total_time={seconds}",
            "-max_len=400",
            "-print_final_stats=1",
            "-timeout=60",
        )
        return subprocess.run([str(program), *limits, *corpus], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
