"""The settings of Hydra's launchers, ``hydra.launcher``: their types and ranges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssl_bench.config.schema import check_keys
from ssl_bench.errors import require


@dataclass
class Basic:
    """Types of the settings ``hydra.launcher``: runs one after another in this process."""


@dataclass
class Local(Basic):
    """Those of ``hydra/launcher=local``."""

    n_jobs: int


@dataclass
class Slurm(Basic):
    """Those of ``hydra/launcher=slurm``, as submitit calls them."""

    name: str
    nodes: int
    gpus_per_node: int | None
    cpus_per_task: int | None
    tasks_per_node: int
    mem_gb: float | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    exclude: str | None
    gres: str | None
    comment: str | None
    cpus_per_gpu: int | None
    gpus_per_task: int | None
    mem_per_gpu: str | None
    mem_per_cpu: str | None
    timeout_min: int
    array_parallelism: int
    signal_delay_s: int
    max_num_timeout: int
    stderr_to_stdout: bool
    setup: list[str] | None
    python: str | None
    additional_parameters: Any


LEAST = {"n_jobs": 1, "nodes": 1, "array_parallelism": 1}


def check_settings(settings: Mapping[str, Any], kind: type) -> None:
    """Refuse settings of a launcher that are unknown, or have values that cannot be used.

    Raises:
        ConfigError: naming the key and what to set.
    """
    check_keys(settings, kind, "hydra.launcher.")
    for key, least in LEAST.items():
        value = settings.get(key)
        require(value is None or value >= least, f"hydra.launcher.{key}", value, f"{least} or more")
