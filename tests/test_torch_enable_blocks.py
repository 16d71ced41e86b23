"""The way into routing and back: blocks, other libraries, threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported  # noqa: E402
from torch_routing import state, tensors, torch_left_as_it_was  # noqa: E402

from tvm_attention import InvalidValueError  # noqa: E402
from tvm_attention import torch as ours  # noqa: E402


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_left_as_it_was():
        yield


def test_enabling_disabling_and_blocks() -> None:
    before = state()
    ours.enable()
    ours.enable()
    assert ours.is_enabled()
    changed = F.scaled_dot_product_attention
    assert changed is not before[0]
    assert changed.__name__ == before[0].__name__
    with ours.enabled():
        with ours.enabled():
            ours.disable()
            assert F.scaled_dot_product_attention is changed
        assert ours.is_enabled()
    assert state() == before
    ours.disable()
    assert state() == before
    with pytest.raises(InvalidValueError, match="given back"), ours.enabled():
        raise InvalidValueError("given back after an error, too")
    assert state() == before


def test_what_others_changed_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = lambda *a, **k: None  # noqa: E731
    fast = torch.backends.mha.get_fastpath_enabled()
    with monkeypatch.context() as patch:
        with ours.enabled():
            patch.setattr(F, "scaled_dot_product_attention", mine)
        assert F.scaled_dot_product_attention is mine
        patch.undo()
        # What was there when routing began is not torch's own, and is put back as it was.
        patch.setattr(F, "scaled_dot_product_attention", mine)
        with ours.enabled():
            assert F.scaled_dot_product_attention is not mine
        assert F.scaled_dot_product_attention is mine
    F.scaled_dot_product_attention = imported
    torch.backends.mha.set_fastpath_enabled(False)
    with ours.enabled():
        pass
    assert not torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)


def test_threads_that_come_and_go() -> None:
    """Blocks of many threads overlap; in each, its own calls are right and routed."""
    arrays = tensors()
    expected, wrong = imported(*arrays), []

    def work() -> None:
        for _ in range(40):
            with ours.enabled():
                found = F.scaled_dot_product_attention(*arrays)
                if not ours.is_enabled() or not torch.allclose(found, expected, atol=1e-5):
                    wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_is_there_by_its_name_alone_and_torch_only_with_it() -> None:
    code = (
        "import sys, tvm_attention as ta; assert 'torch' not in sys.modules; ta.torch.enable(); "
        "import torch; print(torch.nn.functional.scaled_dot_product_attention.__module__, "
        "ta.torch.is_enabled(), 'transformers' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1:] == ["True", "False"]
