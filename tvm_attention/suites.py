"""Named sets of attention workloads that real models run, for demo, tune and the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tvm_attention.errors import InvalidValueError
from tvm_attention.measured_suites import decode_suite, in_16_bits, long_suite, masked_suite
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

Suite = Mapping[str, AttentionWorkload]


def suite(name: str) -> Suite:
    """The workloads of a suite by name, in the order in which they are shown.

    Raises InvalidValueError for an unknown suite.
    """
    try:
        return SUITES[name]
    except KeyError:
        known = ", ".join(SUITES)
        raise InvalidValueError(f"suite: expected one of {known}, got {name!r}") from None


def shape_text(workload: AttentionWorkload) -> str:
    """Batch x heads x query length x key length x head dim, as "1x32/8x1x2048x128 causal".

    "32/8" are query heads over key-value heads; a value dim that differs follows as "x40/64". Behind
    that stand options, and dtypes other than float32.
    """
    w = workload
    heads = f"{w.query_heads}" if w.group == 1 else f"{w.query_heads}/{w.kv_heads}"
    dims = f"{w.head_dim}" if w.head_dim == w.value_dim else f"{w.head_dim}/{w.value_dim}"
    kind = {None: "", "top_left": " causal", "bottom_right": " causal (bottom right)"}
    assert not isinstance(w.causal, bool)
    return f"{w.batch}x{heads}x{w.query_length}x{w.key_length}x{dims}{kind[w.causal]}{_options(w)}"


def _options(w: AttentionWorkload) -> str:
    left, right = w.window or (UNBOUNDED, UNBOUNDED)
    said = {
        "window": w.window and f"window {left}:{right}",
        "mask": w.mask and f"{w.mask} mask{' a key' if w.mask_per_key else ''}",
        "ragged": w.ragged and "lengths",
        "softcap": w.softcap and "softcap", "alibi": w.alibi and "ALiBi", "sinks": w.sinks and "sinks",
        "paged": w.paged and "pages", "kv_dtype": w.kv_dtype and f"{w.kv_dtype} keys",
        "dtype": w.dtype if w.dtype != "float32" else None,
    }  # fmt: skip
    return "".join(f" {text}" for text in said.values() if text)


def _workload(
    batch: int,
    heads: int | tuple[int, int],
    queries: int,
    keys: int,
    head_dim: int,
    causal: bool = False,
) -> AttentionWorkload:
    query_heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    return AttentionWorkload(
        batch=batch,
        query_heads=query_heads,
        kv_heads=kv_heads,
        query_length=queries,
        key_length=keys,
        head_dim=head_dim,
        causal=causal,
    )


def _decode(keys: int, kv_heads: int) -> AttentionWorkload:
    return _workload(1, (32, kv_heads), 1, keys, 128)


_DEMO: Suite = {
    "BERT-base": _workload(1, 12, 128, 128, 64),
    "ViT-B/16": _workload(1, 12, 197, 197, 64),
    "Stable Diffusion self": _workload(2, 8, 4096, 4096, 40),
    "Stable Diffusion cross": _workload(2, 8, 4096, 77, 40),
    "GPT-2 prefill": _workload(1, 12, 1024, 1024, 64, causal=True),
    "Llama decode": _decode(2048, 8),
}

_CORE: Suite = {
    "bert-128": _workload(1, 12, 128, 128, 64),
    "bert-128-b8": _workload(8, 12, 128, 128, 64),
    "bert-384": _workload(1, 12, 384, 384, 64),
    "bert-512": _workload(1, 12, 512, 512, 64),
    "vit-b16-197": _workload(1, 12, 197, 197, 64),
    "odd-197x333": _workload(2, 3, 197, 333, 64),
    "plain-1024": _workload(1, 8, 1024, 1024, 64),
    "causal-1024": _workload(1, 8, 1024, 1024, 64, causal=True),
    "gpt2-1024": _workload(1, 12, 1024, 1024, 64, causal=True),
    "long-4096": _workload(1, 8, 4096, 4096, 64),
    "llama-2048": _workload(1, 32, 2048, 2048, 128),
    "llama-2048-causal": _workload(1, 32, 2048, 2048, 128, causal=True),
    "sd-self-4096": _workload(2, 8, 4096, 4096, 40),
    "sd-cross-77": _workload(2, 8, 4096, 77, 40),
    "vit-h14-257": _workload(1, 16, 257, 257, 80),
    "phi3-512": _workload(1, 32, 512, 512, 96, causal=True),
    "gemma-512": _workload(1, 16, 512, 512, 256, causal=True),
    "decode-1024": _decode(1024, 32),
    "decode-2048": _decode(2048, 32),
    "decode-8192": _decode(8192, 32),
    "decode-1024-gqa4": _decode(1024, 8),
    "decode-2048-gqa4": _decode(2048, 8),
    "decode-8192-gqa4": _decode(8192, 8),
}

# What the shipped logs are tuned for: the length classes at the head dimensions of real models, those
# that most models have first.
_SHIPPING: Suite = {
    "d64-short": _workload(1, 12, 128, 128, 64),
    "d64-medium": _workload(1, 12, 512, 512, 64),
    "d64-medium-causal": _workload(1, 12, 1024, 1024, 64, causal=True),
    "d64-long": _workload(1, 8, 4096, 4096, 64),
    "d64-decode-r1": _workload(1, 32, 1, 2048, 64),
    "d128-decode-r1": _decode(2048, 32),
    "d128-decode-r4": _decode(2048, 8),
    "d128-short": _workload(1, 16, 128, 128, 128),
    "d128-medium": _workload(1, 16, 512, 512, 128),
    "d128-medium-causal": _workload(1, 16, 512, 512, 128, causal=True),
    "d128-long": _workload(1, 8, 2048, 2048, 128),
    "d128-long-causal": _workload(1, 8, 2048, 2048, 128, causal=True),
    "d64-short-197": _workload(1, 12, 197, 197, 64),
    "d64-medium-1024": _workload(1, 8, 1024, 1024, 64),
    "d64-long-causal": _workload(1, 8, 2048, 2048, 64, causal=True),
    "d64-short-causal": _workload(1, 12, 128, 128, 64, causal=True),
    "d128-short-causal": _workload(1, 16, 128, 128, 128, causal=True),
    "d40-short-77": _workload(1, 8, 4096, 77, 40),
    "d40-long": _workload(1, 8, 4096, 4096, 40),
    "d40-medium": _workload(2, 8, 1024, 1024, 40),
    "d80-medium": _workload(1, 16, 257, 257, 80),
    "d96-medium-causal": _workload(1, 32, 512, 512, 96, causal=True),
    "d256-medium-causal": _workload(1, 16, 512, 512, 256, causal=True),
    "d128-decode-r8": _workload(1, (64, 8), 1, 2048, 128),
    "d128-decode-r2": _workload(1, (32, 16), 1, 2048, 128),
    "d64-decode-r4": _workload(1, (32, 8), 1, 2048, 64),
    "d64-decode-r8": _workload(1, (64, 8), 1, 2048, 64),
    "d32-short": _workload(1, 12, 128, 128, 32),
    "d32-medium": _workload(1, 12, 512, 512, 32),
    "d80-long": _workload(1, 8, 2048, 2048, 80),
    "d80-long-causal": _workload(1, 8, 2048, 2048, 80, causal=True),
    "d80-decode-r1": _workload(1, 32, 1, 2048, 80),
    "d96-short": _workload(1, 16, 128, 128, 96),
    "d96-long-causal": _workload(1, 8, 2048, 2048, 96, causal=True),
    "d96-decode-r1": _workload(1, 32, 1, 2048, 96),
    "d256-long-causal": _workload(1, 4, 2048, 2048, 256, causal=True),
    "d256-decode-r1": _workload(1, 16, 1, 2048, 256),
    "d256-decode-r2": _workload(1, (16, 8), 1, 2048, 256),
    "d64-short-bf16": replace(_workload(1, 12, 128, 128, 64), dtype="bfloat16"),
    "d64-medium-bf16": replace(_workload(1, 12, 512, 512, 64), dtype="bfloat16"),
    "d64-medium-causal-bf16": replace(_workload(1, 12, 1024, 1024, 64, True), dtype="bfloat16"),
    "d64-long-bf16": replace(_workload(1, 8, 4096, 4096, 64), dtype="bfloat16"),
    "d128-long-bf16": replace(_workload(1, 8, 2048, 2048, 128), dtype="bfloat16"),
    "d128-long-causal-bf16": replace(_workload(1, 8, 2048, 2048, 128, True), dtype="bfloat16"),
    "d64-short-f16": replace(_workload(1, 12, 128, 128, 64), dtype="float16"),
    "d64-medium-f16": replace(_workload(1, 12, 512, 512, 64), dtype="float16"),
    "d128-long-f16": replace(_workload(1, 8, 2048, 2048, 128), dtype="float16"),
    "d128-decode-r4-bf16": replace(_decode(2048, 8), dtype="bfloat16"),
    "d128-decode-r4-f16": replace(_decode(2048, 8), dtype="float16"),
    "d128-decode-r1-bf16": replace(_decode(2048, 32), dtype="bfloat16"),
    "d128-decode-r1-f16": replace(_decode(2048, 32), dtype="float16"),
    "d128-decode-r4-int8": replace(_decode(8192, 8), kv_dtype="int8"),
    "d64-long-mask": replace(_workload(1, 8, 2048, 2048, 64), mask="bool", mask_dense=True),
    "d64-long-bias": replace(_workload(1, 8, 2048, 2048, 64), mask="float32", mask_dense=True),
    "d64-medium-bias": replace(_workload(1, 12, 512, 512, 64), mask="float32", mask_dense=True),
    "d64-medium-mask": replace(_workload(1, 12, 512, 512, 64), mask="bool", mask_dense=True),
    "d128-long-window": replace(_workload(1, 8, 4096, 4096, 128, True), window=(1024, -1)),
}


def _gpu() -> Suite:
    """What the shipped logs of GPUs are for: prefill of each class of lengths, and decoding."""
    found = {}
    for dtype, name in (("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32")):
        for dim in (128, 64):
            for length, size in ((2048, "long"), (1024, "medium"), (256, "short")):
                for causal in (False, True):
                    w = _workload(8192 // length, 16, length, length, dim, causal)
                    kind = "-causal" if causal else ""
                    found[f"d{dim}-{size}{kind}-{name}"] = replace(w, dtype=dtype)
        for kv_heads in (32, 8, 4):
            w = replace(_decode(4096, kv_heads), batch=4, dtype=dtype)
            found[f"d128-decode-r{32 // kv_heads}-{name}"] = w
    return found


_NAMED: Mapping[str, Suite] = {
    "demo": _DEMO, "core": _CORE, "shipping": _SHIPPING, "gpu": _gpu(),
}  # fmt: skip
_MEASURED: Mapping[str, Suite] = {
    "decode": decode_suite(),
    "masked": masked_suite(),
    "lowprec": in_16_bits(_CORE),
    "long": long_suite(),
}

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        name: MappingProxyType(dict(s))
        for name, s in {
            "demo": _DEMO,
            "core": _CORE,
            "shipping": _SHIPPING,
            "gpu": _gpu(),
            **_MEASURED,
        }.items()
    }
)
