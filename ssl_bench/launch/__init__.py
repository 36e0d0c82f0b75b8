"""Processes: ``run`` carries out one run, in its ranks too, or a list of runs; ``grid`` is the list of a command, whose
runs go on here, in several processes, or as jobs of Slurm (``slurm``); ``processes`` are how they start and end."""
