"""From a composed configuration to an outcome: ``plan`` holds the runs of a command, ``run`` carries out one, ``ranks``
and ``workers`` start its processes, ``grid`` keeps many on disk; ``slots`` and ``nodes`` share GPUs and machines."""
