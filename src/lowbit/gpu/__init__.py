"""Triton kernels from one source for NVIDIA and AMD GPUs. Experimental until a GPU has run it.

The kernels have been compared with the reference in Triton's interpreter, and compiled for nine targets.
`lowbit gpu-check` makes the same comparisons on a GPU. `import lowbit` imports nothing of this.
"""
