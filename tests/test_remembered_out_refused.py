"""Repeated calls that give out: what may not be written is refused as it is at a first call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_cases import query_key_value
from remembered_arrays import KINDS, SHAPE, Memory, Wrap, assert_attended, kernel_for, nothing
from repeated_calls import is_remembered, no_checks

from tvm_attention import UnsupportedError, attention

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_calls_remembered")


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def times(request: pytest.FixtureRequest) -> int:
    """How often a call came before: its plan is made when it comes again."""
    return int(request.param)


@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize("number", range(4))
def test_memory_of_what_is_read_is_refused_at_any_call(number: int, wrap: Wrap, times: int) -> None:
    """By a single element at either end, and not where they only touch."""
    memory, size = Memory(wrap), int(np.prod(SHAPE))
    read = [memory.at(5000 * n, n) for n in range(4)]
    length = int(np.prod(Memory.SHAPES[number]))
    for call in (attention, kernel_for(mask="float32", mask_dense=True)):
        for _ in range(times):
            call(*read[:3], mask=read[3], out=memory.at(30000, 4))
        for place in (20000 - size + 1, 20000 + length - 1, 20000, 20100):
            moved = [*read[:number], memory.at(20000, number), *read[number + 1 :]]
            name = ("query", "key", "value", "mask")[number]
            out = memory.at(place, 4)
            references = sys.getrefcount(out)
            with pytest.raises(ValueError, match=f"memory of its own, got memory of {name}"):
                call(*moved[:3], mask=moved[3], out=out)
            assert sys.getrefcount(out) == references
        for place in (20000 - size, 20000 + length):
            before = [np.asarray(x).copy() for x in moved]
            with no_checks():
                call(*moved[:3], mask=moved[3], out=memory.at(place, 4))
            assert_attended(memory.at(place, 4), before[:3], mask=before[3])


def test_memory_before_an_array_that_goes_backwards_is_its_own(times: int) -> None:
    memory, size = Memory(np.asarray), int(np.prod(SHAPE))
    read = [memory.at(5000 * n, n) for n in range(3)]
    backwards = [memory.at(place, 4)[:, ::-1] for place in (30000, 20000 - size, 20001 - size)]
    moved = [memory.at(20000, 0), *read[1:]]
    for _ in range(times):
        attention(*read, out=backwards[0])
    with no_checks():
        attention(*moved, out=backwards[1])
    assert_attended(backwards[1], moved)
    with pytest.raises(ValueError, match="got memory of query"):
        attention(*moved, out=backwards[2])


def test_what_may_not_be_written_is_refused_at_any_call(times: int) -> None:
    arrays = query_key_value()
    out = nothing(np.asarray)
    for _ in range(times):
        attention(*arrays, out=out)
    before = out.copy()
    out.flags.writeable = False
    for _ in range(2):
        with pytest.raises(ValueError, match="out: expected a writable array"):
            attention(*(-x for x in arrays), out=out)
    np.testing.assert_array_equal(out, before)
    out.flags.writeable = True
    assert is_remembered(lambda: attention(*arrays, out=out))
    for x in arrays:  # which are only read
        x.flags.writeable = False
    attention(*arrays, out=out)
    assert is_remembered(lambda: attention(*arrays, out=out))
    assert_attended(out, arrays)


@pytest.mark.parametrize("wrap", KINDS)
def test_what_does_not_fit_is_refused_at_any_call(wrap: Wrap, times: int) -> None:
    given = [wrap(x) for x in query_key_value()]
    for _ in range(times):
        attention(*given, out=nothing(wrap))
    other = torch.from_numpy if wrap is np.asarray else np.asarray
    for bad, error in (
        (nothing(wrap, (2, 4, 12, 25)), ValueError), (nothing(wrap, (2, 4, 24, 12)), ValueError),
        (nothing(wrap, (2, 4, 12, 48))[..., ::2], ValueError), (nothing(wrap)[0], ValueError),
        (wrap(np.zeros(SHAPE, np.float16)), TypeError), (wrap(np.zeros(SHAPE, np.int32)), TypeError),
        (wrap(np.zeros((1, 4, 12, 24), np.float32))[[0, 0]][:1], ValueError),
        (nothing(other), TypeError), ([0.0], TypeError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"^out: expected"):
            attention(*given, out=bad)
    repeated = nothing(wrap)[:, :1]
    repeated = np.broadcast_to(repeated, SHAPE) if wrap is np.asarray else repeated.expand(SHAPE)
    with pytest.raises(ValueError, match=r"^out: expected (distinct elements|a writable)"):
        attention(*given, out=repeated)
    assert is_remembered(lambda: attention(*given, out=nothing(wrap)))


def test_numpy_subclasses_and_odd_addresses_are_looked_at(times: int) -> None:
    class Own(np.ndarray):
        pass

    arrays = query_key_value()
    for _ in range(times):
        attention(*arrays, out=nothing(np.asarray))
    own = nothing(np.asarray).view(Own)
    odd = np.zeros(4 * int(np.prod(SHAPE)) + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    for out in (own, odd):
        assert not is_remembered(lambda out=out: attention(*arrays, out=out))
        assert attention(*arrays, out=out) is out
        assert_attended(out, arrays)
    masked = np.ma.masked_array(nothing(np.asarray))
    with pytest.raises(NotImplementedError, match="out: expected an array without a mask"):
        attention(*arrays, out=masked)


ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "pending negation": torch._neg_view,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "without memory": lambda x: torch._efficientzerotensor(x.shape),
    "requires grad": lambda x: x.clone().requires_grad_(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "double": lambda x: x.double(),
}


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("kind", ELSEWHERE)
def test_tensors_that_no_kernel_writes_are_refused(kind: str, times: int) -> None:
    given = [torch.from_numpy(x) for x in query_key_value()]
    for _ in range(times):
        attention(*given, out=torch.empty(SHAPE))
    with pytest.raises((UnsupportedError, TypeError)):
        attention(*given, out=ELSEWHERE[kind](torch.zeros(SHAPE)))
    assert is_remembered(lambda: attention(*given, out=torch.empty(SHAPE)))


def test_what_torch_says_of_a_tensor_is_looked_at_each_time(times: int) -> None:
    arrays = query_key_value()
    given = [torch.from_numpy(x) for x in arrays]
    out = torch.empty(SHAPE)
    for _ in range(times):
        attention(*given, out=out)
    out.requires_grad_()
    with pytest.raises(UnsupportedError, match="out requires grad"):
        attention(*given, out=out)
    with no_checks(), torch.no_grad():
        assert attention(*given, out=out) is out
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.empty(SHAPE), torch.ones(SHAPE))
        with pytest.raises(UnsupportedError, match="out has a tangent"):
            attention(*given, out=dual)
    with torch.inference_mode():
        made = torch.empty(SHAPE)
        with no_checks():
            attention(*given, out=made)
    assert_attended(made, arrays)
    parameter = torch.nn.Parameter(torch.empty(SHAPE), requires_grad=False)
    assert not is_remembered(lambda: attention(*given, out=parameter))
    assert attention(*given, out=parameter) is parameter
    assert_attended(parameter.data, arrays)


def test_a_tensor_that_shares_memory_until_it_is_written_gets_its_own(times: int) -> None:
    arrays = query_key_value()
    given = [torch.from_numpy(x) for x in arrays]
    for _ in range(times):
        attention(*given, out=torch.empty(SHAPE))
    original = torch.ones(SHAPE)
    copy = torch._lazy_clone(original)
    attention(*given, out=copy)
    assert_attended(copy, arrays)
    assert torch.equal(original, torch.ones(SHAPE))
