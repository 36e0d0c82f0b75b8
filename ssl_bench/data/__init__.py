"""Datasets and their views. Read arrays.py (datasets and splits), views.py, loader.py, batch.py; each other dataset
is one file that builds on arrays.py. prepare.py and sheet.py are the library of ``ssl-bench prepare``."""
