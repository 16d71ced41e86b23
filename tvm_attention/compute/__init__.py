"""The mathematics as TVM tensor expressions; nothing here says how it is scheduled."""

from tvm_attention.compute.bounds import Bounds
from tvm_attention.compute.key_blocks import KeyBlockTiles, blocks_and_merge, streaming
from tvm_attention.compute.matrix import MatrixTiles, mask_alone, matrix
from tvm_attention.compute.matrix_decode import matrix_decode
from tvm_attention.compute.problem import Exponent, FixedLengths, Problem
from tvm_attention.compute.row_block import RowBlockTiles, row_block, weights
from tvm_attention.compute.running import running
from tvm_attention.compute.split_kv import split_kv
from tvm_attention.compute.splits import SplitKVTiles

__all__ = [
    "Bounds",
    "Exponent",
    "FixedLengths",
    "KeyBlockTiles",
    "MatrixTiles",
    "Problem",
    "RowBlockTiles",
    "SplitKVTiles",
    "blocks_and_merge",
    "mask_alone",
    "matrix",
    "matrix_decode",
    "row_block",
    "running",
    "split_kv",
    "streaming",
    "weights",
]
