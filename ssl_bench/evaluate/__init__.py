"""Evaluation of a frozen network, or of raw pixels, on labelled images.

Read target.py, artifacts.py and run.py first, then any evaluator in the other files.
"""
