"""The package itself: its names are there, and are imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tvm_attention


def test_every_public_name_is_there() -> None:
    assert sorted(tvm_attention._MODULE_OF) == sorted(tvm_attention.__all__)
    for name in tvm_attention.__all__:
        assert getattr(tvm_attention, name).__name__ == name
    assert {*tvm_attention.__all__, "runtime"} <= set(dir(tvm_attention))


def test_a_misspelt_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="'tune_all'"):
        tvm_attention.tune_all  # noqa: B018


def _fresh(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_modules_are_found_without_being_imported() -> None:
    assert "x86-64-v3" in _fresh(
        "import tvm_attention; print(tvm_attention.target.named_target('x86-64-v3'))"
    )


def test_importing_it_imports_nothing_slow() -> None:
    code = "import sys, tvm_attention{}; print(sorted({!r} & set(sys.modules)))"
    slow = {"numpy", "pebble", "torch", "tvm", "tvm_ffi", "xgboost"}
    assert _fresh(code.format("", slow)) == "[]\n"
    everything = "; [getattr(tvm_attention, name) for name in tvm_attention.__all__]"
    assert _fresh(code.format(everything, slow)) == "['numpy']\n"
