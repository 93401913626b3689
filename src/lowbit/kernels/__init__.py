"""Kernels by device. `cpu` calls the native module."""
