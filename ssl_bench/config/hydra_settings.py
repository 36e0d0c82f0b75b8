"""The settings of Hydra's launchers and sweepers, ``hydra.launcher`` and ``hydra.sweeper``: their types and ranges."""

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


@dataclass
class GridSweeper:
    """Types of the settings ``hydra.sweeper``: values of keys beside those of the command line."""

    params: Any


@dataclass
class Halving(GridSweeper):
    """Those of ``hydra/sweeper=halving``."""

    metric: str
    epochs: Any
    keep: float
    group_by: str | None


@dataclass
class Optuna(Halving):
    """Those of ``hydra/sweeper=optuna``."""

    n_trials: int
    n_jobs: int | None
    n_startup_trials: int
    seed: int


LEAST = {"n_trials": 1, "n_jobs": 1, "n_startup_trials": 1, "seed": 0, "nodes": 1, "array_parallelism": 1}


def check_settings(settings: Mapping[str, Any], kind: type, prefix: str) -> None:
    """Refuse settings of a launcher or a sweeper that are unknown, or have values that cannot be used.

    Raises:
        ConfigError: naming the key and what to set.
    """
    check_keys(settings, kind, f"{prefix}.")
    for key, least in LEAST.items():
        value = settings.get(key)
        require(value is None or value >= least, f"{prefix}.{key}", value, f"{least} or more")
    params = settings.get("params")
    require(params is None or isinstance(params, Mapping), f"{prefix}.params", params, "values by key: {seed: '0,1'}")
    if not issubclass(kind, Halving):
        return
    epochs, keep, optional = settings["epochs"], settings["keep"], kind is Optuna
    rising = isinstance(epochs, list) and all(type(epoch) is int and epoch >= 1 for epoch in epochs)
    rising = rising and len(epochs) > 1 and epochs == sorted(set(epochs))
    remedy = f"two or more rising numbers, such as [5,20,80]{', or to null' * optional}"
    require(rising or (optional and epochs is None), f"{prefix}.epochs", epochs, remedy)
    require(0 < keep < 1, f"{prefix}.keep", keep, "a number between 0 and 1, such as 0.34")
