"""Who is measured against this library: one file a peer, all of them in this table."""

from __future__ import annotations

import importlib.util

from bench.peers import numpy_matmul, onnx_runtime, openvino_sdpa, torch_sdpa
from bench.peers.contract import Peer

PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch", ("torch",), torch_sdpa.prepare),
        # Without threadpoolctl the number of NumPy's threads cannot be set, nor known.
        Peer("numpy", ("numpy", "threadpoolctl"), numpy_matmul.prepare),
        Peer("onnxruntime", ("onnxruntime", "onnx"), onnx_runtime.prepare),
        Peer("openvino", ("openvino",), openvino_sdpa.prepare),
    )
}


def absence(peer: Peer) -> str | None:
    """Why a peer cannot take part, or None."""
    missing = [name for name in peer.modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None
