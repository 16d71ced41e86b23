"""python bench/bench_generate.py --threads 2 --json FILE: a Llama-shaped model, our attention and torch's.

The same random weights, through transformers; of every context: the prefill, one decoding step after
it, and a whole generate(). Results are compared before anything is timed. With what is set by default, a
minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tvm_attention.torch
from bench.cases import perform, told
from bench.command import PROGRAM
from bench.generation import PHASES, Text
from bench.model_calls import SDPA, both, line, side_by_side, table
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.ending import BAD_ARGUMENTS

HEAD_DIM, GROUP, VOCABULARY = 64, 4, 2048
COLUMNS = ("phase", "context")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write; 1 if the two models differ, 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    if options.hidden % (HEAD_DIM * GROUP):
        print(f"{PROGRAM}: --hidden: expected a multiple of {HEAD_DIM * GROUP}", file=sys.stderr)
        return BAD_ARGUMENTS
    shape = {name: getattr(options, name) for name in ("layers", "hidden", "tokens")}
    model = {**shape, "head_dim": HEAD_DIM, "group": GROUP}
    shown = partial(table, COLUMNS, 2)
    return perform(options, lambda: _measured(options), shown, model=model)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_generate", description=__doc__, allow_abbrev=False)
    count = whole_number(1, 1 << 20)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--seconds", type=positive, default=2.0, help="of each phase and context")
    parser.add_argument("--contexts", type=count, nargs="+", default=[128, 512, 2048, 4096])
    parser.add_argument("--tokens", type=count, default=16, help="that generate() adds")
    parser.add_argument("--layers", type=count, default=2)
    parser.add_argument("--hidden", type=count, default=1024, help="16 heads over 4 of 64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    return parser


def _models(options: argparse.Namespace) -> dict[str, Any]:
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


def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    return told(_rows(options), len(options.contexts) * len(PHASES), partial(line, COLUMNS))


@torch.inference_mode()
def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    models = _models(options)
    for context in options.contexts:
        torch.manual_seed(context)
        prompt = Text(torch.randint(VOCABULARY, (1, context)))
        for phase, made in PHASES.items():
            calls = {n: made(model, prompt, options.tokens) for n, model in models.items()}
            yield _row(phase, context, calls, options.seconds)


def _row(phase: str, context: int, calls: dict[str, Any], seconds: float) -> dict[str, Any]:
    found = side_by_side(f"{phase} of {context}", calls, seconds)
    return {"phase": phase, "context": context, **found}


if __name__ == "__main__":
    raise SystemExit(main())
