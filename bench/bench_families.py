"""python bench/bench_families.py --threads 2 --json FILE: a model of each family that attends its own way.

Our attention and transformers' own, "sdpa" where a family's models take it and otherwise "eager". Of those
that generate: the prefill, one decoding step after it, and a whole generate(). Results are compared before
anything is timed. With what is set by default, about a minute on two cores.
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

import tvm_attention.torch
from bench.cases import perform, told
from bench.families import FAMILIES
from bench.generation import ENCODE, PHASES
from bench.model_calls import both, line, side_by_side, table
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number

LONGEST, MOST = 1000, 24  # within the places that GPT-2 has
COLUMNS = ("family", "phase")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write; 1 if two models differ, 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    shape = {name: getattr(options, name) for name in ("context", "tokens")}
    return perform(options, lambda: _measured(options), partial(table, COLUMNS, 2), **shape)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_families", description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=whole_number(1, 1 << 20), default=2)
    parser.add_argument("--seconds", type=positive, default=1.5, help="of each family and phase")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    context, tokens = whole_number(1, LONGEST), whole_number(1, MOST)
    parser.add_argument("--context", type=context, default=LONGEST, help="tokens of a prompt")
    parser.add_argument("--tokens", type=tokens, default=16, help="that generate() adds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    return parser


def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    tvm_attention.torch.register()
    phases = [len(PHASES if FAMILIES[n].generates else ENCODE) for n in options.families]
    return told(_rows(options), sum(phases), partial(line, COLUMNS))


@torch.inference_mode()
def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.families:
        family = FAMILIES[name]
        torch.manual_seed(0)
        models, prompt = both(family.model()), family.prompt(options.context)
        for phase, made in (PHASES if family.generates else ENCODE).items():
            calls = {n: made(model, prompt, options.tokens) for n, model in models.items()}
            found = side_by_side(f"{name}, {phase}", calls, options.seconds)
            yield {"family": name, "phase": phase, **found}


if __name__ == "__main__":
    raise SystemExit(main())
