"""An ONNX backend: a model's Attention nodes computed by this library, all others by another runtime.

``prepare(model).run(inputs)``, ``run_model``, ``run_node`` and ``supports_device``, as
``onnx.backend.base`` has them, so that whatever drives an ONNX backend can drive this one.

How the work is shared: the graph is cut at its Attention nodes, and each part between them is a model
of its own, run by onnxruntime or, where that is not installed or cannot, by onnx.reference. The other
ways were weighed: ``ReferenceEvaluator(new_ops=...)`` would take an Attention of ours in ten lines, but
computes every matrix product of the model one operator at a time in NumPy, so that a model gains
nothing; a custom operator of onnxruntime has to be a C++ library built against its headers, and a
compiler on the user's machine is what this library does without. Cutting needs neither, and every part
is still optimised as a whole by onnxruntime.

Served are Attention nodes of opsets 23 to 25, with every input, attribute and output but these, which
raise UnsupportedError when a model is prepared:

- ``qk_matmul_output`` in modes 0, 1 and 2: the scores before the softmax are never in memory here, which
  is the point of the library. Mode 3, the softmax's rows, is served.
- Attention inside the body of an If, Loop or Scan. (Functions of a model are inlined first.)

and these, found when it runs: float64, integer masks, and a V whose dtype is not Q's. Whatever
``softmax_precision`` asks for, scores and softmax are computed in float32.
"""

from tvm_attention.onnx.backend import Backend, BackendRep, OtherNodes

prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
is_compatible = Backend.is_compatible

__all__ = [
    "Backend",
    "BackendRep",
    "OtherNodes",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
