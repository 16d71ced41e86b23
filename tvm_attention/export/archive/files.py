"""The files of an archive, as they must be before anything of them is loaded."""

from __future__ import annotations

import hashlib
import json
import platform
import reprlib
from pathlib import Path
from typing import Any

from .interface import ABI, ArchiveError

SCHEMA = 1  # of the manifest
LIBRARY = "tvm_attention"
_MOST_MANIFEST = 16 << 20  # bytes
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def found_archive(folder: Path) -> tuple[dict[str, Any], Path]:
    """The manifest and the shared library for this machine in a folder that the export wrote, or in that
    architecture's own folder. Raises ArchiveError."""
    machine = platform.machine().lower()
    architecture = _ARCHITECTURES.get(machine, machine)
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
    return manifest, checked_file(place, manifest, "shared")


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
