"""The tuning database: records, the logs that hold them, and the choice of one for a workload."""

from tvm_attention.database.ladder import RUNGS
from tvm_attention.database.lines import format_log, parse_log
from tvm_attention.database.logs import (
    TuningLog,
    available_logs,
    merge_into_log,
    prune_log,
    read_log,
    require_mergeable,
    shipped_logs,
    user_logs,
    warn_of_refusals,
    write_log,
)
from tvm_attention.database.matching import Match, match
from tvm_attention.database.places import searched_target, user_log_path
from tvm_attention.database.provenance import Provenance
from tvm_attention.database.record import SCHEMA, Seconds, TuningRecord
from tvm_attention.database.selection import left_to_measure, merge_records, prune_records, verify

__all__ = [
    "RUNGS",
    "SCHEMA",
    "Match",
    "Provenance",
    "Seconds",
    "TuningLog",
    "TuningRecord",
    "available_logs",
    "format_log",
    "left_to_measure",
    "match",
    "merge_into_log",
    "merge_records",
    "parse_log",
    "prune_log",
    "prune_records",
    "read_log",
    "require_mergeable",
    "searched_target",
    "shipped_logs",
    "user_log_path",
    "user_logs",
    "verify",
    "warn_of_refusals",
    "write_log",
]
