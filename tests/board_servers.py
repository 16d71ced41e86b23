"""Trackers and boards for tests: programs of this package on this machine, or under an emulator of ARM."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tvm_attention
from tvm_attention import schedules, tuning_logs

HOST = "127.0.0.1"
START_SECONDS = 300.0  # a loaded machine; an idle one takes five


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


@dataclass
class Program:
    """A running ``tvm-attention`` command, whose output is in a file."""

    arguments: Sequence[str]
    python: Sequence[str] = (sys.executable,)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="tvm_attention_board")
        os.close(handle)
        self.output = Path(name)
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*self.python, "-m", "tvm_attention", *self.arguments],
                stdout=file, stderr=subprocess.STDOUT, env=dict(self.environment),
            )  # fmt: skip

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + START_SECONDS
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.05)

    def kill(self) -> None:
        """As a power cut would: the children go with it, by the system's doing."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.output.unlink(missing_ok=True)


@contextmanager
def tracker() -> Iterator[str]:
    """The address of a tracker."""
    port = free_port()
    running = Program(["tracker", "--host", HOST, "--port", str(port)])
    try:
        running.wait_for("tracking")
        yield f"{HOST}:{port}"
    finally:
        running.end()


def serve_arguments(key: str, port: int, *more: str) -> list[str]:
    return ["serve", "--host", HOST, "--port", str(port), "--key", key, *more]


def arm_environment(python: Path, folder: Path) -> dict[str, str]:
    """What an ARM board's Python finds this package by: it has its own of all others."""
    package = folder / "tvm_attention"
    package.mkdir(parents=True)
    parts = [*Path(tvm_attention.__path__[0]).iterdir()]
    parts += [Path(p.__path__[0]) for p in (schedules, tuning_logs)]
    for part in parts:
        link = package / part.name
        if not link.exists():
            link.symlink_to(part.resolve())
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TVM_ATTENTION"))}
    (folder / "home").mkdir()
    # Not from the working directory, where the package may lack what an editable install maps into it.
    found = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    return {**kept, **found, "HOME": str(folder / "home")}


def arm_python() -> Path | None:
    """The Python that .ci/arm-python made, if this machine has one."""
    place = os.environ.get("ARM_BOARD_PYTHON")
    found = None if place is None else Path(place)
    if found is None or not found.is_file() or shutil.which("qemu-aarch64-static") is None:
        return None
    return found
