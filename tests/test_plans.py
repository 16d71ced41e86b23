"""The machine code of remembered calls: what it compares, what it leaves, where there is none."""

from __future__ import annotations

import gc
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value
from remembered_arrays import KINDS, Wrap
from repeated_calls import is_remembered, no_checks
from test_functional_processes import in_threads

from tvm_attention import Kernel, functional, load, plans, remembered, scaled_dot_product_attention
from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.errors import KernelBuildError
from tvm_attention.plans import native, planners
from tvm_attention.remembered import RememberedCalls
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_calls_remembered")


def test_this_machine_remembers_both_kinds() -> None:
    assert plans.numpy_planner() is not None
    assert plans.torch_planner(torch) is not None


@pytest.mark.parametrize("api", [{}, {"__dlpack_c_exchange_api__": 3}])
def test_a_torch_without_exchange_functions_has_no_planner(api: dict[str, Any]) -> None:
    other = SimpleNamespace(
        Tensor=type("Tensor", (), api), empty_like=torch.empty_like, autograd=torch.autograd
    )
    assert plans.torch_planner(other) is None
    other.Tensor = torch.Tensor
    assert plans.torch_planner(other) is not None
    other.autograd = SimpleNamespace(forward_ad=None)
    assert plans.torch_planner(other) is None


def refuse(*arguments: Any) -> Any:
    raise KernelBuildError("not here")


@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (remembered, "run_remembered", refuse),
        (remembered, "torch_planner", lambda torch: None),
        (planners, "_exchange_function", lambda tensor: 0),
        (remembered, "numpy_planner", lambda: None),
    ],
)
def test_calls_are_checked_where_none_can_be_remembered(
    wrap: Wrap, module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(functional, "_remembered", RememberedCalls())
    arrays = query_key_value()
    wrapped = [wrap(x) for x in arrays]
    for _ in range(3):
        assert_right(np.asarray(scaled_dot_product_attention(*wrapped)), *arrays)
    concerned = name == "run_remembered" or ("numpy" in name) == (wrap is np.asarray)
    assert is_remembered(lambda: scaled_dot_product_attention(*wrapped)) == (not concerned)


def test_numpy_types_and_alignment_are_compared() -> None:
    q, k, v = query_key_value()
    expected = scaled_dot_product_attention(q, k, v)
    bytes_ = np.zeros(q.nbytes + 1, np.uint8)
    odd = bytes_[1:].view(np.float32).reshape(q.shape)
    odd[...] = q
    assert not odd.flags.aligned
    assert not is_remembered(lambda: scaled_dot_product_attention(odd, k, v))
    for foreign in (q.astype(">f4"), q.view(np.int32), q.astype(np.float16)):
        with pytest.raises(TypeError, match="dtype: expected one"):
            scaled_dot_product_attention(foreign, k, v)
    with no_checks():
        np.testing.assert_array_equal(scaled_dot_product_attention(q, k, v), expected)


class Failing:
    """A kernel's main function that fails when told to."""

    def __init__(self, main: Any) -> None:
        self.main, self.fails, self.calls = main, False, 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.fails:
            raise ValueError("the kernel fails")
        self.main(*arguments)


@pytest.mark.parametrize("wrap", KINDS)
@pytest.mark.parametrize("gives_out", [False, True])
def test_what_a_kernel_raises_is_raised(gives_out: bool, wrap: Wrap) -> None:
    workload = AttentionWorkload(
        head_dim=16, value_dim=24, batch=2, query_heads=4, query_length=12, key_length=20
    )
    loaded = load(workload)
    failing = Failing(loaded._compiled.main)
    kernel = Kernel(workload, loaded.source, replaced_main(loaded._compiled, failing))
    arrays = query_key_value()
    wrapped = [wrap(x) for x in arrays]
    if gives_out:
        wrapped.append(wrap(np.empty((2, 4, 12, 24), np.float32)))
    kernel(*wrapped)
    with no_checks():
        assert_right(np.asarray(kernel(*wrapped)), *arrays)
    failing.fails = True
    references = [sys.getrefcount(x) for x in wrapped]
    for _ in range(3):
        with pytest.raises(ValueError, match="the kernel fails"):
            kernel(*wrapped)
    assert [sys.getrefcount(x) for x in wrapped] == references
    assert failing.calls == 2 + 3 * 2  # remembered, then checked
    failing.fails = False
    with no_checks():
        assert_right(np.asarray(kernel(*wrapped)), *arrays)


def replaced_main(compiled: Any, main: Any) -> Any:
    class Replaced:
        workspace = staticmethod(compiled.workspace)

    Replaced.main = load_tvm_libraries().convert(main)
    return Replaced


@pytest.mark.parametrize("wrap", KINDS)
def test_remembered_calls_keep_nothing(wrap: Wrap) -> None:
    wrapped = [wrap(x) for x in query_key_value(rows=1)]
    mask = wrap(np.ones(20, bool))
    others = (*wrapped, mask, None, torch.empty_like, np.empty_like, wrapped[0].dtype)
    for given in (wrapped, [*wrapped, mask]):
        scaled_dot_product_attention(*given)
        scaled_dot_product_attention(*given)
        gc.collect()
        before = [sys.getrefcount(x) for x in others]
        with no_checks():
            for _ in range(500):
                scaled_dot_product_attention(*given)
        after = [sys.getrefcount(x) for x in others]
        assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 100, (before, after)
        result, other = scaled_dot_product_attention(*given), object()
        references = sys.getrefcount(result)
        assert references == sys.getrefcount(other)


@pytest.mark.parametrize("wrap", KINDS)
def test_looking_for_a_call_keeps_nothing(wrap: Wrap) -> None:
    q, k, v = (wrap(x) for x in query_key_value())
    scaled_dot_product_attention(q, k, v)
    options = (False, None, False)
    assert functional._remembered.run(q, k, v, options) is not None
    others = [q, k, None, q.dtype]
    before = [sys.getrefcount(x) for x in others]
    for _ in range(500):
        assert functional._remembered.run(q, k, k, options) is None
    after = [sys.getrefcount(x) for x in others]
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 100, (before, after)


@pytest.mark.parametrize("wrap", KINDS)
def test_forgetting_while_others_call(wrap: Wrap) -> None:
    cases = [query_key_value(rows=n, keys=30) for n in (1, 5, 9)]
    expected = [scaled_dot_product_attention(*case) for case in cases]

    def work(number: int) -> None:
        arrays = [wrap(x) for x in cases[number]]
        for n in range(150):
            found = np.asarray(scaled_dot_product_attention(*arrays))
            np.testing.assert_array_equal(found, expected[number])
            if n % 7 == number:
                functional.forget_calls()

    in_threads(len(cases), work)


@pytest.mark.parametrize("wrap", KINDS)
def test_a_thread_without_memory_for_workers_is_given_it(wrap: Wrap) -> None:
    """The first call of a thread is checked, which makes its workspace."""
    arrays = query_key_value(rows=1, keys=3000)
    wrapped = [wrap(x) for x in arrays]
    scaled_dot_product_attention(*wrapped)
    found: list[Any] = []

    def work() -> None:
        assert not is_remembered(lambda: scaled_dot_product_attention(*wrapped))
        found.append(scaled_dot_product_attention(*wrapped))
        with no_checks():
            found.append(scaled_dot_product_attention(*wrapped))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(found) == 2 * 2
    for result in found:
        assert_right(np.asarray(result), *arrays)
    tables = functional._remembered
    (table,) = (*tables._numpy_tables.values(), *tables._torch_tables.values())
    assert len(table.plans) == 1  # what a thread adds replaces its like


def test_layouts_of_like_arrays_are_equal() -> None:
    planner = plans.torch_planner(torch)
    assert planner is not None
    given: list[Array] = [torch.zeros(2, 3, 4), torch.zeros(2, 3, 4).bfloat16(), torch.zeros(2, 12)]
    given += [torch.zeros(2, 4, 3).mT, torch.zeros(2, 3, 5)[..., :4], torch.zeros(1, 3, 4)]
    layouts = [tuple(planner.layout(x)) for x in given]
    assert len(set(layouts)) == len(given)
    assert [tuple(planner.layout(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)))
            for x in given] == layouts  # fmt: skip


def test_a_python_that_lacks_a_function_is_an_error_and_no_crash() -> None:
    native._require_functions("declare ptr @PyErr_Clear()\ndeclare i32 @TVMFFIFunctionCall(ptr)\n")
    with pytest.raises(KernelBuildError, match="no function PyObject_Vanished"):
        native._require_functions(
            "declare void @PyErr_Clear()\ndeclare ptr @PyObject_Vanished(ptr)\n"
        )
