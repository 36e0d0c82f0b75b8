"""Many cells, or one: who carries out which, where, and what became of it.

``grid.py`` keeps a grid on disk, ``cell.py`` brings a cell from its composition to an outcome, ``claim.py`` sees that
one process at a time has a run, ``places.py`` hands out this machine's GPUs and cores, ``nodes.py`` knows the machines
of a Slurm job, and ``processes.py`` what a process owes to the one that started it.
"""
