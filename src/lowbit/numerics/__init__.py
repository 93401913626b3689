"""Numeric facts: dtypes, schemes, parameters, storage and tensors. NumPy only, no native module."""
