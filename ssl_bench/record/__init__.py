"""The record of a run: ``metrics`` and ``checkpoint`` write its files, ``wandb`` shows them in Weights & Biases,
``log`` and ``progress`` speak on the terminal, ``summary`` and ``plots`` present a finished run; ``printing`` prints
every table of this package."""
