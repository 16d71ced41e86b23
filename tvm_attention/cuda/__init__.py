"""CUDA: device source, its compilers, the driver, launches on the caller's stream."""
