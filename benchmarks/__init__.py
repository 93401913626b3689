"""How fast lowbit is beside its peers, measured: `python -m benchmarks`."""
