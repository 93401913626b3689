"""How fast lowbit is beside its peers, measured: `python -m benchmarks`."""

import os

# Before NumPy is loaded: its idle OpenBLAS workers spin for longer than contenders wait for each other. This leaves
# them some milliseconds of it, and their speed.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
