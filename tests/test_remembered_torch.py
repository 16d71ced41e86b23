"""Repeated calls on torch tensors: what may have changed since the first is looked at each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_cases import query_key_value
from repeated_calls import is_remembered, no_checks

from tvm_attention import UnsupportedError, functional, scaled_dot_product_attention

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_calls_remembered")
Tensors = list[Any]


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def tensors(request: pytest.FixtureRequest) -> Tensors:
    """Query, key, value and a floating mask of a call that has been made."""
    made = [torch.from_numpy(x) for x in query_key_value()]
    made.append(torch.linspace(-1.0, 1.0, 20))
    for _ in range(request.param):
        scaled_dot_product_attention(*made)
    return made


def replaced(tensors: Tensors, place: int, tensor: Any) -> Tensors:
    return [*tensors[:place], tensor, *tensors[place + 1 :]]


PLACES = range(4)
ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "pending negation": torch._neg_view,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "without memory": lambda x: torch._efficientzerotensor(x.shape),
    "requires grad": lambda x: x.clone().requires_grad_(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "double": lambda x: x.double(),
    "integers": lambda x: x.int(),
}


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ELSEWHERE)
def test_tensors_that_no_kernel_reads_are_refused(kind: str, place: int, tensors: Tensors) -> None:
    bad = replaced(tensors, place, ELSEWHERE[kind](tensors[place]))
    with pytest.raises((UnsupportedError, TypeError)):
        scaled_dot_product_attention(*bad)
    assert is_remembered(lambda: scaled_dot_product_attention(*tensors))


@pytest.mark.parametrize("place", PLACES)
def test_gradients_are_nothing_where_they_are_not_recorded(place: int, tensors: Tensors) -> None:
    expected = scaled_dot_product_attention(*tensors)
    tensors = replaced(tensors, place, tensors[place].clone().requires_grad_())
    with no_checks(), torch.no_grad():
        assert torch.equal(scaled_dot_product_attention(*tensors), expected)
    with no_checks(), torch.inference_mode():
        assert scaled_dot_product_attention(*tensors).is_inference()


@pytest.mark.parametrize("place", PLACES)
def test_tangents_are_refused(place: int, tensors: Tensors) -> None:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensors[place], torch.ones_like(tensors[place]))
        with pytest.raises(UnsupportedError, match="has a tangent"):
            scaled_dot_product_attention(*replaced(tensors, place, dual))
        scaled_dot_product_attention(*tensors)  # of which none has
    assert is_remembered(lambda: scaled_dot_product_attention(*tensors))


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "vmap": lambda call, x: torch.func.vmap(call)(x.expand(3, *x.shape)),
    "functionalize": lambda call, x: torch.func.functionalize(call)(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x,)),
    "grad": lambda call, x: torch.func.grad(lambda y: call(y).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("place", PLACES)
def test_transforms_are_refused(name: str, place: int, tensors: Tensors) -> None:

    def call(x: Any) -> Any:
        return scaled_dot_product_attention(*replaced(tensors, place, x))

    with pytest.raises(UnsupportedError, match=r"without, as in transforms|tangent|requires grad"):
        TRANSFORMS[name](call, tensors[place])
    assert is_remembered(lambda: call(tensors[place]))


@pytest.mark.parametrize("inside", [False, True])
def test_fake_tensors_are_refused(inside: bool, tensors: Tensors) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [mode.from_tensor(x) for x in tensors] if inside else tensors
        with pytest.raises(UnsupportedError, match="got a FakeTensor without"):
            scaled_dot_product_attention(*given)
    assert is_remembered(lambda: scaled_dot_product_attention(*tensors))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_tracing_is_refused(tensors: Tensors) -> None:
    with pytest.raises(UnsupportedError, match=r"outside of torch\.jit\.trace"):
        torch.jit.trace(
            lambda x: scaled_dot_product_attention(x, *tensors[1:]),
            (tensors[0],),
            check_trace=False,
        )
    assert is_remembered(lambda: scaled_dot_product_attention(*tensors))


def test_a_mode_of_torch_may_make_other_results(tensors: Tensors) -> None:
    """What it makes of the result's allocation is written as it lies."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Transposed(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f is not torch.ops.aten.empty_like.default:
                return f(*args, **(kwargs or {}))
            b, h, n, d = args[0].shape
            return torch.full((b, n, h, d), torch.nan).transpose(1, 2)

    q, k, _, mask = tensors
    expected = scaled_dot_product_attention(q, k, k, mask)
    with Transposed():
        found = scaled_dot_product_attention(q, k, k, mask)
    assert not found.is_contiguous()
    assert torch.equal(found, expected)
    assert scaled_dot_product_attention(q, k, k, mask).is_contiguous()


def test_equal_shapes_of_other_types_are_other_calls() -> None:
    given = [torch.from_numpy(x) for x in query_key_value()]
    expected = scaled_dot_product_attention(*given)
    calls = {dtype: [x.to(dtype) for x in given] for dtype in (torch.float16, torch.bfloat16)}
    for repeated in (False, True):
        for dtype, these in calls.items():
            assert (
                is_remembered(lambda these=these: scaled_dot_product_attention(*these)) == repeated
            )
            found = scaled_dot_product_attention(*these)
            assert found.dtype == dtype
            assert torch.allclose(found.float(), expected, atol=0.02)
    assert torch.equal(scaled_dot_product_attention(*given), expected)


def test_equal_strides_of_other_shapes_are_other_calls() -> None:
    q, k, v = (torch.from_numpy(x) for x in query_key_value())
    scaled_dot_product_attention(q, k, v)
    more = torch.cat([v, v])
    assert more.stride() == v.stride()
    with pytest.raises(ValueError, match="batch: expected one size"):
        scaled_dot_product_attention(q, k, more)


def test_many_shapes_of_one_size_take_turns() -> None:
    """More than a table holds."""
    heads = [n for n in range(1, 721) if 720 % n == 0]
    assert len(heads) > 16
    calls = [[torch.randn(1, n, 720 // n, 8) for _ in range(3)] for n in heads]
    for _ in range(2):
        expected = [scaled_dot_product_attention(*x) for x in calls]
    (table,) = functional._remembered._torch_tables.values()
    assert len(table.plans) == 16
    for tensors, result in reversed(list(zip(calls, expected, strict=True))):
        assert torch.equal(scaled_dot_product_attention(*tensors), result)
    assert is_remembered(lambda: scaled_dot_product_attention(*calls[0]))
    (table,) = functional._remembered._torch_tables.values()
    assert len(table.plans) == 16


def test_a_changed_variable_is_seen_by_calls_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tvm_attention.environment says."""
    q, k, v = (torch.from_numpy(x) for x in query_key_value())
    expected = scaled_dot_product_attention(q, k, v)
    monkeypatch.setenv("TVM_ATTENTION_NUM_THREADS", "1")
    with no_checks():
        assert torch.equal(scaled_dot_product_attention(q, k, v), expected)
    scaled_dot_product_attention(q[:, :, :5], k, v)
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert is_remembered(lambda: scaled_dot_product_attention(q[:, :, :5], k, v))
    assert not is_remembered(lambda: scaled_dot_product_attention(q, k, v))


def test_subclasses_as_masks_are_checked(tensors: Tensors) -> None:
    parameter = torch.nn.Parameter(tensors[3], requires_grad=False)
    assert not is_remembered(lambda: scaled_dot_product_attention(*tensors[:3], parameter))
    np.testing.assert_array_equal(
        scaled_dot_product_attention(*tensors[:3], parameter),
        scaled_dot_product_attention(*tensors),
    )
