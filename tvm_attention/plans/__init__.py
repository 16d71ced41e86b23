"""Calls seen before as machine code runs them: one Python call from arrays to result.

A :class:`Planner` puts what is remembered of a call into words that the code in this folder (run.ll)
compares a caller's arrays with.
"""

from tvm_attention.plans.native import run_remembered
from tvm_attention.plans.planners import numpy_planner, torch_planner
from tvm_attention.plans.table import Planner, PlanTable

__all__ = ["PlanTable", "Planner", "numpy_planner", "run_remembered", "torch_planner"]
