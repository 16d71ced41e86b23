"""torch's own samples of scaled_dot_product_attention: at most twice torch's error, or a refusal."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's samples need it")

from attention_bounds import half_unit  # noqa: E402
from write_torch_samples import DRAWS, DTYPES  # noqa: E402

from tvm_attention import UnsupportedError, scaled_dot_product_attention  # noqa: E402

torch_attention = torch.nn.functional.scaled_dot_product_attention

EVERY = 25  # samples of a dtype in torch 2.13; of these:
DROPPING = 12


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    file = tmp_path_factory.mktemp("torch_samples") / "samples.pt"
    program = Path(__file__).with_name("write_torch_samples.py")
    subprocess.run([sys.executable, program, file], check=True)
    found: dict[Any, Any] = torch.load(file)
    for (_, grad), draws in found.items():
        assert [len(x) for x in draws] == [EVERY] * (1 if grad else DRAWS)
    return found


def errors(arrays: tuple[Any, ...], options: dict[str, Any]) -> tuple[float, float, float]:
    """Largest error of ours, of torch's, and half a unit of the largest result."""
    wide = {k: x.double() if isinstance(x, torch.Tensor) else x for k, x in options.items()}
    exact = torch_attention(*(x.double() for x in arrays), **wide)
    theirs = torch_attention(*arrays, **options)
    ours = scaled_dot_product_attention(*arrays, **options)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    unit = half_unit(exact.abs().max().numpy(), str(ours.dtype).removeprefix("torch."))
    worst = [float((x.double() - exact).abs().max()) for x in (ours, theirs)]
    assert not any(map(math.isnan, worst))
    return worst[0], worst[1], float(unit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_as_near_as_torchs(samples: dict[Any, Any], dtype: Any) -> None:
    """By the largest error over draws of the same sample: on one draw of a few dozen numbers, which
    of two equally good results is nearer is luck."""
    computed = 0
    for draws in zip(*samples[dtype, False], strict=True):
        (query, others, options), *_ = draws
        if options["dropout_p"] > 0:
            continue
        found = [errors((q, *kv), given) for q, kv, given in draws]
        ours, theirs, unit = (max(x) for x in zip(*found, strict=True))
        what = (tuple(query.shape), tuple(others[0].shape), options)
        assert ours <= max(2 * theirs, unit), what
        computed += 1
    assert computed == EVERY - DROPPING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_and_gradients_are_refused(samples: dict[Any, Any], dtype: Any) -> None:
    refused = {"dropout": 0, "grad": 0}
    for grad in (False, True):
        for query, others, options in samples[dtype, grad][0]:
            if not grad and options["dropout_p"] == 0:
                continue
            arrays = [x.clone().requires_grad_(grad) for x in (query, *others)]
            reason = "dropout" if options["dropout_p"] > 0 else "grad"
            with pytest.raises(UnsupportedError, match=reason):
                scaled_dot_product_attention(*arrays, **options)
            refused[reason] += 1
    assert refused == {"dropout": 2 * DROPPING, "grad": EVERY - DROPPING}
