"""From a composed configuration to an outcome: ``job`` carries out one run, ``grid`` keeps many on disk, ``ranks``
starts the processes; ``lock``, ``slots``, ``nodes`` and ``processes`` share runs, GPUs, machines and signals."""
