"""From a candidate to machine code: what a cached kernel depends on, and damaged caches."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attention_cases import assert_right, inputs, poisoned
from fresh_process import run_script

from tvm_attention import compiler, environment, kernel_cache
from tvm_attention.compiler import kernel_key, load_kernel
from tvm_attention.errors import KernelBuildError
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, detect_target, named_target
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=16, query_heads=2, query_length=20, key_length=24)
DECODE = AttentionWorkload(head_dim=16, query_length=1, key_length=24)
TARGET = named_target("icelake", cores=2)


def default(workload: AttentionWorkload, target: HardwareTarget | None = None) -> Candidate:
    target = target or detect_target()
    schedules = schedules_for(target)
    found = schedules.default_candidate(workload, schedules.machine_parameters(target))
    assert isinstance(found, Candidate)
    return found


CANDIDATE = default(WORKLOAD, TARGET)


def test_a_kernel_serves_all_that_is_an_argument() -> None:
    key = kernel_key(WORKLOAD, TARGET, CANDIDATE)
    assert len(key) == 32
    for same in (
        WORKLOAD.with_lengths(500, 7000),
        replace(WORKLOAD, batch=9),
        replace(WORKLOAD, query_heads=8, kv_heads=2),
    ):
        assert kernel_key(same, TARGET, CANDIDATE) == key
    assert kernel_key(WORKLOAD, replace(TARGET, cores=64, model="other"), CANDIDATE) == key
    causal = (replace(WORKLOAD, causal=kind) for kind in ("top_left", "bottom_right"))
    assert len({kernel_key(w, TARGET, CANDIDATE) for w in causal}) == 1
    windows = (replace(WORKLOAD, window=sides) for sides in ((0, 0), (-1, 7), (500, -1)))
    assert len({kernel_key(w, TARGET, CANDIDATE) for w in windows}) == 1


def test_the_key_changes_with_all_that_is_compiled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_down = replace(TARGET, features=TARGET.features - {"avx512vnni"})
    keys = [
        kernel_key(WORKLOAD, TARGET, CANDIDATE),
        kernel_key(replace(WORKLOAD, head_dim=24), TARGET, CANDIDATE),
        kernel_key(replace(WORKLOAD, value_dim=24), TARGET, CANDIDATE),
        kernel_key(replace(WORKLOAD, causal=True), TARGET, CANDIDATE),
        kernel_key(WORKLOAD, TARGET, CANDIDATE.replace(query_block=64)),
        kernel_key(WORKLOAD, TARGET, Candidate("streaming", CANDIDATE.decisions)),
        kernel_key(WORKLOAD, named_target("x86-64-v4"), CANDIDATE),
        kernel_key(WORKLOAD, named_target("zen4"), CANDIDATE),
        kernel_key(WORKLOAD, cut_down, CANDIDATE),
    ]
    masked = {"mask": "float32", "mask_per_key": True}
    for options in (
        {"dtype": "bfloat16"}, {"dtype": "float16"}, {"kv_dtype": "int8"}, {"window": (1, 2)},
        {"mask": "bool"}, {"mask": "float32"}, masked, {"softcap": True}, {"alibi": True},
        {"sinks": True}, {"ragged": True}, {"paged": True}, {"output": "weights"},
        {"output": "attention_and_lse"},
    ):  # fmt: skip
        keys.append(kernel_key(replace(WORKLOAD, **options), TARGET, CANDIDATE))
    for name, value in (("EXPRESSION_DIGEST", "f" * 16), ("_FORMAT", 0)):
        with monkeypatch.context() as changed:
            changed.setattr(compiler, name, value)
            keys.append(kernel_key(WORKLOAD, TARGET, CANDIDATE))
    installed = compiler.version
    for package in ("apache-tvm", "tvm-attention"):
        with monkeypatch.context() as changed:
            changed.setattr(
                compiler, "version", lambda n, p=package: "9.9" if n == p else installed(n)
            )
            keys.append(kernel_key(WORKLOAD, TARGET, CANDIDATE))
    assert len(set(keys)) == len(keys)


def test_decoding_kernels_differ_by_the_rows_they_fold() -> None:
    candidate = default(DECODE, TARGET)
    assert candidate.variant == "split_kv"
    keys = {kernel_key(DECODE.with_lengths(n, 24), TARGET, candidate) for n in (1, 2, 3, 4, 8)}
    assert len(keys) == 4
    assert kernel_key(DECODE.with_lengths(1, 9000), TARGET, candidate) in keys


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "Ordner mit Leerzeichen, ä und 中"
    monkeypatch.setenv(environment.CACHE_DIR, str(folder))
    return folder


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """The candidates that were built since the test began."""
    built: list[Candidate] = []
    original = compiler.build_source

    def counted(workload: Any, target: Any, candidate: Candidate) -> str:
        built.append(candidate)
        return original(workload, target, candidate)

    monkeypatch.setattr(compiler, "build_source", counted)
    return built


def check(workload: AttentionWorkload, target: HardwareTarget | None = None) -> None:
    """Load a kernel and see that it is right."""
    target = target or detect_target()
    candidate = default(workload, target)
    compiled = load_kernel(workload, target, candidate)
    kernel = Kernel(workload, KernelSource(candidate, None, "test", ()), compiled, 2)
    q, k, v = inputs(workload)
    out = poisoned((*q.shape[:3], v.shape[3]))
    kernel(q, k, v, out)
    assert_right(out, q, k, v, causal=workload.causal)


def test_a_kernel_is_built_once(cache: Path, builds: list[Candidate]) -> None:
    check(WORKLOAD)
    assert len(builds) == 1
    (file,) = cache.glob("*.ll")
    assert file.stem == kernel_key(WORKLOAD, detect_target(), default(WORKLOAD))
    check(WORKLOAD)
    check(WORKLOAD.with_lengths(9, 9))
    assert len(builds) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "no text", "other text", "of another module"])
def test_a_damaged_file_is_built_again(cache: Path, builds: list[Candidate], damage: str) -> None:
    check(WORKLOAD)
    (file,) = cache.glob("*.ll")
    good = file.read_bytes()
    file.write_bytes(
        {
            "cut": good[: len(good) // 2],
            "empty": b"",
            "no text": b"\xff\x00" * 100,
            "other text": kernel_cache._sealed("Not found\n").encode(),
            "of another module": kernel_cache._sealed(
                "define i32 @other() {\n  ret i32 0\n}\n"
            ).encode(),
        }[damage]
    )
    check(WORKLOAD)
    assert len(builds) == 2
    assert len(file.read_bytes()) == pytest.approx(len(good), rel=0.01)  # names in it differ
    check(WORKLOAD)
    assert len(builds) == 2


def test_a_load_that_fails_for_want_of_room_leaves_the_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(WORKLOAD)
    (file,) = cache.glob("*.ll")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(kernel_cache.tempfile, "mkdtemp", full)
        with pytest.raises(KernelBuildError, match="TMPDIR"):
            load_kernel(WORKLOAD, detect_target(), default(WORKLOAD))
    assert kernel_cache.read(file.stem) is not None


def test_a_cache_deleted_while_in_use(cache: Path, builds: list[Candidate]) -> None:
    for number in (1, 2):
        check(WORKLOAD)
        assert len(builds) == number
        shutil.rmtree(cache)


def test_without_a_cache_a_kernel_is_built_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: list[Candidate]
) -> None:
    (tmp_path / "file").write_text("in the way of a folder")
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "file" / "cache"))
    check(WORKLOAD)
    check(WORKLOAD)
    assert len(builds) == 2


def test_a_cache_that_may_only_be_read_serves(
    cache: Path, monkeypatch: pytest.MonkeyPatch, builds: list[Candidate]
) -> None:
    check(WORKLOAD)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    for name in ("utime", "replace"):
        monkeypatch.setattr(kernel_cache.os, name, refused)
    monkeypatch.setattr(kernel_cache.tempfile, "mkstemp", refused)
    check(WORKLOAD)
    assert len(builds) == 1
    check(DECODE)
    assert len(builds) == 2


def test_what_tvm_cannot_build_is_a_build_error(cache: Path) -> None:
    impossible = Candidate.of("row_block", {**dict(CANDIDATE.decisions), "score_vectors": -1})
    with pytest.raises(
        KernelBuildError, match=r"could not build row_block .*score_vectors=-1.* for"
    ):
        load_kernel(WORKLOAD, detect_target(), impossible)
    assert not list(cache.glob("*.ll"))


CROWD = """
from test_compiler import DECODE, WORKLOAD, check
for workload in (WORKLOAD, DECODE, WORKLOAD):
    check(workload)
"""


def test_several_processes_build_and_load_at_once(cache: Path) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_script(CROWD, TVM_ATTENTION_CACHE_DIR=str(cache))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list(cache.glob("*.ll"))) == 2
    check(WORKLOAD)
