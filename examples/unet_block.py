"""A transformer block of a latent-diffusion U-Net, as in Stable Diffusion 1.5 at its largest resolution.

    pip install -e '.[torch]' && python examples/unet_block.py [--side 64]

Self-attention over the 64 x 64 places of a latent image (8 heads of 40), cross-attention to the 77
tokens of a prompt, and a gated feed-forward, in torch alone and with random weights, for an image with
and without its prompt (batch 2). The block calls torch's scaled_dot_product_attention, as diffusers'
default attention does; ``tvm_attention.torch.enabled()`` routes that here. Beside both, attention that
forms the matrix of scores, as it was computed before. The exit status is 1 if results differ.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from side_by_side import OURS, compare, parsed_seconds
from torch import nn
from torch.nn import functional

import tvm_attention.torch
from tvm_attention.errors import FallbackWarning

CHANNELS, HEADS, CONTEXT, TOKENS, BATCH = 320, 8, 768, 77, 2
ALLOWED = 1e-5


def with_scores(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention by its definition: all scores of all heads are in memory at once."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ value


class Attention(nn.Module):
    """Self-attention, or to a context of its own width."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.query = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.key = nn.Linear(context, CHANNELS, bias=False)
        self.value = nn.Linear(context, CHANNELS, bias=False)
        self.out = nn.Linear(CHANNELS, CHANNELS)
        self.with_scores = False

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        context = x if context is None else context
        projected = (self.query(x), self.key(context), self.value(context))
        heads = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2) for rows in projected)
        attend = with_scores if self.with_scores else functional.scaled_dot_product_attention
        return self.out(attend(*heads).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Latents (B, C, side, side) and a prompt (B, tokens, context) -> latents."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, CHANNELS, eps=1e-6)
        self.enter = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(3))
        self.own, self.cross = Attention(CHANNELS), Attention(CONTEXT)
        self.widen = nn.Linear(CHANNELS, 8 * CHANNELS)
        self.narrow = nn.Linear(4 * CHANNELS, CHANNELS)
        self.leave = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, latents: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        first, second, third = self.norms
        x = self.enter(self.norm(latents)).flatten(2).transpose(1, 2)
        x = x + self.own(first(x))
        x = x + self.cross(second(x), prompt)
        wide, gate = self.widen(third(x)).chunk(2, dim=-1)
        x = x + self.narrow(wide * functional.gelu(gate))
        return latents + self.leave(x.transpose(1, 2).unflatten(2, latents.shape[2:]))


def calls(side: int) -> dict[str, Callable[[], torch.Tensor]]:
    """One block and one input, with each attention."""
    torch.manual_seed(0)
    block = Block().eval()
    latents, prompt = torch.randn(BATCH, CHANNELS, side, side), torch.randn(BATCH, TOKENS, CONTEXT)

    @torch.inference_mode()
    def run(with_scores: bool = False) -> torch.Tensor:
        block.own.with_scores = block.cross.with_scores = with_scores
        out: torch.Tensor = block(latents, prompt)
        return out

    def ours() -> torch.Tensor:
        with tvm_attention.torch.enabled():
            return run()

    return {"torch SDPA": run, "scores in memory": lambda: run(with_scores=True), OURS: ours}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=64, help="of the latent image; default 64")
    options = parsed_seconds(parser)
    if options.side < 1:
        parser.exit(2, f"--side: expected 1 or more, got {options.side}\n")

    warnings.simplefilter(
        "error", FallbackWarning
    )  # a call that torch computes would prove nothing
    title = (
        f"U-Net block, {BATCH} latents of {CHANNELS} x {options.side} x {options.side}, "
        f"{torch.get_num_threads()} threads"
    )
    holds = compare(title, calls(options.side), options.seconds, ALLOWED, Console())
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
