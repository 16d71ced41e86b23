"""Importing TVM leaves torch and the process's hooks alone, and torch works afterwards."""

from __future__ import annotations

import threading

import pytest
from fresh_process import PRELUDE, run_script

from tvm_attention._tvm import _TorchHider

IMPORT = """
import sys
from tvm_attention._tvm import import_tvm, load_tvm_libraries
hook, finders = sys.excepthook, list(sys.meta_path)
assert load_tvm_libraries() is sys.modules["tvm_ffi"]
assert "tvm" not in sys.modules
assert import_tvm() is sys.modules["tvm"] is import_tvm()
assert "torch" not in sys.modules
assert sys.excepthook is hook
assert not [f for f in sys.meta_path if type(f).__name__ == "_TorchHider"]
assert [f for f in sys.meta_path if f in finders] == finders
"""


def test_torch_is_not_imported_and_hooks_stay() -> None:
    run_script(IMPORT)


USE = """
import torch
from tvm_attention._tvm import import_tvm
for library in (torch, np):
    counts = library.zeros(64, dtype=library.int32)
    kernel(counts, library.zeros(64, dtype=library.int64), 64)
    assert (counts == 1).all()
assert float((torch.eye(8) @ torch.ones(8, 8)).sum()) == 64.0
assert import_tvm() is sys.modules["tvm"]
"""


@pytest.mark.parametrize("first", ["", "import torch"])
def test_torch_and_kernels_work_whichever_comes_first(first: str) -> None:
    pytest.importorskip("torch")
    run_script(first, PRELUDE, USE)


def test_torch_is_hidden_from_the_importing_thread_only() -> None:
    hider = _TorchHider()
    with pytest.raises(ModuleNotFoundError):
        hider.find_spec("torch")
    assert hider.find_spec("numpy") is None
    elsewhere: list[object] = []
    thread = threading.Thread(target=lambda: elsewhere.append(hider.find_spec("torch")))
    thread.start()
    thread.join()
    assert elsewhere == [None]
