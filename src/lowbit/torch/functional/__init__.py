"""Operators on torch tensors: schemas, CPU kernels, and differentiable functions."""
