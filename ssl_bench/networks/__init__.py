"""Networks without a method: backbones, projection heads, their join, batch statistics, shuffled groups, and export.

Read backbones.py, heads.py and encoder.py first, then norm.py, trial.py, weights.py, export.py.

.. include:: README.md
"""
