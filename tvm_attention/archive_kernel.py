"""A kernel of an exported archive and the calls it serves."""

from __future__ import annotations

from typing import Any

from tvm_attention.arrays import ArrayKind, NumPyArrays, Shape, is_dense
from tvm_attention.call import Call
from tvm_attention.errors import KernelBuildError, UnsupportedError
from tvm_attention.export.archive import Archive, ArchiveError
from tvm_attention.export.archive.interface import ABI, CAUSAL, DTYPES, Arrays, Problem, Strides
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import ArchiveSource
from tvm_attention.operands import kernel_strides
from tvm_attention.outputs import no_keys
from tvm_attention.prepared import workspace
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import written

_NONE = 0  # TVA_NONE


class ArchiveKernel(Kernel):
    """Attention by an archive's machine code; called and checked as one that was built here.

    The archive chooses again for each call: lengths may be nearer to another of its kernels.
    """

    def __init__(
        self, archive: Archive, workload: AttentionWorkload, name: str, num_threads: int
    ) -> None:
        target = next((k["target"] for k in archive.kernels() if k["name"] == name), "any")
        super().__init__(
            workload, ArchiveSource(str(archive.path.parent), name, target), None, num_threads
        )
        self._archive = archive

    def compute(
        self, kind: ArrayKind, call: Call, inputs: tuple[Any, Any, Any], out: Any, lse: Any = None
    ) -> None:
        """Write attention into ``out`` and the log-sum-exp of every row into ``lse``."""
        if call.sizes.empty or call.sizes.key_length == 0:
            no_keys(kind, call, out, lse)
            return
        if min(kind.strides(out)) < 0:
            made = kind.empty(kind.shape(out), inputs[0])
            self.compute(kind, call, inputs, made, lse)
            out[...] = made
            return
        tensors = (*(x if _readable(kind, x) else kind.dense(x) for x in inputs), out)
        problem = problem_of(call, self.workload, [kind.strides(x) for x in tensors])
        if call.kv_batches != call.sizes.batch:  # packed sequences
            problem.query_rows, problem.key_rows = kind.shape(tensors[0])[2], call.key_rows
        if lse is not None:
            batch, head, _ = kernel_strides((*kind.strides(lse), 1))
            problem.lse = Strides(batch, head)
        assert self.num_threads is not None
        try:
            self._archive.set_threads(problem, self.num_threads)
            prepared, size = self._archive.prepare(problem)
            own, keep = workspace, None
            address = own.address
            if size > own.size:
                address, keep = own.grow(size)
            self._archive.run(prepared, _arrays_of(kind, call, tensors, lse), address, size)
            del keep
        except ArchiveError as error:
            raise self._refused(call, error) from error

    def _refused(self, call: Call, error: ArchiveError) -> Exception:
        if error.status in ("UNSUPPORTED", "PROCESSOR"):
            wanted = written(call.workload(self.workload.output))
            return UnsupportedError(f"{error} (`tvm-attention export --workload {wanted} ...`)")
        return KernelBuildError(f"archive {self._archive.path.parent}: {error}")


def _readable(kind: ArrayKind, array: Any) -> bool:
    """Whether an archive reads an array in place: it takes no strides that go backwards, and those of one
    row for all, zeros, mean something else to it."""
    shape, strides = kind.shape(array), kind.strides(array)
    return (
        min(strides) >= 0
        and (any(strides[:-1]) or max(shape[:-1]) <= 1)
        and is_dense(shape, strides)
    )


def example_problem(workload: AttentionWorkload) -> Problem:
    """A problem of a workload's kind, to ask an archive whether it has a kernel."""
    w = workload
    problem = _problem(w, w.batch, w.query_heads, w.kv_heads or 0, w.query_length, w.key_length)
    if w.mask is not None:
        problem.mask_strides = (0, 0, 0 if w.mask_per_key else w.key_length, 1)
        if not (w.mask_per_key or w.mask_dense):
            problem.mask_strides[3] = w.query_length
    if w.paged:
        problem.page_rows = problem.pages = 1
        problem.page_columns = w.key_length
    if w.output == "weights":  # of which archives have none
        problem.dtype = -1
    return problem


def _problem(
    w: AttentionWorkload, batch: int, heads: int, kv_heads: int, rows: int, keys: int
) -> Problem:
    assert w.value_dim is not None
    return Problem(
        abi=ABI, dtype=DTYPES[w.dtype], head_dim=w.head_dim, value_dim=w.value_dim, batch=batch,
        query_heads=heads, kv_heads=kv_heads, query_length=rows, key_length=keys,
        causal=CAUSAL[w.causal if w.causal is None else str(w.causal)], softcap=float(w.softcap),
        windowed=int(w.window is not None), mask_dtype=DTYPES[w.mask] if w.mask else _NONE,
        has_alibi=int(w.alibi), has_sinks=int(w.sinks), has_sequences=int(w.ragged),
        has_lse=int(w.output == "attention_and_lse"), kv_dtype=DTYPES[w.kv_dtype] if w.kv_dtype else _NONE,
    )  # fmt: skip


def problem_of(call: Call, w: AttentionWorkload, strides: list[Shape]) -> Problem:
    """A call's problem; ``strides`` are those of (query, key, value, out)."""
    s, o = call.sizes, call.options
    problem = _problem(w, s.batch, s.query_heads, s.kv_heads, s.query_length, s.key_length)
    problem.causal, problem.scale = CAUSAL[o.causal], o.scale
    for name, given in zip(("query", "key", "value", "out"), strides, strict=True):
        setattr(problem, name, Strides(*kernel_strides(given)))
    if o.softcap is not None:
        problem.softcap = o.softcap
    if o.window is not None:
        problem.window_left, problem.window_right = o.window
    if o.mask is not None:
        problem.mask_strides = o.mask.strides
    if call.pages is not None:
        p = call.pages
        problem.page_rows, problem.pages = 1 << p.shift, int(p.table.max(initial=0)) + 1
        problem.page_columns, problem.page_strides = (
            p.table.shape[1],
            (p.key_stride, p.value_stride),
        )
    if call.scales is not None:
        problem.key_scale = Strides(*call.scales.key_strides)
        problem.value_scale = Strides(*call.scales.value_strides)
    return problem


def _arrays_of(kind: ArrayKind, call: Call, tensors: tuple[Any, ...], lse: Any) -> Arrays:
    o, small = call.options, NumPyArrays().address
    arrays = Arrays(*(kind.address(x) for x in tensors))
    if o.mask is not None:
        arrays.mask = kind.address(o.mask.array)
    scales = call.scales
    for name, array in (
        ("alibi_slopes", o.alibi_slopes), ("sinks", o.sinks), ("sequences", call.ragged),
        ("page_table", None if call.pages is None else call.pages.table),
        ("key_scale", None if scales is None else scales.key),
        ("value_scale", None if scales is None else scales.value),
    ):  # fmt: skip
        if array is not None:
            setattr(arrays, name, small(array))
    if lse is not None:
        arrays.lse = kind.address(lse)
    return arrays
