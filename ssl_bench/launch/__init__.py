"""Processes: ``run`` carries out one run, whose processes are ``ranks``; ``grid`` is the list of a command's runs, from
which ``workers`` take the next one, here, in other processes, or as jobs of Slurm."""
