"""From object files to the libraries of an architecture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tvm_attention.export.toolchain import WASM, Toolchain

__all__ = ["COMPILE", "MODULE", "SHARED", "STATIC", "WASM", "linked"]

SHARED, STATIC, MODULE = "libtvm_attention.so", "libtvm_attention.a", "tvm_attention.wasm"
# Without errno from sqrt the runtime needs no libm.
COMPILE = (
    "-std=gnu11", "-O2", "-fvisibility=hidden", "-fno-math-errno", "-ffunction-sections",
    "-fdata-sections", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
_LINK = (
    "-shared", "-pthread", "-s", f"-Wl,-soname,{SHARED}", "-Wl,-z,defs", "-Wl,--gc-sections",
    "-Wl,--as-needed", "-lm",
)  # fmt: skip
_EXPORTS = "{ global: tva_*; local: *; };\n"


def linked(tools: Toolchain, objects: Sequence[Path], header: Path, work: Path) -> dict[str, Path]:
    """The libraries by kind: "shared" and "static"; "module" for WebAssembly."""
    if tools.architecture == WASM:
        return {"module": _module(tools, objects, header, work)}
    exports, whole = work / "exports.map", work / "whole.o"
    exports.write_text(_EXPORTS)
    shared, static = work / SHARED, work / STATIC
    tools.link(shared, objects, f"-Wl,--version-script={exports}", *_LINK)
    # One object whose other symbols are local: a program may link TVM, or another archive, too.
    tools.link(whole, objects, "-r", "-nostdlib")
    tools.keep_global(whole, "tva_*")
    tools.archive(static, whole)
    return {"shared": shared, "static": static}


def _module(tools: Toolchain, objects: Sequence[Path], header: Path, work: Path) -> Path:
    """A module that exports the header's functions, and memory to put arrays into."""
    names = re.findall(r"^TVA_API .*?(tva_\w+)\(", header.read_text(), re.MULTILINE)
    exported = (f"-Wl,--export={name}" for name in (*names, "malloc", "free"))
    tools.link(
        work / MODULE, objects, "-mexec-model=reactor", "-Wl,--gc-sections", "-Wl,--strip-all", *exported
    )  # fmt: skip
    return work / MODULE
