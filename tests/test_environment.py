"""Environment variables: defaults, overrides and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_attention import environment
from tvm_attention.errors import InvalidValueError

VARIABLES = (
    environment.CACHE_DIR,
    environment.LOG_DIR,
    environment.CACHE_LIMIT_MB,
    environment.NUM_THREADS,
    environment.TARGET,
)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_defaults() -> None:
    assert environment.cache_directory().is_absolute()
    assert environment.log_directory().name == "tuning_logs"
    assert environment.cache_directory() != environment.log_directory()
    assert environment.cache_limit() == 512 * 1024 * 1024
    assert environment.num_threads() is None
    assert environment.target_name() is None


@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_means_default(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    unset_cache = environment.cache_directory()
    for variable in VARIABLES:
        monkeypatch.setenv(variable, blank)
    assert environment.cache_directory() == unset_cache
    assert environment.cache_limit() == 512 * 1024 * 1024
    assert environment.num_threads() is None
    assert environment.target_name() is None


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "kernels"))
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    assert environment.cache_directory() == tmp_path / "kernels"
    assert environment.log_directory() == tmp_path / "logs"
    assert not environment.cache_directory().exists()


def test_relative_and_home_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(environment.LOG_DIR, "~/logs")
    monkeypatch.setenv(environment.CACHE_DIR, "here")
    assert environment.log_directory() == tmp_path / "logs"
    assert environment.cache_directory() == tmp_path / "here"


def test_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.NUM_THREADS, " 3 ")
    monkeypatch.setenv(environment.CACHE_LIMIT_MB, "0")
    assert environment.num_threads() == 3
    assert environment.cache_limit() == 0
    monkeypatch.setenv(environment.CACHE_LIMIT_MB, "2")
    assert environment.cache_limit() == 2 * 1024 * 1024


BAD_NUMBERS = ["0", "-1", "2.5", "many", "1e3", "nan", "inf", "٣", "1_0", "+4", "4097", "9" * 5000]


@pytest.mark.parametrize("text", BAD_NUMBERS)
def test_refused_thread_counts(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(environment.NUM_THREADS, text)
    with pytest.raises(InvalidValueError, match="TVM_ATTENTION_NUM_THREADS: expected") as caught:
        environment.num_threads()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["-1", "half", "nan", str(2**21)])
def test_refused_cache_limits(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(environment.CACHE_LIMIT_MB, text)
    with pytest.raises(InvalidValueError, match="unset it"):
        environment.cache_limit()


def test_target_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.TARGET, "x86-64-v3")
    assert environment.target_name() == "x86-64-v3"
