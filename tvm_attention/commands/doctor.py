"""``tvm-attention doctor``: checks the installation, and says what to do about what is wrong.

Whatever could crash runs in a child process, so that a crash is a finding and not the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from tvm_attention import environment, kernel_cache
from tvm_attention.commands import doctor_child
from tvm_attention.commands.arguments import Commands, add_command, add_json
from tvm_attention.commands.ending import FAILED, OK
from tvm_attention.commands.output import console, counted, print_json, say, size_text
from tvm_attention.commands.packages import installed, required
from tvm_attention.database import shipped_logs, user_logs
from tvm_attention.errors import AttentionError, InvalidValueError, TuningLogError
from tvm_attention.target import detect_target

CHILD_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``advice`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    detail: str
    advice: str


def add(commands: Commands) -> None:
    """The parser of ``doctor``."""
    add_json(add_command(commands, "doctor", "check the installation", run))


def run(options: argparse.Namespace) -> int:
    """Makes every check; exit status 1 if one failed."""
    out = console()
    findings = []
    for finding in each_cause_once(examine()):
        findings.append(finding)
        if not options.json:
            _show(out, finding)
    holds = all(finding.ok for finding in findings)
    if options.json:
        print_json({"ok": holds, "checks": [asdict(finding) for finding in findings]})
    return OK if holds else FAILED


def each_cause_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings; one that failed as an earlier one did refers to it, its own advice would mislead."""
    failed: list[Finding] = []
    for finding in findings:
        if finding.ok:
            yield finding
            continue
        first = next((f for f in failed if finding.detail in f.detail), None)
        if first is None:
            failed.append(finding)
            yield finding
        else:
            yield replace(finding, detail=f"the same as {first.name}", advice="mend that first")


def _show(out: Console, finding: Finding) -> None:
    if finding.ok:
        say(out, f"ok    {finding.name}: {finding.detail}")
    else:
        say(out, f"FAIL  {finding.name}: {finding.detail}", style="red")
        say(out, f"      what to do: {finding.advice}")


def examine() -> Iterator[Finding]:
    """The findings, each as soon as it is there."""
    tvm = f"pip install {required('apache-tvm')} {required('apache-tvm-ffi')}"
    compiler = (
        f"reinstall TVM: {tvm} --force-reinstall; on SIGILL set {environment.TARGET}=x86-64-v2"
    )
    pool = (
        f"report it with the output of tvm-attention info; {environment.NUM_THREADS}=1 avoids the "
        f"pool meanwhile"
    )
    yield _here("settings", _settings, "correct or unset the variable")
    yield _here(
        "hardware", _hardware, f"unset {environment.TARGET} or name a target of this machine"
    )
    pair = ", ".join(f"{name} {installed(name)}" for name in ("apache-tvm", "apache-tvm-ffi"))
    fitting = f"install a pair that fits: {tvm}"
    yield _in_child(f"log round trip ({pair})", "log_round_trip", fitting)
    yield _in_child("compiler", "kernel", compiler)
    yield _in_child("threads", "threads", pool)
    if importlib.util.find_spec("torch"):
        yield _in_child("threads with torch", "torch_threads", pool)
    folder = f"make the folder writable, make room or set {environment.CACHE_DIR} to another"
    yield _here("kernel cache", _cache, folder)
    logs = f"correct or delete what was refused, or set {environment.LOG_DIR} to another folder"
    yield _here("your logs", _user_logs, logs)
    yield _here("shipped logs", _shipped_logs, "reinstall tvm-attention")
    search = f"only tune needs it: pip install {required('xgboost')} or xgboost-cpu"
    if importlib.util.find_spec("xgboost"):
        yield _in_child("xgboost", "xgboost", search)
    else:
        yield Finding("xgboost", True, f"not installed; {search}", "")


def _here(name: str, check: Callable[[], str], advice: str) -> Finding:
    try:
        return Finding(name, True, check(), "")
    except (AttentionError, OSError) as error:
        return Finding(name, False, str(error), advice)


def _in_child(name: str, check: str, advice: str) -> Finding:
    """Runs a check of doctor_child in a new process."""
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
