"""NVRTC: CUDA source to machine code within the process, without a toolkit and a host compiler."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any

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
        self.name = f"NVRTC {major.value}.{minor.value}"

    def cubin(self, source: str, arch: str) -> bytes:
        """Machine code for one compute capability ("sm_87"). Raises KernelBuildError."""
        return self._compiled(source, f"--gpu-architecture={arch}", "nvrtcGetCUBIN")

    def ptx(self, source: str, arch: str) -> str:
        """Code that a driver compiles for the compute capability or any newer one."""
        virtual = arch.replace("sm_", "compute_")
        image = self._compiled(source, f"--gpu-architecture={virtual}", "nvrtcGetPTX")
        return image.rstrip(b"\0").decode()

    def _compiled(self, source: str, architecture: str, getter: str) -> bytes:
        nvrtc, program = self._library, ctypes.c_void_p()
        text = source.encode()
        self._check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"attention.cu", 0, None, None))
        try:
            options = (ctypes.c_char_p * 2)(architecture.encode(), b"--std=c++17")
            if nvrtc.nvrtcCompileProgram(program, len(options), options) != 0:
                raise KernelBuildError(
                    f"{self.name} could not compile a kernel for {architecture}: {self._log(program)}"
                )
            return self._bytes(program, f"{getter}Size", getter)
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: Any) -> str:
        log = self._bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
        return log.rstrip(b"\0").decode(errors="replace").strip()

    def _bytes(self, program: Any, size_of: str, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, size_of)(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, getter)(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status != 0:
            message = self._library.nvrtcGetErrorString(status).decode()
            raise KernelBuildError(f"NVRTC: {message}")


@cache
def nvrtc() -> Nvrtc | None:
    """NVRTC as the process, the system or a Python package has it; None where none does."""
    for name in _NAMES:
        with suppress(OSError):
            return Nvrtc(ctypes.CDLL(name))
    for path in libraries("libnvrtc.so.*"):
        with suppress(OSError):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))  # NVRTC asks for it by name, on no path of the system's
            return Nvrtc(ctypes.CDLL(str(path)))
    return None
