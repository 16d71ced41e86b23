"""ViT-B/16 with three attentions: 12 layers of 12 heads of 64 over 197 places.

    pip install -e '.[examples]' && python examples/vit.py [--batch 4]

transformers' ViTModel with random weights, the same for each: attention by torch's
scaled_dot_product_attention, by its definition (transformers' "eager"), and by this library. The exit
status is 1 if the last hidden states differ.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from rich.console import Console
from side_by_side import OURS, compare, parsed_seconds
from transformers import ViTConfig, ViTModel

import tvm_attention.torch

IMPLEMENTATIONS = {"torch SDPA": "sdpa", "scores in memory": "eager", OURS: "tvm_attention"}
ALLOWED = 1e-5


def models(**sizes: int) -> dict[str, Any]:
    """A model for each attention, all sharing the same random weights."""
    torch.manual_seed(0)
    made = {
        name: ViTModel(ViTConfig(**sizes, attn_implementation=key), add_pooling_layer=False).eval()
        for name, key in IMPLEMENTATIONS.items()
    }
    weights = next(iter(made.values())).state_dict()
    for model in made.values():
        model.load_state_dict(weights, assign=True)
    return made


@torch.inference_mode()
def hidden(model: Any, images: torch.Tensor) -> torch.Tensor:
    """The last hidden states, (batch, places, width)."""
    states: torch.Tensor = model(pixel_values=images).last_hidden_state
    return states


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4, help="images; default 4")
    options = parsed_seconds(parser)
    if options.batch < 1:
        parser.exit(2, f"--batch: expected 1 or more, got {options.batch}\n")

    tvm_attention.torch.register()
    images = torch.randn(options.batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    calls = {name: partial(hidden, model, images) for name, model in models().items()}
    title = f"ViT-B/16, {options.batch} images of 224 x 224, {torch.get_num_threads()} threads"
    return 0 if compare(title, calls, options.seconds, ALLOWED, Console()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
