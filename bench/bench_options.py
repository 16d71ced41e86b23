"""python bench/bench_options.py --threads 2 --json FILE: what each option of attention costs.

Every case is timed in turns with what it is compared with, and with torch where torch computes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from rich.table import Table

import tvm_attention as ta
from bench.cases import perform
from bench.command import THREADS
from tvm_attention.commands.arguments import OneLineParser, positive
from tvm_attention.commands.bar import stepped
from tvm_attention.interleaved import Contender, interleave

LENGTHS = [512, 100, 37, 300, 256, 1, 129, 411]  # of packed sequences
Call = Callable[[], object]
Case = tuple[str, str, Call, Call, "Call | None"]
"""Its name, what it is compared with, the case, that, and torch's for the case."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write the results; 2 for a file that cannot be written."""
    options = _parser().parse_args(arguments)
    return perform(options, lambda: _measured(options), _table)


def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [_measure(*case, options.seconds) for case in stepped(_cases(), lambda c: c[0])]


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bench_options", description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--seconds", type=positive, default=1.5, help="of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser


def _cases() -> list[Case]:
    return [*_masked(), *_banded(), *_packed(), *_decoding(), *_half()]


def _tensors(b: int, heads: int, rows: int, keys: int, dim: int, kv: int = 0) -> list[Any]:
    shapes = ((b, heads, rows, dim), (b, kv or heads, keys, dim), (b, kv or heads, keys, dim))
    return [torch.randn(shape) for shape in shapes]


def _masked() -> list[Case]:
    cases: list[Case] = []
    for heads, length in ((8, 2048), (12, 512)):
        q, k, v = _tensors(1, heads, length, length, 64)
        shape = f"1x{heads}x{length}x{length}x64"
        masks = {
            "all-True bool mask (L, S)": torch.ones(length, length, dtype=torch.bool),
            "random bool mask (L, S)": torch.rand(length, length) < 0.7,
            "zero bias (L, S)": torch.zeros(length, length),
            "key padding (1, 1, 1, S)": torch.ones(1, 1, 1, length, dtype=torch.bool),
        }
        for name, mask in masks.items():
            cases.append(_case(f"{name}, {shape}", (q, k, v), {"mask": mask}, {"attn_mask": mask}))
        slopes = 2.0 ** -torch.linspace(1, 8, heads)
        for name, extra in (
            ("softcap", {"softcap": 30.0}), ("ALiBi", {"alibi_slopes": slopes}),
            ("sinks", {"sinks": torch.zeros(heads)}), ("log-sum-exp", {"return_lse": True}),
        ):  # fmt: skip
            cases.append(_case(f"{name}, {shape}", (q, k, v), extra, None))
    return cases


def _case(name: str, tensors: Any, ours: dict[str, Any], torchs: dict[str, Any] | None) -> Case:
    peer = None if torchs is None else lambda: F.scaled_dot_product_attention(*tensors, **torchs)
    return (
        name,
        "plain",
        lambda: ta.attention(*tensors, **ours),
        lambda: ta.attention(*tensors),
        peer,
    )


def _banded() -> list[Case]:
    long, longer = _tensors(1, 8, 4096, 4096, 64), _tensors(1, 4, 8192, 8192, 64)
    return [
        _case("causal, 1x8x4096x4096x64", long, {"causal": "top_left"}, {"is_causal": True}),
        _case("window 256, 1x4x8192x8192x64", longer, {"window": (256, 0)}, None),
    ]


def _packed() -> list[Case]:
    """Against the sequences one by one, each where it lies in the packed tensors."""
    ends = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    q, k, v = (torch.randn(int(ends[-1]), 12, 64) for _ in range(3))
    bounds = list(zip(ends.tolist(), ends.tolist()[1:], strict=False))
    parts = [(q[None, a:b], k[None, a:b], v[None, a:b]) for a, b in bounds]
    swapped = [(a.transpose(1, 2), b.transpose(1, 2), c.transpose(1, 2)) for a, b, c in parts]
    return [
        (
            f"packed sequences {LENGTHS}, 12 heads x 64",
            "sum of the parts",
            lambda: ta.attention_varlen(q, k, v, ends, ends),
            lambda: [ta.attention(*part, layout="bshd") for part in parts],
            lambda: [F.scaled_dot_product_attention(*part) for part in swapped],
        )
    ]


def _cache(dtype: Any, kv_heads: int, keys: int) -> Any:
    like = torch.empty(0)
    cache = ta.KVCache(1, kv_heads, keys, 128, dtype=dtype, like=like)
    source = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    k, v = (torch.randn(1, kv_heads, keys, 128).to(source) for _ in range(2))
    cache.append(k, v)
    return cache


def _decoding() -> list[Case]:
    q = torch.randn(1, 32, 1, 128)
    half = q.to(torch.float16)
    caches = {n: _cache(n, 8, 16384) for n in ("float32", "float16", "int8")}
    calls = {
        "float32": lambda: caches["float32"].attend(q),
        "float16": lambda: caches["float16"].attend(half),
        "int8": lambda: caches["int8"].attend(q),
    }
    shape = "decode 1x32/8x1x16384x128"
    return [
        (f"float16 cache, {shape}", "float32 cache", calls["float16"], calls["float32"], None),
        (f"int8 cache, {shape}", "float16 cache", calls["int8"], calls["float16"], None),
    ]


def _half() -> list[Case]:
    cases: list[Case] = []
    for shape in ((1, 12, 512, 512, 64), (1, 8, 2048, 2048, 128)):
        full = _tensors(*shape)
        for dtype in (torch.float16, torch.bfloat16):
            cases.append(_half_case("x".join(map(str, shape)), full, dtype))
    return cases


def _half_case(shape: str, full: list[Any], dtype: Any) -> Case:
    half = [x.to(dtype) for x in full]
    return (
        f"{str(dtype).removeprefix('torch.')}, {shape}", "float32",
        lambda: ta.attention(*half), lambda: ta.attention(*full),
        lambda: F.scaled_dot_product_attention(*half),
    )  # fmt: skip


def _measure(
    name: str, base: str, call: Call, other: Call, peer: Call | None, seconds: float
) -> dict[str, Any]:
    contenders = [Contender("ours", call), Contender("base", other)]
    if peer is not None:
        contenders.append(Contender("torch", peer))
    rounds = interleave(contenders, seconds * len(contenders), least=5)
    return {
        "case": name,
        "compared with": base,
        "seconds": rounds.time("ours").to_dict(),
        "ratio": rounds.ratio("ours", "base").to_dict(),
        "torch": None if peer is None else rounds.ratio("torch", "ours").to_dict(),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "ms", "times what", "ratio", "torch / ours")
    for row in rows:
        against = "" if row["torch"] is None else f"{row['torch']['median']:.2f}"
        table.add_row(
            row["case"], f"{row['seconds']['median'] * 1e3:.3g}", row["compared with"],
            f"{row['ratio']['median']:.2f}", against,
        )  # fmt: skip
    return table


if __name__ == "__main__":
    raise SystemExit(main())
