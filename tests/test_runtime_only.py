"""An ARM board with NumPy and no compiler: aarch64 Python under qemu runs what was exported here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from exported_calls import needs_qemu

import tvm_attention
from tvm_attention.export.building import export
from tvm_attention.workload import AttentionWorkload

PYTHON = os.environ.get("ARM_BOARD_PYTHON", "")
WHAT_IS_MISSING = {
    "python-with-numpy-alone": "package apache-tvm is not installed",
    "python": "libtvm_compiler.so",
}

PROGRAM = """
import importlib.util, platform, sys
import numpy as np
import tvm_attention as ta
from tvm_attention import reference
assert platform.machine() == "aarch64"
assert (importlib.util.find_spec("tvm") is None) == (sys.argv[2] == "python-with-numpy-alone")
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, h, n, 64), np.float32) for h, n in ((4, 9), (2, 40), (2, 40)))
archive = ta.load_archive(sys.argv[1])
assert np.abs(ta.attention(q, k, v) - reference.attended(q, k, v).out).max() < 4e-6
cache = ta.KVCache(1, 2, 64, 64)
cache.append(k, v)
one = q[:, :, :1]
assert np.abs(cache.attend(one) - reference.attended(one, k, v).out).max() < 4e-6
print(ta.load(ta.AttentionWorkload(head_dim=64)).source)
try:
    ta.attention(q, k, v, causal="top_left")
except ta.KernelBuildError as error:
    print(error)
"""


@needs_qemu
@pytest.mark.skipif(not PYTHON, reason="ARM_BOARD_PYTHON names none: .ci/arm-python makes one")
@pytest.mark.parametrize("name", WHAT_IS_MISSING)
def test_a_board_without_a_compiler(tmp_path: Path, name: str) -> None:
    decode = AttentionWorkload(head_dim=64, query_length=1, query_heads=4, kv_heads=2)
    export([AttentionWorkload(head_dim=64), decode], ["cortex-a72"], tmp_path)
    command = [Path(PYTHON).with_name(name), "-c", PROGRAM, str(tmp_path), name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _package(tmp_path), "ARM_BOARD_CPU": "cortex-a72"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    source, refused = done.stdout.splitlines()
    assert source.startswith(f"archive {tmp_path / 'aarch64'}: ")
    assert source.endswith(" for cortex_a72")
    assert WHAT_IS_MISSING[name] in refused
    assert "`tvm-attention export --workload head_dim=64" in refused
    assert "causal=top_left" in refused
    assert " --targets aarch64 -o DIR`" in refused


def _package(folder: Path) -> str:
    """The package alone, as `pip install --no-deps` puts it: none of what is installed beside it."""
    site = folder / "site"
    site.mkdir()
    (site / "tvm_attention").symlink_to(Path(tvm_attention.__file__).parent)
    return str(site)
