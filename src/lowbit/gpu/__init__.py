"""Triton kernels: one source for NVIDIA and AMD. Nothing here is imported by `import lowbit`."""
