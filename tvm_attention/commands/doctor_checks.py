"""The checks of ``doctor``, and what they find."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm_attention import environment, kernel_cache
from tvm_attention.archives import load_archive
from tvm_attention.commands import doctor_child
from tvm_attention.commands.bar import Advance
from tvm_attention.commands.ending import FAILED
from tvm_attention.commands.packages import installed, required
from tvm_attention.database import shipped_logs, user_logs
from tvm_attention.errors import AttentionError, InvalidValueError, TuningLogError
from tvm_attention.quantities import counted, size_text
from tvm_attention.target import detect_target

CHILD_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``advice`` says what to do when it is not ``ok``; else, if anything, what would be
    better."""

    name: str
    ok: bool
    detail: str
    advice: str


Check = Callable[[str], Finding]


def examine(advance: Advance = lambda _: None) -> Iterator[Finding]:
    """The findings, each as soon as it is there; ``advance`` hears of each check as it begins."""
    for name, check in checks().items():
        advance(name)
        yield check(name)


def checks() -> dict[str, Check]:
    """What is checked, by name, in order."""
    tvm = f"pip install {required('apache-tvm')} {required('apache-tvm-ffi')}"
    compiler = (
        f"reinstall TVM: {tvm} --force-reinstall; on SIGILL set {environment.TARGET}=x86-64-v2; a "
        f"device that only runs archives needs none"
    )
    pool = (
        f"report it with the output of tvm-attention info; {environment.NUM_THREADS}=1 avoids the "
        f"pool meanwhile"
    )
    pair = ", ".join(f"{name} {installed(name)}" for name in ("apache-tvm", "apache-tvm-ffi"))
    hardware = f"unset {environment.TARGET} or name a target of this machine"
    with_torch = {"threads with torch": _in_child("torch_threads", pool)}
    folder = f"make the folder writable, make room or set {environment.CACHE_DIR} to another"
    logs = f"correct or delete what was refused, or set {environment.LOG_DIR} to another folder"
    return {
        "settings": _here(_settings, "correct or unset the variable"),
        "hardware": _here(_hardware, hardware),
        f"log round trip ({pair})": _in_child("log_round_trip", f"install a pair that fits: {tvm}"),
        "compiler": _in_child("kernel", compiler),
        "threads": _in_child("threads", pool),
        **(with_torch if importlib.util.find_spec("torch") else {}),
        "archives": _here(_archives, f"export anew, or correct {environment.ARCHIVE}"),
        "kernel cache": _here(_cache, folder),
        "your logs": _here(_user_logs, logs),
        "shipped logs": _here(_shipped_logs, "reinstall tvm-attention"),
        "xgboost": _xgboost,
    }


def _xgboost(name: str) -> Finding:
    search = f"only tune needs it: pip install {required('xgboost')} or xgboost-cpu"
    if importlib.util.find_spec("xgboost"):
        return _in_child("xgboost", search)(name)
    return Finding(name, True, f"not installed; {search}", "")


def _here(check: Callable[[], str], advice: str) -> Check:
    def make(name: str) -> Finding:
        try:
            return Finding(name, True, check(), "")
        except (AttentionError, OSError) as error:
            return Finding(name, False, str(error), advice)

    return make


def _in_child(check: str, advice: str) -> Check:
    """Runs a check of doctor_child in a new process."""
    return lambda name: _child_finding(name, check, advice)


def _child_finding(name: str, check: str, advice: str) -> Finding:
    command = [sys.executable, "-m", doctor_child.__name__, check]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CHILD_SECONDS, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return Finding(name, False, f"not done after {CHILD_SECONDS:g} s", advice)
    if done.returncode == 0:
        return Finding(name, True, _last_line(done.stdout), "")
    if done.returncode < 0:
        detail = f"the process died of {_signal(-done.returncode)}"
        return Finding(name, False, detail, advice)
    if done.returncode == FAILED and _last_line(done.stdout):
        return Finding(name, False, _last_line(done.stdout), advice)
    detail = f"exit status {done.returncode}: {_last_line(done.stderr)}".removesuffix(": ")
    return Finding(name, False, detail, advice)


def _last_line(text: str) -> str:
    """The last line that says something; libraries may have printed before it."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _settings() -> str:
    environment.num_threads()
    limit = environment.cache_limit()
    if not limit:
        return "kernels are not kept (a limit of 0)"
    return f"kernels are kept up to {size_text(limit)}"


def _hardware() -> str:
    target = detect_target()
    return f"target {target.name} ({target.isa}), {target.cores} cores"


def _archives() -> str:
    folders = environment.archive_folders()
    if not folders:
        return f"none: {environment.ARCHIVE} names no folder"
    counts = [counted(len(load_archive(folder).kernels()), "kernel") for folder in folders]
    return ", ".join(f"{folder}: {count}" for folder, count in zip(folders, counts, strict=True))


def _cache() -> str:
    directory = environment.cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix="write-") as file:
        file.write(b"a kernel")
    return f"{directory} is writable, {counted(kernel_cache.use().kernels, 'kernel')}"


def _user_logs() -> str:
    directory = environment.log_directory()
    if not directory.exists():
        return f"{directory} is not there yet, tune makes it"
    if not directory.is_dir():
        raise InvalidValueError(f"{directory}: expected a folder")
    logs = user_logs()
    _require_readable(log.refusal for log in logs)
    return f"{directory}: {counted(sum(len(log.records) for log in logs), 'record')}"


def _shipped_logs() -> str:
    logs = shipped_logs()
    _require_readable(log.refusal for log in logs)
    records = sum(len(log.records) for log in logs)
    if not records:
        raise TuningLogError("expected the records that came with tvm-attention, got none")
    return counted(records, "record")


def _require_readable(refusals: Iterator[str | None]) -> None:
    reasons = [reason for reason in refusals if reason is not None]
    if reasons:
        raise TuningLogError("; ".join(reasons))
