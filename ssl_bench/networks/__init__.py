"""Networks without a method: backbones, projection heads, their join, batch norm over ranks, and export.

Read backbones.py, heads.py and encoder.py first, then norm.py and export.py.
"""
