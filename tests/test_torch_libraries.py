"""timm's and diffusers' models while torch's attention is routed to ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import image_models  # noqa: E402
from torch_routing import calls_of_ours, torch_left_as_it_was  # noqa: E402

from tvm_attention import torch as ours  # noqa: E402

# A model, the layers of it that attend, and what results may differ by, as a part of their range.
MODELS: dict[str, tuple[Callable[[], image_models.Call], int, float]] = {
    "timm ViT": (image_models.vit, 2, 1e-5),
    "timm SigLIP": (image_models.siglip, 3, 1e-5),
    "timm EVA-02": (image_models.eva02, 2, 1e-5),
    "diffusers U-Net": (image_models.unet, 8, 1e-5),
    "diffusers U-Net, padded prompt": (partial(image_models.unet, padded=True), 8, 1e-5),
    "diffusers U-Net, bfloat16": (partial(image_models.unet, dtype=torch.bfloat16), 8, 0.03),
    "diffusers SD3": (image_models.sd3, 2, 1e-5),
    "diffusers autoencoder": (image_models.autoencoder, 1, 1e-5),
    "timm Swin, attention of its own": (image_models.swin, 0, 0.0),
}


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_left_as_it_was():
        yield


@pytest.mark.parametrize(("make", "layers", "allowed"), MODELS.values(), ids=MODELS)
def test_every_attention_of_a_model_is_ours(
    make: Callable[[], image_models.Call],
    layers: int,
    allowed: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    call = make()
    calls: list[Any] = calls_of_ours(monkeypatch)
    with torch.inference_mode():
        expected = call()
        assert not calls
        with ours.enabled(), warnings.catch_warnings():
            warnings.simplefilter("error", ours.FallbackWarning)
            found = call()
    assert len(calls) == layers
    span = float(expected.max() - expected.min())
    assert span > 0
    assert float((found - expected).abs().max()) <= allowed * span
