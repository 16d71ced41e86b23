"""One page about a machine: its hardware, the records in use, and how fast it is, all from files."""

from tvm_attention.report.contents import Contents, gather
from tvm_attention.report.page import page
from tvm_attention.report.results import ResultFile, read_result

__all__ = ["Contents", "ResultFile", "gather", "page", "read_result"]
