"""The commands of ``tvm-attention``, a module each.

A module has ``add(commands)``, which puts its parser into the argument tree, and ``run(options)``,
which returns the exit status. What is slow to import (tvm, torch, xgboost) is imported by the
functions that need it.
"""
