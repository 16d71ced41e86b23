"""The C table of an archive's kernels, from which its runtime chooses (runtime/kernels.h)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.workload_text import written

_DTYPES = {
    None: "TVA_NONE", "float32": "TVA_FLOAT32", "float16": "TVA_FLOAT16", "bfloat16": "TVA_BFLOAT16",
    "bool": "TVA_BOOL", "int8": "TVA_INT8",
}  # fmt: skip
_LENGTHS = {"short": "TVA_SHORT", "medium": "TVA_MEDIUM", "long": "TVA_LONG"}


def table_source(kernels: Sequence[ExportedKernel], version: str, architecture: str) -> str:
    """The text of kernels.c."""
    lines = ['#include "kernels.h"', ""]
    for kernel in kernels:
        for part in ("run", "workspace"):
            lines.append(
                f"extern TVA_HIDDEN int {_entry(kernel, part)}(void *, const tva_value *, int32_t, "
                f"tva_value *);"
            )
    lines += ["", "const tva_kernel tvi_kernels[] = {"]
    for kernel in kernels:
        lines.append("  {" + ", ".join(f".{n} = {v}" for n, v in _fields(kernel).items()) + "},")
    lines += [
        "};",
        f"const int tvi_number_of_kernels = {len(kernels)};",
        f"const char tvi_built_version[] = {json.dumps(version)};",
        f"const char tvi_built_architecture[] = {json.dumps(architecture)};",
    ]
    return "\n".join(lines) + "\n"


def _entry(kernel: ExportedKernel, part: str) -> str:
    return f"__tvm_ffi_{kernel.name}_{part}"


def _fields(kernel: ExportedKernel) -> dict[str, str | int]:
    w = kernel.workload
    name = w.length_class
    lengths = _LENGTHS.get(name) or name.removeprefix("decode-r")
    flags = {
        "causal": bool(w.causal), "windowed": w.window is not None, "mask_per_key": w.mask_per_key,
        "mask_dense": w.mask_dense, "softcap": w.softcap, "alibi": w.alibi, "sinks": w.sinks,
        "ragged": w.ragged, "paged": w.paged, "lse": w.output == "attention_and_lse",
    }  # fmt: skip
    assert w.value_dim is not None
    return {
        "name": json.dumps(kernel.name),
        "target": json.dumps(kernel.target.name),
        "features": json.dumps(" ".join(sorted(kernel.target.features))),
        "workload": json.dumps(written(w)),
        "core": f"{kernel.core:#x}",
        "run": _entry(kernel, "run"),
        "workspace": _entry(kernel, "workspace"),
        "head_dim": w.head_dim,
        "value_dim": w.value_dim,
        "dtype": _DTYPES[w.dtype],
        "kv_dtype": _DTYPES[w.kv_dtype],
        "lengths": lengths,
        "most_rows": kernel.most_rows,
        "mask_dtype": _DTYPES[w.mask],
        **{flag: int(value) for flag, value in flags.items()},
    }
