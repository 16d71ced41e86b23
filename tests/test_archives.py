"""Archives that serve Python's calls, beside a compiler and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_calls import needs_compiler

import tvm_attention as ta
from tvm_attention import archives, loading, reference
from tvm_attention._tvm import compiler_missing
from tvm_attention.archive_kernel import ArchiveKernel
from tvm_attention.export.building import export
from tvm_attention.kernel_source import ArchiveSource
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload

pytestmark = needs_compiler

DECODE = {"head_dim": 64, "query_length": 1, "query_heads": 4, "kv_heads": 2}
WORKLOADS = (
    AttentionWorkload(head_dim=64),
    AttentionWorkload(head_dim=64, mask="float32", softcap=True, alibi=True, sinks=True, window=(9, 2)),
    AttentionWorkload(head_dim=64, ragged=True, output="attention_and_lse", causal="bottom_right"),
    AttentionWorkload(**DECODE, ragged=True),
    AttentionWorkload(**DECODE, ragged=True, paged=True),
    AttentionWorkload(**DECODE, kv_dtype="int8"),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("archive")
    export(WORKLOADS, [detect_target().isa], made)
    return made


@pytest.fixture
def loaded(folder: Path) -> Iterator[Path]:
    """With no compiler to fall back on: what an archive does not serve is an error."""
    ta.load_archive(folder)
    yield folder
    archives.unload_archives()


@pytest.fixture
def alone(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "compiler_missing", lambda: "there is none")
    return loaded


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def near(out: Any, expected: Any) -> bool:
    return bool(np.abs(np.asarray(out) - expected).max() < 4e-6)


def test_attention_is_served(alone: Path) -> None:
    q, k, v = drawn((2, 4, 37, 64), (2, 2, 90, 64), (2, 2, 90, 64))
    out = np.full((2, 4, 37, 64), np.nan, np.float32)
    assert ta.attention(q, k, v, out=out) is out
    assert near(out, reference.attended(q, k, v).out)
    rows_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    assert near(ta.attention(*rows_first, layout="bshd").swapaxes(1, 2), out)
    options: dict[str, Any] = {
        "mask": np.where(np.random.default_rng(1).random((37, 90)) < 0.7, 0.5, -np.inf).astype(np.float32),
        "softcap": 20.0, "alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "sinks": [0.0, 1.0, -1.0, 2.0],
        "window": (30, 5), "scale": 0.2,
    }  # fmt: skip
    assert near(ta.attention(q, k, v, **options), reference.attended(q, k, v, **options).out)


def test_any_strides(alone: Path) -> None:
    """Backwards, and one row for all, which the C interface reads as dense: copied."""
    q, k, v = drawn((1, 4, 20, 64), (1, 4, 30, 64), (1, 4, 30, 64))
    back = ta.attention(q[:, ::-1], k[:, :, ::-1], v[:, :, ::-1])
    assert near(back, reference.attended(q[:, ::-1], k[:, :, ::-1], v[:, :, ::-1]).out)
    out = np.zeros_like(q)
    ta.attention(q, k, v, out=out[:, :, ::-1])
    assert near(out[:, :, ::-1], reference.attended(q, k, v).out)
    same = np.broadcast_to(k[:, :1, :1], k.shape)
    assert near(ta.attention(q, same, v), reference.attended(q, same, v).out)


def test_packed_sequences(alone: Path) -> None:
    q, k, v = drawn((50, 4, 64), (70, 2, 64), (70, 2, 64))
    for starts, key_starts in (([0, 10, 10, 50], [0, 30, 41, 70]), ([0, 50], [0, 70])):
        options: dict[str, Any] = {"causal": "bottom_right", "return_lse": True}
        out, lse = ta.attention_varlen(q, k, v, starts, key_starts, **options)
        for n in range(len(starts) - 1):
            rows, keys = slice(*starts[n : n + 2]), slice(*key_starts[n : n + 2])
            if rows.start == rows.stop:
                continue
            own = [x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
            expected = reference.attended(*own, causal="bottom_right")
            assert near(out[rows].swapaxes(0, 1), expected.out[0])
            assert np.allclose(lse[:, rows], expected.lse[0], atol=4e-5, rtol=0)


def test_caches(alone: Path) -> None:
    """Contiguous and in pages, elements of different lengths."""
    keys, values = drawn((2, 2, 40, 64), (2, 2, 40, 64))
    (query,) = drawn((2, 4, 1, 64), seed=3)
    plain = ta.KVCache(2, 2, 64, 64)
    paged = ta.PagedKVCache(12, 8, 2, 64)
    sequences = [paged.allocate() for _ in range(2)]
    plain.append(keys, values, lengths=[40, 17])
    for b, count in enumerate((40, 17)):
        new = keys[b : b + 1, :, :count], values[b : b + 1, :, :count]
        paged.append([sequences[b]], *new)
    for b, count in enumerate((40, 17)):
        own = query[b : b + 1], keys[b : b + 1, :, :count], values[b : b + 1, :, :count]
        expected = reference.attended(*own).out[0]
        assert near(plain.attend(query)[b], expected)
        assert near(paged.attend(sequences, query)[b], expected)


def test_int8_cache(alone: Path) -> None:
    keys, values, query = drawn((1, 2, 40, 64), (1, 2, 40, 64), (1, 4, 1, 64))
    cache = ta.KVCache(1, 2, 64, 64, dtype="int8")
    cache.append(keys, values)
    assert np.abs(cache.attend(query) - reference.attended(query, keys, values).out).max() < 0.05


def test_load_says_where_a_kernel_is_from(alone: Path) -> None:
    kernel = ta.load(WORKLOADS[0], num_threads=2)
    assert isinstance(kernel, ArchiveKernel)
    assert isinstance(kernel.source, ArchiveSource)
    assert kernel.source.kind == "archive"
    assert str(loaded_folder(alone)) in str(kernel.source)
    assert kernel.source.target == detect_target().isa
    q, k, v = drawn((1, 4, 9, 64), (1, 4, 30, 64), (1, 4, 30, 64))
    assert near(kernel(q, k, v), reference.attended(q, k, v).out)
    with pytest.raises(
        ta.InvalidValueError, match="options: expected those this kernel was loaded"
    ):
        kernel(q, k, v, softcap=2.0)
    one = ta.load(AttentionWorkload(**DECODE, ragged=True))
    with pytest.raises(ta.UnsupportedError, match=r"export --workload head_dim=64.*ragged=true"):
        one(q, k, v, kv_lengths=[30])  # nine rows: more than decoding takes


def loaded_folder(folder: Path) -> Path:
    return folder / "x86_64"


def test_what_no_archive_serves_says_what_to_export(alone: Path) -> None:
    q, k, v = drawn((1, 4, 9, 64), (1, 4, 30, 64), (1, 4, 30, 64))
    with pytest.raises(ta.KernelBuildError) as refused:
        ta.attention(q, k, v, causal="top_left")
    said = str(refused.value)
    assert "the loaded archive has it not, and it cannot be built here: there is none" in said
    command = said.split("`")[1]
    words = command.split()
    assert words[:3] == ["tvm-attention", "export", "--workload"]
    workload = AttentionWorkload.from_text(words[3])
    assert (workload.head_dim, workload.causal, workload.query_heads) == (64, "top_left", 4)
    assert words[4:6] == ["--targets", detect_target().name]
    with pytest.raises(ta.KernelBuildError, match=r"output=weights"):
        ta.attention(q, k, v, return_weights=True)


def test_what_an_archive_lacks_is_built_where_there_is_a_compiler(loaded: Path) -> None:
    q, k, v = drawn((1, 4, 9, 64), (1, 4, 30, 64), (1, 4, 30, 64))
    out = ta.attention(q, k, v, causal="top_left")
    assert near(out, reference.attended(q, k, v, causal="top_left").out)
    assert isinstance(ta.load(WORKLOADS[0]), ArchiveKernel)
    assert not isinstance(ta.load(WORKLOADS[0], "x86-64-v2"), ArchiveKernel)
    archives.unload_archives()
    assert not isinstance(ta.load(WORKLOADS[0]), ArchiveKernel)


def test_archives_refused(tmp_path: Path) -> None:
    with pytest.raises(ta.KernelBuildError, match="it holds no archive"):
        ta.load_archive(tmp_path)


BOARD = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "tvm_attention"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda n, *a: None if n in ("tvm", "tvm_ffi") else found(n, *a)
import numpy as np
import tvm_attention as ta
q = np.ones((1, 4, 9, 64), np.float32)
assert np.allclose(ta.scaled_dot_product_attention(q, q, 2 * q), 2)
child = __import__("os").fork()
if child == 0:
    assert np.allclose(ta.attention(q, q, 3 * q), 3)
    __import__("os")._exit(7)
assert __import__("os").waitpid(child, 0)[1] == 7 << 8
for call in (lambda: ta.attention(q, q, q, causal="top_left"), lambda: ta.explain, lambda: ta.tune):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
from tvm_attention.__main__ import main
assert main(["info"]) == 2
"""


def test_numpy_is_enough(folder: Path) -> None:
    """As on a board where the package was installed without what it depends on."""
    environment = {
        **os.environ,
        "TVM_ATTENTION_ARCHIVE": str(folder),
        "TVM_ATTENTION_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", BOARD], env=environment, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    unserved, explain, tune = done.stdout.splitlines()
    assert unserved.startswith("KernelBuildError kernel: the loaded archive has it not")
    assert "package apache-tvm is not installed" in unserved
    assert "--targets x86-64-v3 -o DIR" in unserved
    assert "the command line needs package " in done.stderr
    for line, name in ((explain, "explain"), (tune, "tune")):
        assert line.startswith(f"ModuleNotFoundError tvm_attention.{name} needs package ")
        assert "load_archive" in line


def test_a_runtime_alone_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tvm"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lib" / "libtvm_runtime.so").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    compiler_missing.cache_clear()
    try:
        found = compiler_missing()
        assert found == f"libtvm_compiler.so is not in {package / 'lib'} (a runtime alone)"
        (package / "lib" / "libtvm_compiler.so").touch()
        compiler_missing.cache_clear()
        assert compiler_missing() is None
    finally:
        compiler_missing.cache_clear()
