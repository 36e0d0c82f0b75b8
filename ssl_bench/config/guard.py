"""Refuse what nothing reads of Hydra's own part of a configuration, and secrets of the environment.

Hydra only composes. Of its part ``hydra`` this package reads ``launcher``, ``sweeper.params``, ``mode`` and ``help``,
as data: no class that it names is ever made.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from ssl_bench.config import hydra_settings
from ssl_bench.config.identity import datasets_of, is_own
from ssl_bench.errors import ConfigError, require, shown

PLACE = "paths.outputs and name say where a run is"
# Keys with which Hydra would place files, run code or change the environment of a run, with what to use.
REFUSED = {
    "run.dir": PLACE,
    "sweep.dir": PLACE,
    "sweep.subdir": PLACE,
    "output_subdir": "a run's folder has its config.yaml",
    "verbose": "a run writes train.log",
    "job.chdir": "a run stays in the folder that it is started in",
    "callbacks": "there are none",
    "searchpath": "use --config-dir",
    "job.env_copy": "a run has all environment variables",
    "job.env_set": "set environment variables in the shell",
    "job_logging": "a run writes train.log",
    "hydra_logging": "a run writes train.log",
}
UNSET = {  # what these keys are where nobody sets them; others are null or false
    "job_logging.version": 1,
    "hydra_logging.version": 1,
    "run.dir": "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}",
    "sweep.dir": "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}",
    "sweep.subdir": "${hydra.job.num}",
    "output_subdir": ".hydra",
}
LAUNCHERS = {"basic": hydra_settings.Basic, "local": hydra_settings.Local, "slurm": hydra_settings.Slurm}
NO_SWEEPER = "leave it out: write the values of a grid as key=a,b, and search with scripts/examples/search.py"
READABLE = re.compile(  # by ${oc.env:NAME}
    r"(SSL_BENCH_|SLURM_(?!JWT$))\w+|HOME|USER|TMPDIR|CUDA_VISIBLE_DEVICES|WANDB_(MODE|DISABLED|PROJECT|ENTITY|TAGS)"
)


def read_environment(name: str, *default: str | None) -> str | None:
    """The value of ``${oc.env:NAME,default}``, of variables that a configuration may hold: it is written to disk.

    ``~`` at its beginning is the home folder.

    Raises:
        ConfigError: it is another variable.
        KeyError: it is not set, and there is no default.
    """
    if not READABLE.fullmatch(name):
        raise ConfigError(f'the environment variable {name} is not read: write "${name}", which the shell replaces')
    value: str | None = oc.env(name, *default)
    return value and os.path.expanduser(value)


def check_unread(node: DictConfig) -> None:
    """Refuse settings in ``hydra`` that nothing reads, and a launcher or sweeper that is no mapping.

    Raises:
        ConfigError: naming the key.
    """
    for path, value in leaves(OmegaConf.to_container(node, resolve=False)):
        key = next((key for key in REFUSED if f"{path}.".startswith(f"{key}.")), "")
        if key and value not in (None, False, UNSET.get(path)):
            raise ConfigError(f"hydra.{key} is set: leave it out: {REFUSED[key]}")
    for part in ("launcher", "sweeper"):
        if not isinstance(node[part], DictConfig):
            raise ConfigError(f"hydra.{part}={node[part]}: leave it out: write hydra/{part}=NAME, with a slash")


def launcher(node: DictConfig) -> tuple[str, dict[str, Any]]:
    """The chosen launcher and its settings.

    Raises:
        ConfigError: there is no such option, or a setting is unknown or has another type or range.
        OmegaConfBaseException: an interpolation or a setting has no value.
    """
    name = node.runtime.choices["hydra/launcher"]
    if name not in LAUNCHERS:
        *most, last = LAUNCHERS
        raise ConfigError(f"hydra/launcher={name}: set hydra/launcher to {', '.join(most)} or {last}")
    values = _values(node, "launcher")
    hydra_settings.check_settings(values, LAUNCHERS[name])
    return name, values


def values_of_grid(node: DictConfig) -> dict[str, Any]:
    """The values of keys that an experiment gives its grid, ``hydra.sweeper.params``.

    Raises:
        ConfigError: another sweeper is chosen, or it has other settings.
        OmegaConfBaseException: an interpolation has no value.
    """
    if (name := node.runtime.choices["hydra/sweeper"]) != "basic":
        raise ConfigError(f"hydra/sweeper={name}: {NO_SWEEPER}")
    values = _values(node, "sweeper")
    params = values.pop("params", None) or {}
    for key, value in values.items():
        raise ConfigError(f"hydra.sweeper.{key}={shown(value)}: {NO_SWEEPER}")
    require(isinstance(params, Mapping), "hydra.sweeper.params", params, "values by key: {seed: '0,1'}")
    return dict(params)


def _values(node: DictConfig, part: str) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(node[part], resolve=True, throw_on_missing=True)
    target = str(values.pop("_target_", "hydra."))  # Hydra's own option basic has one,
    values.pop("max_batch_size", None)  # and this, of which it makes nothing here
    if not target.startswith("hydra."):
        raise ConfigError(f"hydra.{part}._target_={shown(target)}: leave it out: nothing is made of it")
    return dict(values)


def check_computed(config: Mapping[str, Any]) -> None:
    """Refuse values of keys that are computed from what is on the disk, and that name a run or an evaluation.

    Args:
        config: a configuration, or a part of it, that somebody has written.

    Raises:
        ConfigError: naming the key.
    """
    evaluate = config.get("evaluate")
    evaluate = evaluate if isinstance(evaluate, Mapping) else {}
    others, labels = datasets_of(evaluate), evaluate.get("labels")
    values = {key: config.get(key) for key in ("choices", "steady")}
    for key, node in (("dataset", config.get("dataset")), *(("evaluate.on", node) for node in others)):
        if isinstance(node, Mapping):
            computed = ("content", "train_images", "least_labels", "knn_k") if is_own(node) else ("content",)
            values |= {f"{key}.{name}": node[name] for name in computed if node.get(name) is not None}
    for node in labels if isinstance(labels, list) else ():
        values |= {"evaluate.labels": node} if isinstance(node, Mapping) else {}
    for key, value in values.items():
        if value is not None:
            remedy = "write only the file in it" if key == "evaluate.labels" else "leave it out"
            raise ConfigError(f"{key}={shown(value)}: {remedy}: ssl-bench computes this value")


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration that is no mapping and no list, with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, path)
    else:
        yield path, node
