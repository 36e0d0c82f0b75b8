"""The machines of a Slurm job that carry out one run together, and the ranks of an outer torchrun.

submitit starts the job once on every machine; each process starts its share of the ranks.
"""

import os
from dataclasses import dataclass

from ssl_bench.errors import ConfigError, InvalidValue

OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
SUBMITIT = {"SUBMITIT_FOLDER", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NODEID"}  # it sets all of its variables


@dataclass(frozen=True)
class Nodes:
    """``count`` machines, of which this is number ``index``; ranks of several meet at the address ``rendezvous``."""

    count: int = 1
    index: int = 0
    rendezvous: str = ""

    def share(self, devices: int) -> int:
        """Ranks on each machine.

        Raises:
            ConfigError: ``devices`` is no multiple of the machines.
        """
        if devices % self.count:
            remedy = f"the GPUs of all nodes, a multiple of launcher.nodes={self.count}"
            raise InvalidValue("devices", devices, remedy)
        return devices // self.count


def nodes() -> Nodes:
    """The machines of this Slurm job; a single one outside Slurm."""
    by_submitit = os.environ.get("SUBMITIT_EXECUTOR") == "slurm" and os.environ.keys() >= SUBMITIT
    if not by_submitit or os.environ["SLURM_JOB_NUM_NODES"] == "1":
        return Nodes()
    from submitit import JobEnvironment

    job = JobEnvironment()
    port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000  # jobs that share a machine need different ports
    return Nodes(job.num_nodes, job.node, f"{job.hostnames[0]}:{port}")


def under_torchrun() -> bool:
    """Whether torchrun has started this process as one of its ranks.

    Raises:
        ConfigError: only some of its variables are set, so that a shell has kept them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    wrong = [name for name in OF_TORCHRUN if not os.environ.get(name, "").isdecimal()]
    wrong += [] if os.environ.get("MASTER_ADDR") else ["MASTER_ADDR"]
    if wrong:
        reason = f"TORCHELASTIC_RUN_ID is set, as by torchrun, but no usable {', '.join(wrong)}"
        raise ConfigError(f"{reason}: unset TORCHELASTIC_RUN_ID, or start the command with torchrun")
    return True
