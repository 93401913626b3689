"""Whole models quantized for inference: modules over quantized weights, and what replaces a model's layers by them."""
