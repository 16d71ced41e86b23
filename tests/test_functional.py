"""The function: what it refuses, and what kind of array it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dlpack_arrays
import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value, unit_normal

from tvm_attention import AttentionError, scaled_dot_product_attention
from tvm_attention import attend as attend_module
from tvm_attention.prepared import PreparedCall

torch = pytest.importorskip("torch")


@pytest.fixture
def no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no kernel may be loaded or run."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(PreparedCall, "run", refuse)
    monkeypatch.setattr(attend_module, "load", refuse)


Q, K, V = query_key_value()
NOT_COMPUTED = NotImplementedError
BAD_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "one axis": ((Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0]), {}, ValueError, "2 to 4 axes.*got shape"),
    "five axes": ((Q[None], K[None], V[[[0, 1, 0]]]), {}, ValueError, "axes before the last"),
    "mask of five axes": (
        (Q[None], K[None], V[None], np.ones((3, 1, 1, 12, 20), bool)),
        {},
        ValueError,
        r"leading axes that broadcast to \(1, 2\), got shape \(3, 1, 1",
    ),
    "ranks": ((Q[0, 0], K, V), {"enable_gqa": True}, ValueError, "as many axes each, got"),
    "one axis of key": ((Q, K[0, 0, 0], V), {}, ValueError, r"as many axes each, got \(2, .*\(16,"),
    "batch": ((Q, K[[0, 1, 0]], V[:1]), {}, ValueError, "one size, got query 2, key 3, value 1"),
    "lengths": ((Q, K, V[:, :, :19]), {}, ValueError, "key and value alike, got 20 and 19"),
    "head dimension": ((Q, K[..., :8], V), {}, ValueError, "got query 16 and key 8"),
    "value heads": ((Q, K, V[:, :2]), {}, ValueError, "key and value alike, got 4 and 2"),
    "heads": ((Q, K[:, :2], V[:, :2]), {}, ValueError, "got query 4 and key 2; pass enable_gqa"),
    "ratio": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, ValueError, "multiple.*got 4 and 3"),
    "more key heads": ((Q[:, :2], K, V), {"enable_gqa": True}, ValueError, "got 2 and 4"),
    "long head": ((unit_normal(2, 513),) * 3, {}, NOT_COMPUTED, "at most 512, got 513"),
    "long value": ((Q[0, 0], K[0, 0], unit_normal(20, 513)), {}, NOT_COMPUTED, "512, got 513"),
    "double": ((Q.astype("f8"), K.astype("f8"), V.astype("f8")), {}, NOT_COMPUTED, "got float64"),
    "integers": ((Q.astype("i4"), K.astype("i4"), V.astype("i4")), {}, TypeError, "got int32"),
    "truths": ((Q > 0, K > 0, V > 0), {}, TypeError, "bfloat16, got bool"),
    "complex": ((Q + 0j, K + 0j, V + 0j), {}, TypeError, "bfloat16, got complex64"),
    "byte order": ((Q.astype(">f4"), K, V), {}, TypeError, "one, got query >f4, key float32"),
    "one half": ((Q, K, V.astype("f2")), {}, TypeError, "value float16"),
    "lists": ((Q.tolist(), K.tolist(), V.tolist()), {}, TypeError, "a NumPy array.*got list"),
    "nothing": ((None, K, V), {}, TypeError, "a NumPy array.*got NoneType"),
    "other kinds": ((Q, torch.from_numpy(K), V), {}, TypeError, r"like the query, got torch"),
    "kinds of torch": ((torch.from_numpy(Q), K, V), {}, TypeError, "like the query, got numpy"),
    "mask": ((Q, K, V, np.ones((12, 21), bool)), {}, ValueError, r"broadcasts to .*got \(12, 21\)"),
    "mask of int": ((Q, K, V, np.ones((12, 20), int)), {}, TypeError, "bool .*got int64"),
    "mask of double": ((Q, K, V, np.ones((12, 20))), {}, TypeError, "float32 .*got float64"),
    "mask of half": ((Q, K, V, np.ones((12, 20), "f2")), {}, TypeError, "float32 .*got float16"),
    "mask of torch": ((Q, K, V, torch.ones(12, 20).bool()), {}, TypeError, "like the query, got"),
    "dropout": ((Q, K, V), {"dropout_p": 0.1}, NOT_COMPUTED, r"inference only, got 0\.1"),
    "dropout below 0": ((Q, K, V), {"dropout_p": -0.1}, ValueError, r"0 to 1, got -0\.1"),
    "dropout above 1": ((Q, K, V), {"dropout_p": 1.5}, ValueError, r"0 to 1, got 1\.5"),
    "dropout nan": ((Q, K, V), {"dropout_p": math.nan}, ValueError, "0 to 1, got nan"),
    "dropout text": ((Q, K, V), {"dropout_p": "0"}, TypeError, "a number, got '0'"),
    "dropout none": ((Q, K, V), {"dropout_p": None}, TypeError, "a number, got None"),
    "dropout array": ((Q, K, V), {"dropout_p": np.zeros(2)}, TypeError, "a number, got array"),
    "dropout truth": ((Q, K, V), {"dropout_p": False}, TypeError, "a number, got False"),
    "scale nan": ((Q, K, V), {"scale": math.nan}, ValueError, "finite float32 number, got nan"),
    "scale infinite": ((Q, K, V), {"scale": -math.inf}, ValueError, "number, got -inf"),
    "scale too large": ((Q, K, V), {"scale": 1e300}, ValueError, r"number, got 1e\+300"),
    "scale text": ((Q, K, V), {"scale": "1"}, TypeError, "a number or None, got '1'"),
    "scale list": ((Q, K, V), {"scale": [1.0]}, TypeError, r"a number or None, got \[1\.0\]"),
    "scale truth": ((Q, K, V), {"scale": True}, TypeError, "a number or None, got True"),
    "causal 1": ((Q, K, V), {"is_causal": 1}, TypeError, "True or False, got 1"),
    "causal text": ((Q, K, V), {"is_causal": "yes"}, TypeError, "True or False, got 'yes'"),
    "grouped none": ((Q, K, V), {"enable_gqa": None}, TypeError, "True or False, got None"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_calls_are_refused_before_anything_is_computed(
    what: str, request: pytest.FixtureRequest
) -> None:
    arguments, options, error, message = BAD_CALLS[what]
    scaled_dot_product_attention(Q, K, V)  # a remembered call must not let a bad one pass
    scaled_dot_product_attention(Q, K, V, is_causal=True, scale=1.0)
    request.getfixturevalue("no_call")
    with pytest.raises(error, match=f"expected .*{message}") as raised:
        scaled_dot_product_attention(*arguments, **options)
    assert isinstance(raised.value, AttentionError)


def test_unknown_options_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="window"):
        scaled_dot_product_attention(Q, K, V, window=3)  # type: ignore[call-arg]


@pytest.mark.usefixtures("no_call")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_bad_tensors_of_torch_are_refused(place: int) -> None:
    name = ("query", "key", "value")[place]
    tensors = [torch.from_numpy(x) for x in (Q, K, V)]
    bad = [
        (tensors[place].to("meta"), "got torch.strided on meta"),
        (tensors[place].to_sparse(), "got torch.sparse_coo"),
        (tensors[place].clone().requires_grad_(), "only the forward pass is computed"),
    ]
    for tensor, message in bad:
        arguments = [*tensors[:place], tensor, *tensors[place + 1 :]]
        with pytest.raises(NotImplementedError, match=f"^{name}.*{message}") as raised:
            scaled_dot_product_attention(*arguments)
        assert isinstance(raised.value, AttentionError)


def test_the_worked_example() -> None:
    query, key = np.array([[1, 2]], np.float32), np.eye(2, dtype=np.float32)
    value = np.array([[10], [20]], np.float32)
    weight = 1 / (1 + math.exp(math.sqrt(0.5)))
    for wrap in (np.asarray, torch.from_numpy, dlpack_arrays.Array):
        found = scaled_dot_product_attention(wrap(query), wrap(key), wrap(value))
        assert type(found) is type(wrap(query))
        result = np.from_dlpack(found)
        assert result.shape == (1, 1)
        assert abs(result[0, 0] - (10 * weight + 20 * (1 - weight))) < 4e-6
        assert abs(result[0, 0] - 16.697) < 1e-3


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy, dlpack_arrays.Array])
def test_leading_axes_that_differ_broadcast(wrap: Callable[[Array], Any]) -> None:
    mask = np.tril(np.ones((2, 1, 12, 20), bool))
    for (q, k, v), options in (
        ((Q, K[:1], V[:1]), {}),
        ((Q[0], K, V[:, :1]), {}),
        ((Q[0, 0], K, V[0]), {}),
        ((Q, K[0, :2], V[1:, :1]), {"enable_gqa": True}),
    ):
        heads = 2 if options else 4
        whole = [np.broadcast_to(q, Q.shape).copy()]
        whole += [np.broadcast_to(x, (2, heads, *x.shape[-2:])).copy() for x in (k, v)]
        for given in ({}, {"attn_mask": mask}, {"is_causal": True}):
            wrapped = {n: wrap(x) if n == "attn_mask" else x for n, x in given.items()}
            expected = scaled_dot_product_attention(*whole, **given, **options)
            for _ in range(3):  # the last one may be a remembered call
                found = scaled_dot_product_attention(*map(wrap, (q, k, v)), **wrapped, **options)
                np.testing.assert_array_equal(np.from_dlpack(found), expected)


@pytest.mark.parametrize("axes", [2, 3, 4])
@pytest.mark.parametrize(
    "wrap",
    [np.asarray, torch.from_numpy, dlpack_arrays.Array, dlpack_arrays.ArrayOfTheStandard,
     dlpack_arrays.LazyArray],
)  # fmt: skip
def test_the_kind_given_is_returned(wrap: Callable[[Array], Any], axes: int) -> None:
    q, k, v = (x[0, 0] if axes == 2 else x[:, 0] if axes == 3 else x for x in (Q, K, V))
    found = scaled_dot_product_attention(wrap(q), wrap(k), wrap(v))
    expected = dlpack_arrays.Array if wrap is dlpack_arrays.LazyArray else type(wrap(q))
    assert type(found) is expected
    result = np.from_dlpack(found)
    assert result.shape == (*q.shape[:-1], 24)
    four = (1, 1) if axes == 2 else (2, 1) if axes == 3 else (2, 4)
    assert_right(*(x.reshape(*four, *x.shape[-2:]) for x in (result, q, k, v)))


def test_torch_parameters_and_subclasses_of_numpy_give_plain_results() -> None:
    class Own(np.ndarray):
        pass

    found = scaled_dot_product_attention(Q.view(Own), K.view(Own), V)
    assert type(found) is np.ndarray
    with torch.no_grad():
        parameters = [torch.nn.Parameter(torch.from_numpy(x)) for x in (Q, K, V)]
        tensor = scaled_dot_product_attention(*parameters)
    assert type(tensor) is torch.Tensor
    assert not tensor.requires_grad
    np.testing.assert_array_equal(tensor.numpy(), found)
