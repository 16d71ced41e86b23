"""timm's and diffusers' small models with random weights: each calls torch's attention in its own way."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

# Before timm: it is not to see what stands in for torchvision there.
diffusers = pytest.importorskip("diffusers")

# timm reads images by torchvision, each release and build of which is of one of torch; its models need
# nothing of it.
_TORCHVISION = (
    "torchvision", "torchvision.datasets", "torchvision.models",
    "torchvision.models.feature_extraction", "torchvision.ops", "torchvision.ops.misc",
    "torchvision.transforms", "torchvision.transforms.functional",
)  # fmt: skip
_absent = importlib.util.find_spec("torchvision") is None
with patch.dict(sys.modules, {name: MagicMock() for name in _TORCHVISION} if _absent else {}):
    timm = pytest.importorskip("timm")
    from timm.models import eva, swin_transformer, vision_transformer

Call = Callable[[], torch.Tensor]

_IMAGES = {"img_size": 32, "num_classes": 7}
_VIT = {**_IMAGES, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _timm(model: Any) -> Call:
    images = _random(2, 3, 32, 32)
    return lambda: model.eval()(images)


def vit() -> Call:
    """A class token, registers, normalised queries and keys."""
    return _timm(vision_transformer.VisionTransformer(**_VIT, reg_tokens=3, qk_norm=True))


def siglip() -> Call:
    """One query of its own over all places, in the place of a class token."""
    return _timm(vision_transformer.VisionTransformer(**_VIT, global_pool="map", class_token=False))


def eva02() -> Call:
    """Rotary embedding, which gives queries and keys other strides than values."""
    return _timm(eva.Eva(**_VIT, use_rot_pos_emb=True, swiglu_mlp=True, qkv_fused=False))


def swin() -> Call:
    """Windows of places, with a bias for each pair of them."""
    sizes = {"embed_dim": 32, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
    return _timm(swin_transformer.SwinTransformer(**_IMAGES, patch_size=4, **sizes))


def _unet() -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), norm_num_groups=8, layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=(2, 4),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=24,
    ).eval()  # fmt: skip


def unet(padded: bool = False, dtype: torch.dtype = torch.float32) -> Call:
    """Self-attention and attention to a prompt; ``padded``: the end of one prompt is masked."""
    model = _unet().to(dtype)
    latents, prompt = _random(2, 4, 8, 8).to(dtype), _random(2, 11, 24).to(dtype)
    mask = torch.arange(11) < torch.tensor([[11], [6]])
    return lambda: model(latents, 5, prompt, encoder_attention_mask=mask if padded else None).sample


def sd3() -> Call:
    """Places and prompt attend to each other jointly."""
    model = diffusers.SD3Transformer2DModel(
        sample_size=8, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=24, caption_projection_dim=64,
        pooled_projection_dim=20, pos_embed_max_size=8, qk_norm="rms_norm",
    ).eval()  # fmt: skip
    latents, prompt, pooled = _random(2, 4, 8, 8), _random(2, 11, 24), _random(2, 20)
    return lambda: model(latents, prompt, pooled, torch.tensor([5, 5])).sample


def autoencoder() -> Call:
    """One head over all places, as wide as there are channels."""
    model = diffusers.AutoencoderKL(
        block_out_channels=(16,), norm_num_groups=4, layers_per_block=1, latent_channels=4
    ).eval()
    latents = _random(1, 4, 8, 8)
    return lambda: model.decode(latents).sample
