"""The C table of kernels for GPUs, from which runtime/tvm_attention_cuda.c chooses and launches."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tvm_attention.arguments import SCALARS, STRIDES, TENSORS
from tvm_attention.cuda.launching import WORKSPACE
from tvm_attention.device_code import DeviceCode
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED_SPLIT_KV, decode_rows, sizes_of
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import MEDIUM_KEYS, SHORT_KEYS, AttentionWorkload

# In the order of fill_values in runtime/tvm_attention_cuda.c: addresses, whole numbers, floats, strides.
SLOTS = (
    *TENSORS, WORKSPACE, "mask", "slopes", "sinks", "ragged", "table", "key_scale", "value_scale", "lse",
    *(n for n in SCALARS if n != "scale_log2"), "window_left", "window_right", "page_shift",
    "scale_log2", "softcap_log2",
    *(f"{t}_{a}_stride" for t in (*TENSORS, "key_scale", "value_scale") for a in STRIDES),
    *(f"mask_{a}_stride" for a in (*STRIDES, "column")), "lse_batch_stride", "lse_head_stride",
    "table_batch_stride", "key_page_stride", "value_page_stride",
)  # fmt: skip
_DTYPES = {None: 0, "float32": 1, "float16": 2, "bfloat16": 3, "bool": 4, "int8": 5}
_LENGTHS = {"short": SHORT_KEYS, "medium": MEDIUM_KEYS}

Exported = tuple[str, AttentionWorkload, HardwareTarget, Candidate, DeviceCode]


def table_source(kernels: Sequence[Exported]) -> str:
    """The text of tvm_attention_cuda_kernels.c."""
    lines = ['#include "tvm_attention_cuda.h"', ""]
    for name, _, _, _, code in kernels:
        for n, function in enumerate(code.functions):
            slots = ", ".join(str(SLOTS.index(p)) for p in function.parameters)
            lines.append(f"static const uint8_t {name}_slots{n}[] = {{{slots}}};")
    lines += ["", "const tva_cuda_kernel tva_cuda_kernels[] = {"]
    lines += [f"  {{{_fields(*kernel)}}}," for kernel in kernels]
    lines += ["};", f"const int tva_cuda_number_of_kernels = {len(kernels)};"]
    return "\n".join(lines) + "\n"


def _fields(
    name: str, w: AttentionWorkload, target: HardwareTarget, c: Candidate, code: DeviceCode
) -> str:
    sizes, split = sizes_of(w, c), c.variant == FUSED_SPLIT_KV
    part = sizes.query_block * c["column_threads"] * (sizes.columns + 2) if split else 0
    values = {
        "name": json.dumps(name),
        "capability": target.arch.removeprefix("sm_"),
        "head_dim": w.head_dim,
        "value_dim": w.value_dim,
        "dtype": _DTYPES[w.dtype],
        "kv_dtype": _DTYPES[w.kv_dtype],
        "mask_dtype": _DTYPES[w.mask],
        "lengths": _LENGTHS.get(w.length_class, 0),
        "most_rows": (decode_rows(w) or 0) if split else 0,
        "causal": int(bool(w.causal) and w.window is None),
        "windowed": int(w.window is not None),
        "softcap": int(w.softcap),
        "alibi": int(w.alibi),
        "sinks": int(w.sinks),
        "lse": int(w.output == "attention_and_lse"),
        "ragged": int(w.ragged),
        "paged": int(w.paged),
        "query_block": sizes.query_block,
        "key_block": sizes.key_block,
        "part": part,
        "aligned": c["vector"],
        "functions": len(code.functions),
        "function": "{"
        + ", ".join(_function(name, n, code) for n in range(len(code.functions)))
        + "}",
    }
    return ", ".join(f".{n} = {v}" for n, v in values.items())


def _function(name: str, n: int, code: DeviceCode) -> str:
    f = code.functions[n]
    x, y = f.threads
    slots = f"{name}_slots{n}"
    return f"{{{json.dumps(f.name)}, {x}, {y}, {f.shared_bytes}, {len(f.parameters)}, {slots}}}"
