"""Quantize whole models for inference: recipes, replacement modules, reports, and state_dicts."""
