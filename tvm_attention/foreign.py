"""Processors that archives are built for but nothing else here runs on: experimental."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignProcessor:
    """``architecture`` names its folder in an archive, ``features`` what code for it needs, ``llvm`` is the
    argument of tvm.target.Target, ``refused`` are dtypes that TVM's code for it computes wrongly."""

    architecture: str
    features: frozenset[str]
    llvm: Mapping[str, str | int | list[str]]
    refused: frozenset[str] = frozenset()


# By kind, which has one instruction-set level of the architecture's name.
FOREIGN: Mapping[str, ForeignProcessor] = {
    "riscv": ForeignProcessor(
        "riscv64",
        frozenset({"v"}),
        {
            "kind": "llvm",
            "mtriple": "riscv64-linux-gnu",
            "mcpu": "generic-rv64",
            # V by its parts: told of "+v", TVM makes loops over vectors of unknown length of these.
            "mattr": ["+m", "+a", "+f", "+d", "+c", "+zve64d", "+zvl128b"],
            "mabi": "lp64d",
        },
        # TVM brings conversions that take halves in whole-number registers; LLVM passes them in others.
        refused=frozenset({"float16"}),
    ),
    "wasm": ForeignProcessor(
        "wasm32",
        frozenset({"simd128"}),
        {
            "kind": "llvm",
            "mtriple": "wasm32-unknown-unknown-wasm",
            "mcpu": "generic",
            "mattr": ["+simd128"],
            "vector-width": 128,
        },
    ),
}
