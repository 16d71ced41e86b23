"""The space of decoding: how keys and values of a few query rows may be multiplied."""

from __future__ import annotations

from tvm_attention.schedules.candidate import Candidate, Choices
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.workload import AttentionWorkload

# Of a query that int8 keys are multiplied by (tvm_attention.compute.digits), by products that a lane adds up.
DIGITS = {4: 3, 2: 2}


def dividing_lanes(dim: int, lanes: int) -> int:
    """The widest vector, up to the machine's, that divides a dimension."""
    while dim % lanes:
        lanes //= 2
    return lanes


def decode_rows(workload: AttentionWorkload) -> int | None:
    """Rows that split-KV folds onto a key-value head; None for a prefill workload."""
    name = workload.length_class
    return int(name.removeprefix("decode-r")) if name.startswith("decode-r") else None


def split_kv_choices(w: AttentionWorkload, m: MachineParameters) -> Choices:
    """The decisions of decoding."""
    integer = (0, 1, 2) if m.pair_products else (0, 1)
    return {
        "score_keys": (1, 2, 4, 8, 16),
        "value_rows": (1, 2, 4, 8),
        "value_vectors": (1, 2, 4, 8, 16),
        "streams": tuple(n for n in (1, 2, 4) if n <= m.lanes),
        "prefetch": (0, 1, 2, 4, 8),
        **({"integer_products": integer} if integer_serves(w, m) else {}),
        **({"half_products": (0, 1, 2)} if halves_serve(w, m) else {}),
    }


def split_kv_refusal(w: AttentionWorkload, m: MachineParameters, c: Candidate) -> str | None:
    """Why a candidate of decoding is refused; None where it is not."""
    assert w.value_dim is not None
    rows = decode_rows(w)
    assert rows is not None
    if c["value_rows"] > rows:
        return f"value_rows={c['value_rows']} exceeds the {rows} rows of the class"
    if (w.value_dim // dividing_lanes(w.value_dim, m.lanes)) % c["value_vectors"]:
        return f"value_vectors={c['value_vectors']} does not divide the value vectors"
    digits, halves = (dict(c.decisions).get(f"{n}_products", 0) for n in ("integer", "half"))
    if halves and c["value_vectors"] % 2:
        return f"value_vectors={c['value_vectors']} is odd: halves of a vector make two"
    if (halves or digits) and c["score_keys"] > m.lanes:
        return f"score_keys={c['score_keys']} exceeds the {m.lanes} keys of a vector"
    sums, keys = rows * (halves or 1), c["score_keys"]
    if digits:
        # Two digits and two keys share a vector of sums.
        sums = DIGITS[m.dot_run] * rows
        sums, keys = (sums, keys) if digits == 1 else (-(-sums // 2), keys // 2)
    if not keys:
        return "score_keys=1: keys are multiplied in pairs"
    if not m.holds(sums, keys):
        return "the score tile does not fit into the registers"
    return None if m.holds(c["value_rows"], c["value_vectors"]) else "value tile too large"


def integer_serves(workload: AttentionWorkload, machine: MachineParameters) -> bool:
    """Whether decoding may multiply int8 keys as integers, by a vector of sums for each digit of a query."""
    if not machine.dot_run or workload.kv_dtype != "int8":
        return False
    return integer_lanes(workload.head_dim, machine) >= min(4, machine.lanes)


def integer_lanes(head_dim: int, machine: MachineParameters) -> int:
    """Lanes of such sums."""
    return dividing_lanes(head_dim, machine.lanes * machine.dot_run) // machine.dot_run


def halves_serve(workload: AttentionWorkload, machine: MachineParameters) -> bool:
    """Whether decoding may multiply float16 numbers as they are stored, eight at a time."""
    w = workload
    assert w.value_dim is not None
    stored = w.dtype == "float16" and w.kv_dtype is None
    return machine.half_products and stored and w.head_dim % 8 == 0 and w.value_dim % 8 == 0


def split_kv_serves(workload: AttentionWorkload, machine: MachineParameters) -> bool:
    """Split-KV wants vectors that divide both head dimensions; others are served as prefill."""
    if workload.output == "weights":
        return False
    assert workload.value_dim is not None
    narrowest = min(4, machine.lanes)
    dims = (workload.head_dim, workload.value_dim)
    return all(dividing_lanes(d, machine.lanes) >= narrowest for d in dims)
