"""Where a kernel's time goes: sampled, counted, left out. docs/profiling.md says how to use it."""
