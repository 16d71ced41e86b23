"""Every environment variable the library reads, in one place.

An unset or empty variable means its default. The functions here look at each call, so that a change
made by ``os.environ`` is seen by the next kernel that is loaded or tuned. What has been decided stays:
the thread pool asks for TVM_ATTENTION_NUM_THREADS once a process, and a call like an earlier one
(the same shapes, strides and options) runs as that did. In a running process, change the number of
threads by ``torch.set_num_threads`` or by ``load(workload, num_threads=...)``.

Nothing but NumPy is needed to import this: a device that only runs archives has no more.
"""

from __future__ import annotations

import os
from pathlib import Path

from tvm_attention.errors import InvalidValueError

CACHE_DIR = "TVM_ATTENTION_CACHE_DIR"
LOG_DIR = "TVM_ATTENTION_LOG_DIR"
CACHE_LIMIT_MB = "TVM_ATTENTION_CACHE_LIMIT_MB"
NUM_THREADS = "TVM_ATTENTION_NUM_THREADS"
TARGET = "TVM_ATTENTION_TARGET"
ARCHIVE = "TVM_ATTENTION_ARCHIVE"

DEFAULT_CACHE_LIMIT_MB = 512
MAX_CACHE_LIMIT_MB = 2**20  # one tebibyte
MAX_THREADS = 4096

_APPLICATION = "tvm_attention"


def cache_directory() -> Path:
    """Where compiled kernels are kept: TVM_ATTENTION_CACHE_DIR, else the user's cache folder. It
    may not exist yet."""
    from platformdirs import user_cache_path

    return _directory(CACHE_DIR, user_cache_path(_APPLICATION, appauthor=False))


def log_directory() -> Path:
    """Where the user's own tuning logs are: TVM_ATTENTION_LOG_DIR, else ``tuning_logs`` in the
    user's data folder. It may not exist yet."""
    from platformdirs import user_data_path

    default = user_data_path(_APPLICATION, appauthor=False) / "tuning_logs"
    return _directory(LOG_DIR, default)


def cache_limit() -> int:
    """The most bytes of compiled kernels to keep: TVM_ATTENTION_CACHE_LIMIT_MB (mebibytes, 0 keeps
    none), default 512 MiB. Raises InvalidValueError for anything but a whole number."""
    limit = _whole_number(CACHE_LIMIT_MB, 0, MAX_CACHE_LIMIT_MB)
    return (DEFAULT_CACHE_LIMIT_MB if limit is None else limit) * 2**20


def num_threads() -> int | None:
    """Threads a kernel uses: TVM_ATTENTION_NUM_THREADS, or None when the caller's thread pool
    decides. Raises InvalidValueError for anything but a whole number from 1."""
    return _whole_number(NUM_THREADS, 1, MAX_THREADS)


def target_name() -> str | None:
    """The target to compile for instead of the detected one (TVM_ATTENTION_TARGET), or None. The
    name itself is checked by :func:`tvm_attention.target.detect_target`."""
    return _text(TARGET)


def archive_folders() -> tuple[Path, ...]:
    """Folders of exported archives to load before the first kernel (TVM_ATTENTION_ARCHIVE), separated as in
    PATH."""
    folders = (_text(ARCHIVE) or "").split(os.pathsep)
    return tuple(Path(os.path.expanduser(f.strip())).absolute() for f in folders if f.strip())


def _text(variable: str) -> str | None:
    return os.environ.get(variable, "").strip() or None


def _directory(variable: str, default: Path) -> Path:
    text = _text(variable)
    return default if text is None else Path(os.path.expanduser(text)).absolute()


def _whole_number(variable: str, low: int, high: int) -> int | None:
    text = _text(variable)
    if text is None:
        return None
    # The length is bounded first: int() of a very long text is slow or an error of its own.
    if text.isascii() and text.isdigit() and len(text) <= 12 and low <= int(text) <= high:
        return int(text)
    raise InvalidValueError(
        f"{variable}: expected a whole number from {low} to {high}, got {text[:40]!r}; "
        f"correct it or unset it for the default"
    )
