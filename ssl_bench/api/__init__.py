"""Losses, evaluators, views and gradient accumulation for training loops of others; ``import ssl_bench`` gives them."""
