"""torch's own samples of scaled_dot_product_attention: at most twice torch's error, or a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's samples need it")

from attention_bounds import half_unit  # noqa: E402
from write_torch_samples import DTYPES  # noqa: E402

from tvm_attention import UnsupportedError, scaled_dot_product_attention  # noqa: E402

EVERY = 25  # samples of a dtype in torch 2.13; of these:
DROPPING = 12


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    file = tmp_path_factory.mktemp("torch_samples") / "samples.pt"
    program = Path(__file__).with_name("write_torch_samples.py")
    subprocess.run([sys.executable, program, file], check=True)
    found: list[tuple[Any, ...]] = torch.load(file)
    assert len(found) == EVERY * len(DTYPES) * 2
    return found


def error(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_as_near_as_torchs(samples: list[tuple[Any, ...]], dtype: Any) -> None:
    computed = 0
    for of, grad, query, others, options in samples:
        if of != dtype or grad or options["dropout_p"] > 0:
            continue
        wide = {k: x.double() if isinstance(x, torch.Tensor) else x for k, x in options.items()}
        arrays = (query, *others)
        exact = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.Tensor.double, arrays), **wide
        )
        theirs = torch.nn.functional.scaled_dot_product_attention(*arrays, **options)
        ours = scaled_dot_product_attention(*arrays, **options)
        assert ours.dtype == dtype
        assert ours.shape == theirs.shape
        # Where torch is right to the last bit by chance, rounding alone may cost us half a unit.
        rounding = float(half_unit(exact.abs().max().numpy(), str(dtype).removeprefix("torch.")))
        limit = max(2 * error(theirs, exact), rounding)
        assert error(ours, exact) <= limit, (tuple(query.shape), tuple(others[0].shape), options)
        computed += 1
    assert computed == EVERY - DROPPING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_and_gradients_are_refused(samples: list[tuple[Any, ...]], dtype: Any) -> None:
    refused = {"dropout": 0, "grad": 0}
    for of, grad, query, others, options in samples:
        if of != dtype or not (grad or options["dropout_p"] > 0):
            continue
        arrays = [x.clone().requires_grad_(grad) for x in (query, *others)]
        reason = "dropout" if options["dropout_p"] > 0 else "grad"
        with pytest.raises(UnsupportedError, match=reason):
            scaled_dot_product_attention(*arrays, **options)
        refused[reason] += 1
    assert refused == {"dropout": 2 * DROPPING, "grad": EVERY - DROPPING}
