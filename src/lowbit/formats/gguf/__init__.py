"""GGUF files: their headers."""
