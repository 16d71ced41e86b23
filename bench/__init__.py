"""The library side by side with its peers; `python bench/bench_attention.py --help` starts it."""
