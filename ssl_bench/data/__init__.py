"""Datasets and their views. Read source.py (images of a split), dataset.py, arrays.py, views.py, loader.py, batch.py;
each other dataset is one file that builds on dataset.py or arrays.py. prepare.py and sheet.py are the library of
``ssl-bench prepare``."""
