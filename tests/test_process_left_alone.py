"""What importing, building and computing leave as they were in the process; and its memory."""

from __future__ import annotations

import pytest
from fresh_process import run_script

STATE = """
import ctypes, faulthandler, os, platform, signal, sys
import numpy as np
import torch

def floating_point_mode():
    "The control words, without the flags that say what has happened."
    words = (ctypes.c_uint32 * 16)()
    assert ctypes.CDLL("libm.so.6").fegetenv(words) == 0
    if platform.machine() == "x86_64":
        return words[0] & 0xFFFF, words[7] & ~0x3F
    return words[0]  # aarch64: FPCR

def action(number):
    "The handler and the flags that the system has for a signal; Python does not know all of them."
    found = ctypes.create_string_buffer(1024)
    assert ctypes.CDLL(None).sigaction(number, None, found) == 0
    return found.raw[:8], found.raw[136:140]  # of struct sigaction on x86-64 and ARM

def state():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "affinity": os.sched_getaffinity(0),
        "of each thread": {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")},
        "floating point": floating_point_mode(),
        "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
        **{f"signal {n}": (signal.getsignal(n), action(n)) for n in signal.valid_signals()},
        "numpy": np.geterr(),
        "torch": (
            torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
        ),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.getrecursionlimit(), sys.stdout),
        # torch sets one itself, TORCHINDUCTOR_CACHE_DIR
        "environment": {k: v for k, v in os.environ.items() if not k.startswith("TORCH")},
        "folder": os.getcwd(),
        "mask": os.umask(os.umask(0o22)),
    }

faulthandler.enable()
signal.signal(signal.SIGUSR1, lambda *_: None)
# Shells start background programs with it ignored, and the C library's own flag then comes with any change.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_default_dtype(torch.float64)
torch.rand(500, 500) @ torch.rand(500, 500)  # its pool is there
before = state()

import tvm_attention as ta
import tvm_attention.torch

workload = ta.AttentionWorkload(head_dim=16, query_heads=2, query_length=9, key_length=9)
q, k, v = np.random.default_rng(0).random((3, 1, 2, 9, 16), np.float32)
ta.load(workload)(q, k, v)  # builds
for wrap in (np.asarray, torch.from_numpy):
    for options in ({}, {"is_causal": True}, {"is_causal": True}):
        ta.scaled_dot_product_attention(wrap(q), wrap(k), wrap(v), **options)
with tvm_attention.torch.enabled(), torch.inference_mode():
    torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)))
try:
    ta.attention(q, k[:, :1, :3], v)
except ta.AttentionError:
    pass
after = state()
changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
assert not changed, changed
"""


def test_nothing_else_changes() -> None:
    pytest.importorskip("torch")
    run_script(STATE)


GROWTH = """
import numpy as np
import psutil
import torch
import tvm_attention as ta

torch.set_num_threads(1)
WARM, CALLS = 20_000, 100_000
rng = np.random.default_rng(0)
arrays = [rng.random((1, 2, n, 16), np.float32) for n in range(9, 73)]  # of one kernel
tensors = [torch.from_numpy(x) for x in arrays]
out = np.empty_like(arrays[0])
kernel = ta.load(ta.AttentionWorkload(head_dim=16, query_heads=2, query_length=9, key_length=9))

def call(number):
    kind = number % 8
    if kind == 0:
        kernel(arrays[0], arrays[0], arrays[0], out)
    elif kind == 1:  # one of 64 lengths
        x = arrays[number // 8 % 64]
        ta.scaled_dot_product_attention(x, x, x)
    elif kind == 2:
        x = tensors[number // 8 % 64]
        ta.scaled_dot_product_attention(x, x, x, is_causal=True)
    elif kind == 3:  # refused
        try:
            ta.scaled_dot_product_attention(arrays[3], arrays[4], arrays[5])
        except ta.AttentionError:
            pass
    else:
        x = (arrays if kind < 6 else tensors)[20]
        ta.scaled_dot_product_attention(x, x, x)

process = psutil.Process()
for number in range(WARM):
    call(number)
before = process.memory_info().rss
for number in range(CALLS):
    call(number)
grown = process.memory_info().rss - before
# A leak of the smallest object in each call, or of 400 bytes in an eighth of them, takes 4.8 MB.
assert grown < 3_000_000, grown
print(grown)
"""


def test_memory_does_not_grow_with_calls() -> None:
    pytest.importorskip("torch")
    run_script(
        GROWTH, TVM_ATTENTION_NUM_THREADS="1"
    )  # two would wait for each other on a busy machine
