"""The machines that carry out one run together, as Slurm hands them to a job that submitit has started.

submitit starts the whole of a cell once on every machine; each starts its share of the ranks.
"""

import os
from dataclasses import dataclass

from ssl_bench.errors import ConfigError


@dataclass(frozen=True)
class Nodes:
    """``count`` machines, of which this is number ``mine``; ``meeting`` is the address where their ranks meet."""

    count: int = 1
    mine: int = 0
    meeting: str = "localhost:0"

    def share(self, devices: int) -> int:
        """The ranks on each.

        Raises:
            ConfigError: they cannot be divided.
        """
        if devices % self.count:
            raise ConfigError(
                f"devices={devices} cannot be divided: set devices, the GPUs of all nodes, to a multiple of "
                f"hydra.launcher.nodes={self.count}"
            )
        return devices // self.count


def nodes() -> Nodes:
    """One, unless this is a task of a Slurm job on several."""
    count = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm" or count == 1:
        return Nodes()
    from submitit import JobEnvironment

    port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000  # another one for each job of a machine
    return Nodes(count, int(os.environ["SLURM_NODEID"]), f"{JobEnvironment().hostnames[0]}:{port}")
