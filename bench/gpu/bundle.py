"""Kernels built beforehand: the GPU's machine needs neither TVM nor a compiler, and loses no time by them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.place import Place, compiler_of
from tvm_attention.cuda.driver import LoadedModule
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.device_code import DeviceCode
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.errors import KernelBuildError
from tvm_attention.kernel_source import KernelSource
from tvm_attention.processes import process_pool
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import kernel_of, without_vectors
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

_BUILD_SECONDS = 300.0
_CANDIDATES = "candidates"  # the file of their names


@dataclass(frozen=True)
class Build:
    """A kernel to be built."""

    workload: AttentionWorkload
    candidate: Candidate
    arch: str

    @property
    def key(self) -> str:
        """Digest of what the kernel is made of."""
        parts = (
            CUDA_EXPRESSION_DIGEST,
            self.arch,
            str(self.candidate),
            kernel_of(self.workload).to_dict(),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class Bundle:
    """A folder of kernels, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def missing(self, builds: Iterable[Build]) -> list[Build]:
        """Those that are not there, each once."""
        return [b for b in {b.key: b for b in builds}.values() if not self._path(b).exists()]

    def build(
        self, builds: Iterable[Build], place: str, jobs: int, progress: Callable[[str], None]
    ) -> dict[str, str]:
        """Build what is missing in child processes; returns why kernels could not be built."""
        self.folder.mkdir(parents=True, exist_ok=True)
        todo, failures = self.missing(builds), {}
        pool = process_pool(max(1, min(jobs, len(todo))))
        try:
            futures = [
                (b, pool.schedule(build_one, (b, place), timeout=_BUILD_SECONDS)) for b in todo
            ]
            for n, (b, future) in enumerate(futures, 1):
                try:
                    self._write(b, future.result())
                    progress(f"{n} of {len(todo)}: {b.candidate}")
                except Exception as error:
                    failures[f"{b.candidate} {b.workload.to_dict()}"] = str(error)
                    progress(f"{n} of {len(todo)}: {b.candidate}: {error}")
        finally:
            pool.stop()
            pool.join()
        return failures

    def keep(self, candidates: Mapping[str, Sequence[Candidate]]) -> None:
        """Write down which candidates were built for workloads, by their names."""
        plain = {
            n: [[c.variant, dict(c.decisions)] for c in some] for n, some in candidates.items()
        }
        (self.folder / _CANDIDATES).write_text(json.dumps(plain), encoding="utf-8")

    def kept(self) -> dict[str, tuple[Candidate, ...]]:
        """What :meth:`keep` wrote; nothing where it did not."""
        try:
            plain = json.loads((self.folder / _CANDIDATES).read_text(encoding="utf-8"))
        except OSError:
            return {}
        return {n: tuple(Candidate.of(*one) for one in some) for n, some in plain.items()}

    def read(self, build: Build) -> tuple[DeviceCode, bytes]:
        """A kernel's code and cubin. Raises KernelBuildError for one that is not there."""
        try:
            values = json.loads(self._path(build).read_text(encoding="utf-8"))
        except OSError as error:
            raise KernelBuildError(
                f"{build.candidate}: expected a kernel that was built beforehand, got none ({error}); "
                f"run the suite's step prepare"
            ) from error
        return DeviceCode.from_dict(values["code"]), base64.b64decode(values["cubin"])

    def resources(self, build: Build) -> dict[str, Any]:
        """What the compiler said that the functions take, by name."""
        values = json.loads(self._path(build).read_text(encoding="utf-8"))
        found: dict[str, Any] = values["resources"]
        return found

    def _path(self, build: Build) -> Path:
        return self.folder / f"{build.key}.json"

    def _write(self, build: Build, text: str) -> None:
        unfinished = self.folder / f"{build.key}.{os.getpid()}"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self._path(build))


def build_one(build: Build, place: str) -> str:
    """A kernel as the text of its file."""
    from tvm_attention.cuda.building import device_code, whole_source

    code = device_code(
        kernel_of(build.workload), named_target(f"cuda-{build.arch}"), build.candidate
    )
    made = compiler_of(place).machine_code(whole_source(code), build.arch)
    resources = {name: asdict(r) for name, r in made.resources.items()}
    cubin = base64.b64encode(made.cubin).decode()
    launched = replace(code, source="").to_dict()  # the source runs nowhere
    return json.dumps({"code": launched, "cubin": cubin, "resources": resources})


def with_fallback(build: Build) -> list[Build]:
    """A kernel and the one that serves in its place where addresses do not suit its vectors."""
    other = without_vectors(build.candidate)
    return [build, *([] if other == build.candidate else [replace(build, candidate=other)])]


def kernel(
    bundle: Bundle, place: Place, workload: AttentionWorkload, candidate: Candidate
) -> DeviceKernel:
    """A kernel of the bundle, put on the GPU with its first call."""

    def load(chosen: Candidate, device: int) -> LoadedModule:
        code, cubin = bundle.read(Build(workload, chosen, place.arch))
        return place.driver.load(code, cubin, device)

    return DeviceKernel(workload, KernelSource(candidate, None, "bench", ()), load)
