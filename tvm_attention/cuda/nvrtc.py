"""NVRTC: CUDA source to machine code within the process, without a toolkit and a host compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from tvm_attention.cuda.driver import newest_cuda
from tvm_attention.cuda.machine_code import MachineCode, read_resources
from tvm_attention.cuda.toolkit import libraries
from tvm_attention.errors import KernelBuildError

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class Nvrtc:
    """The library, loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.major = major.value
        self.name = f"NVRTC {major.value}.{minor.value}"

    def machine_code(self, source: str, arch: str) -> MachineCode:
        """Machine code for a compute capability ("sm_87"). Raises KernelBuildError."""
        (cubin, ptx), log = self._compiled(source, arch, "nvrtcGetCUBIN", "nvrtcGetPTX")
        return MachineCode(arch, cubin, read_resources(log), _text(ptx))

    def ptx(self, source: str, arch: str) -> str:
        """Code that a driver compiles for the compute capability or any newer one."""
        (image,), _ = self._compiled(source, arch.replace("sm_", "compute_"), "nvrtcGetPTX")
        return _text(image)

    def _compiled(self, source: str, arch: str, *getters: str) -> tuple[list[bytes], str]:
        """(what the getters give, the compiler's log)."""
        nvrtc, program = self._library, ctypes.c_void_p()
        made = nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"attention.cu", 0, None, None
        )
        self._check(made)
        options = [f"--gpu-architecture={arch}", "--std=c++17"]
        if arch.startswith("sm_"):
            options.append("--ptxas-options=-v")
        try:
            given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            failed = nvrtc.nvrtcCompileProgram(program, len(options), given) != 0
            log = self._bytes(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if failed:
                raise KernelBuildError(f"{self.name} could not compile for {arch}: {log.strip()}")
            return [self._bytes(program, getter) for getter in getters], log
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: Any, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"{getter}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, getter)(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status != 0:
            message = self._library.nvrtcGetErrorString(status).decode()
            raise KernelBuildError(f"NVRTC: {message}")


def _text(image: bytes) -> str:
    return image.rstrip(b"\0").decode()


@cache
def nvrtc() -> Nvrtc | None:
    """NVRTC as the process, the system or a Python package has it, the first whose machine code this
    machine's driver takes, where there is a choice; None where none is there."""
    most, first = newest_cuda(), None
    for library in _libraries():
        made = Nvrtc(library)
        if most is None or made.major <= most[0]:
            return made
        first = first or made
    return first


def _libraries() -> Iterator[ctypes.CDLL]:
    for name in _NAMES:
        with suppress(OSError):
            yield ctypes.CDLL(name)
    for path in libraries("libnvrtc.so.*"):
        with suppress(OSError):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))  # NVRTC asks for it by name, on no path of the system's
            yield ctypes.CDLL(str(path))
