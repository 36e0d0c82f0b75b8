"""The contrastive objective: anchors and candidates in, a loss per anchor out.

Read contrast, candidates, negatives, temperature, loss and losses/; then tiles, memory, diagnostics.

.. include:: README.md
"""
