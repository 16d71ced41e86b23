"""Searching for the fastest schedule on a machine. Importing it loads neither TVM nor XGBoost."""

from tvm_attention.tuning.progress import TuningOutcome, TuningProgress, TuningResult
from tvm_attention.tuning.session import tune

__all__ = ["TuningOutcome", "TuningProgress", "TuningResult", "tune"]
