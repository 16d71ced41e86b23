"""Where tuning logs are: <target>/<name>.jsonl in the user's folder and in the library's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_attention import environment
from tvm_attention.database.shapes import TARGET_NAME
from tvm_attention.errors import InvalidValueError

if TYPE_CHECKING:
    from importlib.abc import Traversable

SUFFIX = ".jsonl"


def user_log_path(target: str, name: str = "tuned") -> Path:
    """Where a user's log of a target is. Raises InvalidValueError for what is no file name."""
    for what, text in (("target", target), ("log name", name)):
        if not TARGET_NAME.fullmatch(text):
            raise InvalidValueError(f"{what}: expected {TARGET_NAME.pattern}, got {text[:80]!r}")
    return environment.log_directory() / target / f"{name}{SUFFIX}"


def shipped_folder() -> Path | Traversable:
    """The logs that came with the library; not a Path where it is imported from an archive."""
    return resources.files("tvm_attention.tuning_logs")


def searched_target(path: Path) -> str | None:
    """The target whose kernels a log of this path is searched for; None if it is no place for logs."""
    where = path.resolve()
    roots = (environment.log_directory(), shipped_folder())
    here = any(isinstance(r, Path) and r.resolve() == where.parent.parent for r in roots)
    return where.parent.name if here and where.name.endswith(SUFFIX) else None
