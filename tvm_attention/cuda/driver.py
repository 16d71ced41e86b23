"""The CUDA driver: functions put into a GPU's memory and started on a stream, by way of ctypes.

Contexts are the devices' primary ones, which the CUDA runtime uses, and torch with it: addresses and
streams of torch's are valid here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from tvm_attention.device_code import DeviceCode, DeviceFunction
from tvm_attention.errors import KernelBuildError, UnsupportedError

if TYPE_CHECKING:  # boards that only load archives lack what it needs
    from tvm_attention.cuda.parameters import Parameters

_NAMES = ("libcuda.so.1", "libcuda.so")
# CUdevice_attribute and CUfunction_attribute, from cuda.h.
_MULTIPROCESSORS, _L2_BYTES = 16, 38
_MAJOR, _MINOR = 75, 76
_POOLS = 115
_DYNAMIC_SHARED_BYTES = 8
_MOST_BLOCKS = (1 << 31) - 1  # of a grid's first axis
_STATIC_SHARED_BYTES = 48 << 10  # up to which a launch need not ask beforehand


class Driver:
    """libcuda, initialised."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("cuInit", 0)
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises KernelBuildError, naming it, unless it succeeds."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            message = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(message))
            text = (message.value or b"unknown").decode()
            raise KernelBuildError(f"CUDA driver: {name} failed with error {status}: {text}")

    def attribute(self, device: int, number: int) -> int:
        value, handle = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, handle)
        return value.value

    def arch(self, device: int) -> str:
        """The compute capability of a device, "sm_87"."""
        return f"sm_{self.attribute(device, _MAJOR)}{self.attribute(device, _MINOR)}"

    def model(self, device: int) -> str:
        """The name of a device."""
        text, handle = ctypes.create_string_buffer(256), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDeviceGetName", text, len(text), handle)
        return text.value.decode(errors="replace")

    def version(self) -> tuple[int, int]:
        """The newest CUDA that the driver serves, (13, 0)."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return _version(number.value)

    def has_pools(self, device: int) -> bool:
        """Whether memory can be taken and given back in the order of a stream's work."""
        return self.attribute(device, _POOLS) == 1

    def captures(self, device: int, stream: int) -> bool:
        """Whether what a stream is asked for is written into a graph, to be done later and again."""
        status = ctypes.c_int()
        with self.current(device):
            self.call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value != 0

    def l2_bytes(self, device: int) -> int:
        """The second cache of a device."""
        return self.attribute(device, _L2_BYTES)

    def free_bytes(self, device: int) -> int:
        """Memory of a device that nobody has taken."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.current(device):
            self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Make a device's context that of this thread, and what was before afterwards."""
        if device not in self._contexts:
            context, handle = ctypes.c_void_p(), ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(handle), device)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._contexts[device] = context
        self.call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def event(self) -> ctypes.c_void_p:
        """A new event of the current context, which knows when it came."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def load(self, code: DeviceCode, image: bytes, device: int) -> LoadedModule:
        """Put machine code into a device's memory."""
        return LoadedModule(self, code, image, device)


class LoadedModule:
    """Functions in a GPU's memory, for as long as the process lives."""

    def __init__(self, driver: Driver, code: DeviceCode, image: bytes, device: int) -> None:
        self.code, self._driver, self._device = code, driver, device
        self.multiprocessors = driver.attribute(device, _MULTIPROCESSORS)
        self._functions: dict[str, ctypes.c_void_p] = {}
        module = ctypes.c_void_p()
        with driver.current(device):
            try:
                driver.call("cuModuleLoadData", ctypes.byref(module), image)
            except KernelBuildError as error:
                major, minor = driver.version()
                raise KernelBuildError(
                    f"{error}; the driver is for CUDA {major}.{minor}, and takes no machine code of a "
                    f"compiler of a newer major version, nor of another compute capability"
                ) from error
            for function in code.functions:
                self._functions[function.name] = self._function(module, function)

    def _function(self, module: ctypes.c_void_p, function: DeviceFunction) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        name = function.name.encode()
        self._driver.call("cuModuleGetFunction", ctypes.byref(handle), module, name)
        if function.shared_bytes > _STATIC_SHARED_BYTES:
            attribute, size = _DYNAMIC_SHARED_BYTES, function.shared_bytes
            self._driver.call("cuFuncSetAttribute", handle, attribute, size)
        return handle

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        if blocks > _MOST_BLOCKS:
            raise UnsupportedError(
                f"call: expected at most {_MOST_BLOCKS} blocks of threads, got {blocks}; split the batch"
            )
        x, y = function.threads
        handle, shared = self._functions[function.name], function.shared_bytes
        with self._driver.current(self._device):
            self._driver.call(
                "cuLaunchKernel", handle, blocks, 1, 1, x, y, 1, shared, ctypes.c_void_p(stream),
                parameters.array, None,
            )  # fmt: skip


@cache
def driver() -> Driver:
    """The driver of this machine. Raises UnsupportedError where there is none."""
    library = _library()
    if library is None:
        raise UnsupportedError(
            f"CUDA: expected NVIDIA's driver ({_NAMES[0]}) to run kernels on a GPU, got none; install it, "
            f"or pass arrays of the processor"
        )
    return Driver(library)


def newest_cuda() -> tuple[int, int] | None:
    """The newest CUDA that this machine's driver serves; None without one. Needs no GPU, and begins nothing
    that a process which is forked could not go on with."""
    library, number = _library(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return _version(number.value)


def _library() -> Any:
    for name in _NAMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _version(number: int) -> tuple[int, int]:
    return number // 1000, number % 1000 // 10
