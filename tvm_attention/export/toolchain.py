"""The C compiler and binutils of an architecture: for the small runtime part and for linking."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_attention.errors import InvalidValueError, KernelBuildError
from tvm_attention.isa import ARCHITECTURES as FOLDERS
from tvm_attention.isa import MACHINES

ARCHITECTURES = tuple(FOLDERS.values())
_PACKAGES = {
    "x86_64": "gcc-x86-64-linux-gnu",
    "aarch64": "gcc-aarch64-linux-gnu",
    "riscv64": "gcc-riscv64-linux-gnu",
    "wasm32": "clang lld wasi-libc libclang-rt-dev-wasm32",
}
WASM = "wasm32"
_WASM_FLAGS = ("--target=wasm32-wasi", "-msimd128")
_ELF_FLAGS = ("-fPIC", "-pthread")
_TIMEOUT = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Commands of one architecture, each a list of words."""

    architecture: str
    compiler: tuple[str, ...]
    objcopy: str
    archiver: str

    def compile(self, source: Path, target: Path, *flags: str) -> None:
        """Compile a C file to an object file. Raises KernelBuildError with the compiler's words."""
        own = () if self.architecture == WASM else _ELF_FLAGS
        self._run(*self.compiler, "-c", str(source), "-o", str(target), *flags, *own)

    def link(self, target: Path, objects: Sequence[Path], *flags: str) -> None:
        """Link objects by the compiler's driver."""
        self._run(*self.compiler, "-o", str(target), *map(str, objects), *flags)

    def keep_global(self, target: Path, pattern: str) -> None:
        """Make all symbols of an object file local but those of a pattern; drop what debuggers read."""
        names = ("--wildcard", f"--keep-global-symbol={pattern}", "--strip-debug")
        self._run(self.objcopy, *names, str(target))

    def archive(self, target: Path, member: Path) -> None:
        """A new static library of one object file."""
        target.unlink(missing_ok=True)
        self._run(self.archiver, "rcsD", str(target), str(member))

    def _run(self, *command: str) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelBuildError(
                f"{self.architecture}: {shlex.join(command[:1])}: {error}"
            ) from error
        if done.returncode:
            raise KernelBuildError(
                f"{self.architecture}: {command[0]} failed ({done.returncode}): {done.stderr.strip()}"
            )


def find_toolchain(architecture: str, compilers: Mapping[str, str] | None = None) -> Toolchain:
    """The toolchain of one of ARCHITECTURES: ``compilers`` names its C compiler, with flags if need be, else
    the usual places are searched.

    Raises KernelBuildError, saying what to install, where there is none.
    """
    given = (compilers or {}).get(architecture)
    if given is not None:
        words = tuple(shlex.split(given))
        if not words or shutil.which(words[0]) is None:
            raise KernelBuildError(
                f"{architecture}: expected a C compiler, got {given!r}, which is not there"
            )
        return _around(architecture, words)
    for candidate in _usual(architecture):
        if shutil.which(candidate[0]) is not None:
            return _around(architecture, candidate)
    raise KernelBuildError(
        f"{architecture}: expected a C compiler ({_usual(architecture)[-1][0]}) to link the archive, found "
        f"none; install one (Debian and Ubuntu: apt install {_PACKAGES[architecture]}) or name one by "
        f"--compiler {architecture}=COMMAND"
    )


def parsed_compilers(pairs: Sequence[str]) -> dict[str, str]:
    """{"aarch64": "clang --target=..."} from "aarch64=clang --target=...".

    Raises InvalidValueError for what is no such pair.
    """
    found = {}
    for pair in pairs:
        architecture, equals, command = pair.partition("=")
        if not equals or architecture not in ARCHITECTURES:
            raise InvalidValueError(
                f"compiler: expected ARCHITECTURE=COMMAND with one of {', '.join(ARCHITECTURES)}, got "
                f"{pair!r}"
            )
        found[architecture] = command
    return found


def _usual(architecture: str) -> list[tuple[str, ...]]:
    if architecture == WASM:
        return [("clang", *_WASM_FLAGS)]
    names = [f"{architecture}-linux-gnu-gcc", f"{architecture}-unknown-linux-gnu-gcc"]
    if platform.machine().lower() in _spellings(architecture):
        names = ["cc", "gcc", "clang", *names]
        if "CC" in os.environ and os.environ["CC"].strip():
            return [tuple(shlex.split(os.environ["CC"])), *((n,) for n in names)]
    return [(name,) for name in names]


def _spellings(architecture: str) -> tuple[str, ...]:
    return next((names for names in MACHINES.values() if architecture in names), ())


def _around(architecture: str, compiler: tuple[str, ...]) -> Toolchain:
    """The compiler with the binutils beside it, of which WebAssembly needs none."""
    if architecture == WASM:
        return Toolchain(architecture, compiler, "", "")
    name = Path(compiler[0]).name
    prefix = name.removesuffix("gcc") if name.endswith("-gcc") else ""
    tools = [_tool(prefix, tool) for tool in ("objcopy", "ar")]
    for tool, found in zip(("objcopy", "ar"), tools, strict=True):
        if found is None:
            raise KernelBuildError(
                f"{architecture}: expected {prefix}{tool} beside {compiler[0]}, found none; install binutils "
                f"for it (Debian and Ubuntu: apt install binutils)"
            )
    return Toolchain(architecture, compiler, str(tools[0]), str(tools[1]))


def _tool(prefix: str, name: str) -> str | None:
    return next(filter(None, (shutil.which(f"{prefix}{name}"), shutil.which(f"llvm-{name}"))), None)
