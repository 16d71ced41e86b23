"""Who is measured against this library: one file a peer, all of them in this table."""

from __future__ import annotations

import importlib.util

from bench.peers import (
    flex_attention,
    jax_attention,
    llama_cpp_flash,
    numpy_matmul,
    onnx_runtime,
    openvino_sdpa,
    relax_attention,
    torch_sdpa,
)
from bench.peers.contract import Peer

PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch", ("torch",), torch_sdpa.prepare),
        Peer("torch-flash", ("torch",), torch_sdpa.prepare_flash),
        Peer("torch-math", ("torch",), torch_sdpa.prepare_math),
        Peer("flex", ("torch",), flex_attention.prepare, flex_attention.missing),
        # Without threadpoolctl the number of NumPy's threads cannot be set, nor known.
        Peer("numpy", ("numpy", "threadpoolctl"), numpy_matmul.prepare),
        Peer("onnxruntime", ("onnxruntime", "onnx"), onnx_runtime.prepare),
        Peer("onnxruntime-gqa", ("onnxruntime", "onnx"), onnx_runtime.prepare_separately),
        Peer("openvino", ("openvino",), openvino_sdpa.prepare),
        Peer("jax", ("jax",), jax_attention.prepare),
        Peer("llama.cpp", ("llama_cpp",), llama_cpp_flash.prepare, llama_cpp_flash.missing),
        Peer("relax", ("tvm",), relax_attention.prepare),
    )
}


def absence(peer: Peer) -> str | None:
    """Why a peer cannot take part, or None."""
    missing = [name for name in peer.modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else peer.missing()
