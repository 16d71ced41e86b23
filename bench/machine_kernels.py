"""Two kernels that show what the machine can do: multiply-adds on registers and reads from memory.

They are written with no future import: TVMScript reads the annotations below as values.
"""

# mypy: disable-error-code="valid-type,name-defined,untyped-decorator,no-untyped-def,unused-ignore"

from typing import Any

from tvm_attention._tvm import import_tvm


def multiply_add(tasks: int, chains: int, lanes: int, steps: int) -> Any:
    """fma(a, b, out (tasks, chains, lanes)): in each task, ``chains`` independent vectors x become
    x * a + b, ``steps`` times: 2 * tasks * chains * lanes * steps operations."""
    import_tvm()
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def fma(a: T.float32, b: T.float32, out: T.Buffer((tasks, chains, lanes), "float32")):
        for t in T.parallel(tasks):
            with T.sblock("task"):
                T.writes(out[t, 0:chains, 0:lanes])
                x = T.sblock_alloc_buffer((chains, lanes), "float32", scope="local")
                for c in T.unroll(chains):
                    for i in T.vectorized(lanes):
                        x[c, i] = a
                for _s in T.serial(steps):
                    for c in T.unroll(chains):
                        for i in T.vectorized(lanes):
                            x[c, i] = x[c, i] * a + b
                for c in T.unroll(chains):
                    for i in T.vectorized(lanes):
                        out[t, c, i] = x[c, i]

    return fma


def read(tasks: int, streams: int, vectors: int, lanes: int) -> Any:
    """read(data (tasks, streams, blocks, vectors, lanes), out (tasks, streams, vectors, lanes)):
    sums over the blocks, ``streams`` places of memory at a time in each task."""
    import_tvm()
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def read(memory: T.handle, out: T.Buffer((tasks, streams, vectors, lanes), "float32")):
        blocks = T.int64()
        data = T.match_buffer(memory, (tasks, streams, blocks, vectors, lanes), "float32")
        for t in T.parallel(tasks):
            with T.sblock("task"):
                T.reads(data[t, 0:streams, 0:blocks, 0:vectors, 0:lanes])
                T.writes(out[t, 0:streams, 0:vectors, 0:lanes])
                x = T.sblock_alloc_buffer((streams, vectors, lanes), "float32", scope="local")
                for s, c in T.grid(streams, vectors):
                    for i in T.vectorized(lanes):
                        x[s, c, i] = T.float32(0)
                for b in T.serial(blocks):
                    for s in T.unroll(streams):
                        for c in T.unroll(vectors):
                            for i in T.vectorized(lanes):
                                x[s, c, i] = x[s, c, i] + data[t, s, b, c, i]
                for s, c in T.grid(streams, vectors):
                    for i in T.vectorized(lanes):
                        out[t, s, c, i] = x[s, c, i]

    return read
