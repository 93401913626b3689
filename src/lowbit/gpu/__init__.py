"""Triton kernels from one source for NVIDIA and AMD GPUs. Experimental until a GPU has run it.

The kernels have been compared with the reference in Triton's interpreter, and compiled for the targets in
`lowbit.gpu.ahead`. `lowbit gpu-check` makes the same comparisons on a GPU. `import lowbit` imports nothing of this.
"""
