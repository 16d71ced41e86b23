"""The disk cache of kernels: atomic, bounded, shared by processes, never in the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fresh_process import run_script

from tvm_attention import environment, kernel_cache
from tvm_attention.errors import InvalidValueError, KernelBuildError

SEAL = len(kernel_cache._sealed(""))  # bytes of a file beyond its source


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, not even its folder made."""
    path = tmp_path / "below" / "cache"
    monkeypatch.setenv(environment.CACHE_DIR, str(path))
    return path


def names(folder: Path) -> set[str]:
    """Files of the cache but for its lock."""
    return {p.name for p in folder.iterdir()} - {"prune.lock"}


def age(path: Path, seconds: float) -> None:
    """Make a file look as if last used that long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def limit_to(monkeypatch: pytest.MonkeyPatch, kernels: int, size: int) -> None:
    """Room for so many kernels of a size: the limit is set in mebibytes."""
    monkeypatch.setattr(environment, "cache_limit", lambda: kernels * (size + SEAL))


def test_what_is_written_is_read(folder: Path) -> None:
    assert kernel_cache.read("a") is None
    for source in ("first", "define void @main() ; \u00e4 \n" * 1000, ""):
        kernel_cache.write("a", source)
        assert kernel_cache.read("a") == source
        assert names(folder) == {"a.ll"}
    kernel_cache.write("b", "other")
    assert kernel_cache.read("a") == ""


def test_use_and_clear(folder: Path) -> None:
    empty = kernel_cache.use()
    assert (empty.directory, empty.kernels, empty.size) == (folder, 0, 0)
    assert kernel_cache.clear() == 0
    kernel_cache.write("a", "x" * 100)
    kernel_cache.write("b", "y" * 50)
    (folder / "journals").mkdir()
    (folder / "notes.txt").write_text("not a kernel")
    found = kernel_cache.use()
    assert (found.kernels, found.size, found.limit) == (2, 150 + 2 * SEAL, 512 * 2**20)
    assert kernel_cache.clear() == 2
    assert kernel_cache.use().kernels == 0
    assert names(folder) == {"journals", "notes.txt"}


def test_the_least_recently_used_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(monkeypatch, 3, 100)
    for n, key in enumerate("abc"):
        kernel_cache.write(key, key * 100)
        age(folder / f"{key}.ll", 100 - n)
    assert kernel_cache.read("a") == "a" * 100  # counts as used just now
    kernel_cache.write("d", "d" * 100)
    assert names(folder) == {"a.ll", "c.ll", "d.ll"}
    kernel_cache.write("e", "e" * 150)
    assert kernel_cache.use().size <= 3 * (100 + SEAL)
    assert kernel_cache.read("e") == "e" * 150
    assert kernel_cache.read("c") is None


@pytest.mark.parametrize("kernels", [0, 1])
def test_a_kernel_beyond_the_limit_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kernels: int
) -> None:
    limit_to(monkeypatch, kernels, 10)
    kernel_cache.write("a", "a" * 11)
    assert kernel_cache.use().kernels == 0


@pytest.mark.parametrize("where", ["write", "replace"])
def test_a_write_that_fails_leaves_the_old_kernel_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    kernel_cache.write("a", "old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.os, "fdopen" if where == "write" else "replace", full)
    kernel_cache.write("a", "new")
    monkeypatch.undo()
    monkeypatch.setenv(environment.CACHE_DIR, str(folder))
    assert kernel_cache.read("a") == "old"
    assert names(folder) == {"a.ll"}


def test_a_bad_limit_is_found_before_anything_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_cache.write("a", "source")
    monkeypatch.setenv(environment.CACHE_LIMIT_MB, "much")
    for key in ("a", "b"):
        with pytest.raises(InvalidValueError, match=environment.CACHE_LIMIT_MB):
            kernel_cache.read(key)


def test_what_a_killed_writer_left_is_cleaned_up(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, seconds in (("write-old", 7200), ("write-new", 10)):
        (folder / name).write_text("half a ker")
        age(folder / name, seconds)
    kernel_cache.write("a", "source")
    assert names(folder) == {"a.ll", "write-new"}


def test_an_interrupt_is_not_swallowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel_cache.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel_cache.write("a", "new")
    assert names(folder) == set()


def test_readers_see_the_old_or_the_new_and_never_a_part(folder: Path) -> None:
    sources = {letter * 200_000 for letter in "xyz"}
    kernel_cache.write("a", "x" * 200_000)
    stop = threading.Event()
    seen: set[str] = set()
    odd: list[int] = []

    def read() -> None:
        while not stop.is_set():
            source = kernel_cache.read("a")
            if source not in sources:
                odd.append(-1 if source is None else len(source))
            else:
                seen.add(source)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(40):
        for source in sources:
            kernel_cache.write("a", source)
    stop.set()
    reader.join()
    assert odd == []
    assert seen


def test_a_place_that_cannot_be_written_costs_no_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way of a folder")
    monkeypatch.setenv(environment.CACHE_DIR, str(file / "cache"))
    kernel_cache.write("a", "source")
    assert kernel_cache.read("a") is None
    assert kernel_cache.use().kernels == 0
    assert kernel_cache.clear() == 0


def test_a_kernel_that_is_no_text_counts_as_absent(folder: Path) -> None:
    kernel_cache.write("a", "source")
    (folder / "a.ll").write_bytes(b"\xff\xfe\x00")
    assert kernel_cache.read("a") is None
    (folder / "b.ll").mkdir()
    assert kernel_cache.read("b") is None
    kernel_cache.write("b", "source")  # cannot, and says nothing


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"3fe", b"3ff"),
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + data,
        lambda data: b"",
    ],
)
def test_a_file_that_is_not_what_was_written_counts_as_absent(
    folder: Path, change: Callable[[bytes], bytes]
) -> None:
    kernel_cache.write("a", "double 0x3fe; digest \n; digest 00\n")
    assert kernel_cache.read("a") == "double 0x3fe; digest \n; digest 00\n"
    file = folder / "a.ll"
    file.write_bytes(change(file.read_bytes()))
    assert kernel_cache.read("a") is None
    kernel_cache.write("a", "again")
    assert kernel_cache.read("a") == "again"


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.tempfile, "mkdtemp", full)
    refused = pytest.raises(KernelBuildError, match=r"No space left.*TMPDIR")
    with refused, kernel_cache.readable_file("source"):
        raise AssertionError("not reached")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError), kernel_cache.readable_file("source"):
        raise FileNotFoundError("of the caller")


def test_a_file_of_ones_own_outlasts_pruning(folder: Path) -> None:
    with kernel_cache.readable_file("source \u00e4") as path:
        kernel_cache.clear()
        assert path.suffix == ".ll"
        assert path.read_text(encoding="utf-8") == "source \u00e4"
    assert not path.exists()


CROWD = """
import random
from tvm_attention import environment, kernel_cache
environment.cache_limit = lambda: 10 * 5000
rng = random.Random({seed})
for _ in range(150):
    key = "k%02d" % rng.randrange(20)
    if rng.random() < 0.5:
        kernel_cache.write(key, key * 1500)
    else:
        source = kernel_cache.read(key)
        assert source in (None, key * 1500), (key, source[:20])
"""


def test_several_processes_share_a_cache(folder: Path) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            run_script(CROWD.format(seed=seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 0 < kernel_cache.use().size <= 10 * 5000
    assert not [n for n in names(folder) if n.startswith("write-")]
