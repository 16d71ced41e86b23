"""Identity of the tensor expressions and their schedules, as tuning records name it."""

EXPRESSION_DIGEST = "29b4ded9fa5e3ff7"
"""Changes whenever a candidate would lower to different code: a record tuned before says nothing of it.

tests/test_digest.py computes it from the lowered kernels and fails, with the new value, when they change.
"""

CUDA_EXPRESSION_DIGEST = "6ed0ae81710a40b1"
"""The same of the kernels for GPUs; tests/test_cuda_digest.py computes it."""
