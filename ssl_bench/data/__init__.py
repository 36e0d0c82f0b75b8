"""Datasets and their views. Read source.py (images of a split), dataset.py, arrays.py, views.py, batch.py;
each other dataset is one file that builds on dataset.py or arrays.py. prepare.py is the library of
``ssl-bench prepare``."""
