"""Differentiable operators on torch tensors: schemas, CPU kernels, gradients, and the functions that call them."""
