"""What runs and on what: the native module, arrays, threads, hardware and its measured limits."""
