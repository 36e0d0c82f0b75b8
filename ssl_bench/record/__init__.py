"""The record of a run: ``runs``, ``evaluations``, ``checkpoint`` and ``environment`` write and read its files,
``dashboard`` writes its rows and shows them in Weights & Biases and TensorBoard, ``terminal`` and ``streams`` speak on
the terminal. ``printing`` prints every table of this package, and ``drawing`` draws every figure."""
