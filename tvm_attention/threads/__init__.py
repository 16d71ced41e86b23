"""Running kernels' parallel loops on the thread pool the process already has.

A kernel compiled by TVM starts its parallel loops through a function pointer of its own, which
TVM's loader sets to TVM's thread pool. Next to another pool (torch's, say) the two take the cores
from each other. :func:`bind_function` goes into a kernel's module when it is built, and
``launcher().bind(module)`` makes the loaded kernel use the OpenMP library that is in the process,
or, where there is none, a pool of our own that sleeps when idle.
"""

from tvm_attention.threads.binding import BIND_FUNCTION, bind_function
from tvm_attention.threads.launching import Launcher, launcher, provide_launch

__all__ = ["BIND_FUNCTION", "Launcher", "bind_function", "launcher", "provide_launch"]
