"""Contrastive self-supervised learning with loss, negatives, batch size and temperature as independent axes."""

__version__ = "0.1.0"
