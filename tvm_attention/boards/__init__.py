"""Tuning for machines that this one reaches over the network, through TVM's tracker and RPC server.

Candidates are built and linked here and checked and timed there. Importing it loads no TVM.
"""

from tvm_attention.boards.boards import PATIENCE, Boards

__all__ = ["PATIENCE", "Boards"]
