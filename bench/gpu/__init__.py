"""What bench/gpu_suite.py does on a GPU, in small parts: each of them runs on a stand-in as well."""
