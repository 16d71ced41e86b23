"""Tuning for a machine that is not here: candidates are compiled for it and their machine code is
modelled."""

from tvm_attention.modelling.tuning import THREADS, tune_modelled

__all__ = ["THREADS", "tune_modelled"]
