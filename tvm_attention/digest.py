"""Identity of the tensor expressions and their schedules, as tuning records name it."""

from collections.abc import Mapping
from types import MappingProxyType

EXPRESSION_DIGEST = "1af23475f6700726"
"""Changes whenever a candidate would lower to different code: a record tuned before says nothing of it.

tests/test_digest.py computes it from the lowered kernels and fails, with the new value, when they change.
"""

CUDA_EXPRESSION_DIGEST = "ce75357607503335"
"""The same of the kernels for GPUs; tests/test_cuda_digest.py computes it."""

EXPRESSIONS: Mapping[str, str] = MappingProxyType(
    {"x86": EXPRESSION_DIGEST, "arm": EXPRESSION_DIGEST, "cuda": CUDA_EXPRESSION_DIGEST}
)
"""By the kind of hardware that a record is for."""
