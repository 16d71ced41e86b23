"""python bench/bench_generate.py --threads 2 --json FILE: a Llama-shaped model, our attention and torch's.

The same random weights, through transformers; of every context: the prefill, one decoding step after
it, and a whole generate(). Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import tvm_attention.torch
from bench.cases import perform
from bench.command import PROGRAM
from bench.model_calls import SDPA, both, side_by_side, table
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import BAD_ARGUMENTS

HEAD_DIM, GROUP, VOCABULARY = 64, 4, 2048
Models = dict[str, Any]
Phase = Callable[[Any, Any, int], Callable[[], object]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write; 1 if the two models differ, 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    if options.hidden % (HEAD_DIM * GROUP):
        print(f"{PROGRAM}: --hidden: expected a multiple of {HEAD_DIM * GROUP}", file=sys.stderr)
        return BAD_ARGUMENTS
    shape = {name: getattr(options, name) for name in ("layers", "hidden", "tokens")}
    model = {**shape, "head_dim": HEAD_DIM, "group": GROUP}
    shown = partial(table, ("phase", "context"), 2)
    return perform(options, lambda: _measured(options), shown, model=model)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_generate", description=__doc__, allow_abbrev=False)
    count = whole_number(1, 1 << 20)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--seconds", type=positive, default=3.0, help="of each phase and context")
    parser.add_argument("--contexts", type=count, nargs="+", default=[128, 512, 2048, 4096])
    parser.add_argument("--tokens", type=count, default=16, help="that generate() adds")
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--hidden", type=count, default=1024, help="16 heads over 4 of 64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    return parser


def _models(options: argparse.Namespace) -> Models:
    """The same weights, in the same memory, with either attention."""
    tvm_attention.torch.register()
    torch.manual_seed(0)
    heads = options.hidden // HEAD_DIM
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.hidden, num_hidden_layers=options.layers,
        num_attention_heads=heads, num_key_value_heads=heads // GROUP, head_dim=HEAD_DIM,
        intermediate_size=options.hidden * 11 // 4, bos_token_id=None, eos_token_id=None,
        max_position_embeddings=max(options.contexts) + options.tokens, attn_implementation=SDPA,
    )  # fmt: skip
    return both(LlamaForCausalLM(config).eval())


def _prefill(model: Any, prompt: Any, tokens: int) -> Callable[[], object]:
    return lambda: model(prompt, logits_to_keep=1).logits


def _step(model: Any, prompt: Any, tokens: int) -> Callable[[], object]:
    cache = DynamicCache(config=model.config)
    model(prompt, cache=cache, logits_to_keep=1)
    token = prompt[:, :1]

    def step() -> object:
        logits = model(token, cache=cache).logits
        cache.crop(-1)  # the token that was added goes again
        return logits

    return step


def _generate(model: Any, prompt: Any, tokens: int) -> Callable[[], object]:
    mask = torch.ones_like(prompt)
    return lambda: model.generate(
        prompt, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0
    )


PHASES: dict[str, Phase] = {"prefill": _prefill, "step": _step, "generate": _generate}


@torch.inference_mode()
def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    models = _models(options)
    rows = []
    for context in stepped(options.contexts, lambda c: f"{c} tokens"):
        torch.manual_seed(context)
        prompt = torch.randint(VOCABULARY, (1, context))
        for phase, made in PHASES.items():
            calls = {n: made(model, prompt, options.tokens) for n, model in models.items()}
            rows.append(_row(phase, context, calls, options.seconds))
    return rows


def _row(phase: str, context: int, calls: dict[str, Any], seconds: float) -> dict[str, Any]:
    found = side_by_side(f"{phase} of {context}", calls, seconds)
    return {"phase": phase, "context": context, **found}


if __name__ == "__main__":
    raise SystemExit(main())
