"""Loads an exported archive with NumPy and ctypes alone; a copy of this file lies beside every archive.

archive = Archive.open("DIR")                  # the folder that `tvm-attention export -o DIR` wrote
out = archive.attention(query, key, value)     # (batch, heads, rows, dim) arrays
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1  # of the manifest
ABI = 1  # of the C interface: TVA_ABI
LIBRARY = "tvm_attention"
STATUSES = (
    "OK", "NULL_POINTER", "BAD_VALUE", "BAD_STRIDE", "UNSUPPORTED", "PROCESSOR", "WORKSPACE",
    "NOT_PREPARED", "FAILED", "NO_MEMORY",
)  # fmt: skip
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "bool": 4, "int8": 5}
CAUSAL = {None: 0, "top_left": 1, "bottom_right": 2}
_MOST_MANIFEST = 16 << 20  # bytes
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


class ArchiveError(RuntimeError):
    """An archive that cannot be used, or a call that it refused; ``status`` names which of STATUSES."""

    def __init__(self, message: str, status: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Strides(ctypes.Structure):
    """tva_strides."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row")]


_INT, _FLOAT, _ADDRESS = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


class Problem(ctypes.Structure):
    """tva_problem."""

    _fields_ = [
        ("abi", ctypes.c_uint32),
        *(
            (n, _INT)
            for n in ("dtype", "head_dim", "value_dim", "batch", "query_heads", "kv_heads")
        ),
        *((n, _INT) for n in ("query_length", "key_length", "causal")),
        *((n, Strides) for n in ("query", "key", "value", "out")),
        *((n, _FLOAT) for n in ("scale", "softcap")),
        *((n, _INT) for n in ("windowed", "window_left", "window_right", "mask_dtype")),
        ("mask_strides", ctypes.c_int64 * 4),
        *((n, _INT) for n in ("has_alibi", "has_sinks", "has_kv_lengths", "has_lse")),
        ("lse", Strides),
        ("kv_dtype", _INT),
        *((n, Strides) for n in ("key_scale", "value_scale")),
        ("threads", _INT),
        *((n, _ADDRESS) for n in ("launch", "launch_user", "target")),
    ]


class Prepared(ctypes.Structure):
    """tva_prepared."""

    _fields_ = [("opaque", ctypes.c_uint64 * 224)]


class Arrays(ctypes.Structure):
    """tva_arrays."""

    _fields_ = [
        (name, _ADDRESS)
        for name in (
            "query", "key", "value", "out", "mask", "alibi_slopes", "sinks", "kv_lengths", "key_scale",
            "value_scale", "lse",
        )
    ]  # fmt: skip


class Archive:
    """The shared library of one architecture's archive and what its manifest says."""

    def __init__(self, manifest: dict[str, Any], path: Path) -> None:
        self.manifest = manifest
        try:
            self.library = ctypes.CDLL(str(path))
            self._declare()
        except (OSError, AttributeError) as error:
            raise ArchiveError(f"{path}: the system cannot load it: {error}") from error
        if self.library.tva_abi() != ABI:
            raise ArchiveError(f"{path}: expected ABI {ABI}, got {self.library.tva_abi()}")
        self._pools: dict[int, int] = {}

    @classmethod
    def open(cls, folder: str | Path) -> Archive:
        """The archive of this machine's architecture in a folder that the export wrote, or of that
        architecture's own folder.

        Raises ArchiveError for a missing, truncated or foreign archive, a manifest of another schema and
        one of another architecture, with the reason.
        """
        machine = platform.machine().lower()
        architecture = _ARCHITECTURES.get(machine, machine)
        folder = Path(folder)
        place = folder if (folder / "manifest.json").is_file() else folder / architecture
        if not (place / "manifest.json").is_file():
            there = sorted(p.parent.name for p in folder.glob("*/manifest.json"))
            has = f"has {', '.join(there)}" if there else "holds no archive"
            raise ArchiveError(f"{folder}: expected an archive for {architecture}, it {has}")
        manifest = read_manifest(place / "manifest.json")
        if manifest["architecture"] != architecture:
            raise ArchiveError(
                f"{place}: expected an archive for {architecture}, got one for "
                f"{manifest['architecture'][:40]!r}; export for a target of this machine"
            )
        return cls(manifest, checked_file(place, manifest, "shared"))

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        threads: int = 1,
        target: str | None = None,
        return_lse: bool = False,
        **options: Any,
    ) -> Any:
        """softmax(scale * query key^T) value for (batch, heads, rows, dim) arrays of one dtype; with
        ``return_lse`` a tuple of it and the log-sum-exp. ``options`` are causal, window, softcap, scale,
        mask, alibi_slopes, sinks and kv_lengths, as tvm_attention.attention has them. ``target`` asks for
        one target's kernel by name.

        Raises ArchiveError with the archive's own message for what it refuses.
        """
        inputs = _inputs(query, key, value)
        q, k, v = inputs
        out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
        arrays = dict(zip(("query", "key", "value", "out"), (*inputs, out), strict=True))
        problem = Problem(
            ABI, DTYPES[q.dtype.name], q.shape[3], v.shape[3], q.shape[0], q.shape[1], k.shape[1],
            q.shape[2], k.shape[2], 0, *(_strides(x) for x in (q, k, v, out)),
        )  # fmt: skip
        arrays |= _set_options(problem, q.shape, k.shape[2], **options)
        if return_lse:
            problem.has_lse, arrays["lse"] = 1, np.empty(q.shape[:3], np.float32)
        self._set_threads(problem, threads)
        name = None if target is None else ctypes.create_string_buffer(target.encode())
        problem.target = None if name is None else ctypes.addressof(name)
        self._run(problem, Arrays(**{n: x.ctypes.data for n, x in arrays.items()}))
        return (out, arrays["lse"]) if return_lse else out

    def kernels(self) -> list[dict[str, Any]]:
        """The kernels of the manifest."""
        return list(self.manifest["kernels"])

    def close(self) -> None:
        """Ends the threads that calls have started."""
        for pool in self._pools.values():
            self.library.tva_pool_close(pool)
        self._pools.clear()

    def _declare(self) -> None:
        lib, size = self.library, ctypes.c_size_t
        lib.tva_abi.restype = ctypes.c_uint32
        lib.tva_last_error.restype = ctypes.c_char_p
        lib.tva_prepare.argtypes = (ctypes.POINTER(Problem), ctypes.POINTER(Prepared))
        lib.tva_workspace_bytes.argtypes = (ctypes.POINTER(Prepared),)
        lib.tva_workspace_bytes.restype = size
        lib.tva_kernel_name.argtypes = (ctypes.POINTER(Prepared),)
        lib.tva_kernel_name.restype = ctypes.c_char_p
        lib.tva_run.argtypes = (ctypes.POINTER(Prepared), ctypes.POINTER(Arrays), _ADDRESS, size)
        lib.tva_pool_open.argtypes = (ctypes.c_int, ctypes.POINTER(_ADDRESS))
        lib.tva_pool_close.argtypes = (_ADDRESS,)

    def _set_threads(self, problem: Problem, threads: int) -> None:
        problem.threads = threads
        if threads < 2:
            return
        if threads not in self._pools:
            pool = _ADDRESS()
            self._check(self.library.tva_pool_open(threads, ctypes.byref(pool)))
            self._pools[threads] = pool.value or 0
        problem.launch = ctypes.cast(self.library.tva_pool_launch, _ADDRESS).value
        problem.launch_user = self._pools[threads]

    def _run(self, problem: Problem, arrays: Arrays) -> None:
        prepared = Prepared()
        self._check(self.library.tva_prepare(problem, prepared))
        size = self.library.tva_workspace_bytes(prepared)
        workspace = np.empty(max(size, 1), np.uint8)
        self._check(self.library.tva_run(prepared, arrays, workspace.ctypes.data, size))

    def _check(self, status: int) -> None:
        if status:
            name = STATUSES[status] if status < len(STATUSES) else str(status)
            raise ArchiveError(self.library.tva_last_error().decode(), name)


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest, checked. Raises ArchiveError for one that is damaged, foreign or of another schema."""
    try:
        if path.stat().st_size > _MOST_MANIFEST:
            raise ArchiveError(f"{path}: expected a manifest of at most {_MOST_MANIFEST} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{path}: expected a manifest, got what cannot be read: {error}"
        ) from error
    if not isinstance(found, dict) or found.get("library") != LIBRARY:
        raise ArchiveError(f"{path}: expected a manifest of {LIBRARY}, got something else")
    if found.get("schema") != SCHEMA:
        raise ArchiveError(
            f"{path}: expected schema {SCHEMA}, got {reprlib.repr(found.get('schema'))}; load it with "
            f"the loader that lies beside it"
        )
    kinds = {"architecture": str, "version": str, "abi": int, "files": dict, "kernels": list}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            got = reprlib.repr(found.get(name))
            raise ArchiveError(f"{path}: expected {name} to be a {kind.__name__}, got {got}")
    if found["abi"] != ABI:
        raise ArchiveError(f"{path}: expected ABI {ABI}, got {reprlib.repr(found['abi'])}")
    return found


def checked_file(folder: Path, manifest: dict[str, Any], kind: str) -> Path:
    """The "shared" or "static" library, if it is what the manifest says. Raises ArchiveError if not."""
    said = manifest["files"].get(kind)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        raise ArchiveError(f"{folder}: expected a {kind} library in the manifest, found none")
    name: str = said["name"]
    if Path(name).name != name or not name.isprintable() or len(name) > 255:
        raise ArchiveError(f"{folder}: expected a file of this folder, got {reprlib.repr(name)}")
    path: Path = folder / name
    try:
        # Before it is read: what is no file, or far too large, would not end.
        size = path.stat().st_size if path.is_file() else None
        content = path.read_bytes() if size == said.get("bytes") else b""
    except OSError as error:
        raise ArchiveError(f"{path}: expected the library of the manifest: {error}") from error
    if size is None:
        raise ArchiveError(f"{path}: expected the library of the manifest, which is not there")
    if size != said.get("bytes"):
        expected = reprlib.repr(said.get("bytes"))
        raise ArchiveError(f"{path}: expected {expected} bytes, got {size}: truncated?")
    if hashlib.sha256(content).hexdigest() != said.get("sha256"):
        raise ArchiveError(
            f"{path}: its content is not what the manifest was written for; export anew"
        )
    return path


def _inputs(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """The three as arrays whose last axis is dense."""
    q, k, v = (_rows_dense(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
    names = [x.dtype.name for x in (q, k, v)]
    if len(set(names)) > 1 or names[0] not in ("float32", "float16", "bfloat16"):
        raise ArchiveError(f"dtype: expected float32, float16 or bfloat16 for all, got {names}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArchiveError(f"shapes: expected fitting ones, got {q.shape}, {k.shape} and {v.shape}")
    return q, k, v


def _rows_dense(name: str, array: Any) -> Any:
    array = np.asarray(array)
    if array.ndim != 4:
        raise ArchiveError(f"{name}: expected (batch, heads, rows, dim), got shape {array.shape}")
    dense = array.shape[3] <= 1 or array.strides[3] == array.itemsize
    aligned = all(s % array.itemsize == 0 for s in array.strides) and array.flags.aligned
    return array if dense and aligned else np.ascontiguousarray(array)


def _strides(array: Any) -> Strides:
    return Strides(*(s // array.itemsize for s in array.strides[:3]))


def _set_options(
    problem: Problem,
    query_shape: tuple[int, ...],
    keys: int,
    *,
    causal: str | None = None,
    scale: float = 0.0,
    softcap: float = 0.0,
    window: tuple[int, int] | None = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
) -> dict[str, Any]:
    """Puts the options into a problem; the arrays among them, as the archive reads them."""
    if causal not in CAUSAL:
        raise ArchiveError(f"causal: expected one of {list(CAUSAL)}, got {causal!r}")
    batch, heads, rows, _ = query_shape
    problem.causal, problem.scale, problem.softcap = CAUSAL[causal], scale, softcap
    if window is not None:
        problem.windowed, problem.window_left, problem.window_right = 1, *window
    arrays: dict[str, Any] = {}
    if mask is not None:
        arrays["mask"] = mask = np.broadcast_to(np.asarray(mask), (batch, heads, rows, keys))
        problem.mask_dtype = DTYPES.get(mask.dtype.name, -1)
        problem.mask_strides = tuple(s // mask.itemsize for s in mask.strides)
    for name, given, dtype, shape in (
        ("alibi_slopes", alibi_slopes, np.float32, (batch, heads)),
        ("sinks", sinks, np.float32, (heads,)),
        ("kv_lengths", kv_lengths, np.int32, (batch,)),
    ):
        if given is not None:
            arrays[name] = np.ascontiguousarray(np.broadcast_to(np.asarray(given, dtype), shape))
    problem.has_alibi = int("alibi_slopes" in arrays)
    problem.has_sinks = int("sinks" in arrays)
    problem.has_kv_lengths = int("kv_lengths" in arrays)
    return arrays
