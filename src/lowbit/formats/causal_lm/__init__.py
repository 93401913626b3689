"""Causal language models in checkpoints, run by transformers one decoder layer at a time."""
