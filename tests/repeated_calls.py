"""Seeing whether a call is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tvm_attention import attend as attend_module
from tvm_attention import kernel as kernel_module


class Checked(Exception):
    """The call was not remembered."""


@contextmanager
def no_checks() -> Iterator[None]:
    """Inside, a call that is not remembered raises Checked."""

    def refuse(*arguments: Any) -> None:
        raise Checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend_module, "call_kind", refuse)
        patch.setattr(kernel_module, "kind_of", refuse)
        yield


def is_remembered(call: Callable[[], Any]) -> bool:
    """Whether a call runs without checks."""
    with no_checks():
        try:
            call()
        except Checked:
            return False
    return True
