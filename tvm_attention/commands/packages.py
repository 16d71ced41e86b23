"""Installed packages: their versions, and those this library asks for."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed. Imports nothing of it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def required(package: str) -> str:
    """What to tell pip for the version of a package that this library asks for."""
    try:
        lines = requires("tvm-attention") or []
    except PackageNotFoundError:  # imported from a folder, not installed
        lines = []
    for line in lines:
        requirement = line.partition(";")[0].strip()
        if re.split(r"[^\w.-]", requirement)[0] == package:
            return f"'{requirement}'"
    return package
