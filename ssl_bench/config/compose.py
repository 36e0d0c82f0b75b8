"""Compose the configuration of a run, resolve it to plain values, and find the files that it names: for a training, and
for a trained run that is evaluated with other settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config import from_disk, plugins, schema, with_hydra
from ssl_bench.config.identity import evaluators, leaves
from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, require, shown
from ssl_bench.files import given_path

CHANGED = ("device", "devices", "precision", "evaluate", "paths", "dataset")  # in a run that is evaluated again


def resolved(cfg: DictConfig, folder: Path | None = None) -> dict[str, Any]:
    """Turn a composed configuration into a plain dict without interpolations and without Hydra's own part.

    Its key ``choices`` has the option that was chosen in each group. The hashes and sizes of the user's own images and
    of initial weights are read from the disk and written into it.

    Raises:
        ConfigError: an interpolation has no value, a value is missing, a plugin cannot be used, or there are no such
            images or weights.
    """
    cfg, choices = with_hydra.parted(cfg)
    from_disk.check_computed(OmegaConf.to_container(cfg, resolve=False))  # type: ignore[arg-type]
    try:
        expand_home(cfg)
        if "dataset" in cfg:
            from_disk.find_images(cfg, choices)
            from_disk.choose_stem(cfg)
            from_disk.find_weights(cfg)
            find_other_images(cfg, folder)
            from_disk.find_labels(cfg)
            from_disk.leave_out(cfg, choices)
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(with_hydra.explain(error)) from error
    if OmegaConf.is_interpolation(cfg, "name"):
        config["name"] = shown(config["name"])  # such as ${seed}
    schema.check_keys(config)
    listed = plugins.versions(config.pop("plugins", []), config)
    config |= {"plugins": listed} if listed else {}
    config["choices"] = {k: v for k, v in sorted(choices.items()) if v is not None and "/" not in k and k != "local"}
    return config


def load(overrides: Sequence[str] = (), folder: Path | None = None) -> dict[str, Any]:
    """Compose ``train.yaml`` with overrides and resolve it.

    Raises:
        ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
    """
    with with_hydra.in_sentences(overrides):
        overrides = with_hydra.as_hydra_takes(overrides)
        with_hydra.check_overrides(overrides)
        return resolved(with_hydra.composed(overrides, folder), folder)


def find_other_images(cfg: DictConfig, folder: Path | None = None) -> None:
    """Replace ``evaluate.on`` by the data sets that it names: options, or mappings of ``dataset`` and keys."""
    given: Any = cfg.evaluate.get("on")
    given = OmegaConf.to_container(given) if OmegaConf.is_config(given) else given
    listed = given if isinstance(given, list) else [given]
    if given is None or not listed:
        return
    nodes = [_other_images(cfg, images, folder) for images in listed]
    raw: Any = OmegaConf.to_container(cfg.evaluate, resolve=False)
    neighbours = [node["knn_k"] for node in nodes if node["knn_k"]]
    with open_dict(cfg):
        cfg.evaluate.on = nodes if isinstance(given, list) else nodes[0]
        for name, evaluator in raw.items():
            if isinstance(evaluator, dict) and evaluator.get("k") == "${dataset.knn_k}" and neighbours:
                cfg.evaluate[name].k = min(neighbours)


def _other_images(cfg: DictConfig, given: Any, folder: Path | None) -> dict[str, Any]:
    keys = given if isinstance(given, dict) else {"dataset": given}
    if {"_target_", "knn_k"} <= keys.keys():  # of a run that is read again
        return keys
    require(bool(keys.get("dataset")), "evaluate.on", given, "a dataset, or to {dataset: folder, root: DIR}")
    values = {k: with_hydra.quoted(v) if isinstance(v, str) else shown(v) for k, v in keys.items()}
    overrides = [f"dataset={keys['dataset']}", *(f"dataset.{k}={v}" for k, v in values.items() if k != "dataset")]
    try:
        with_hydra.check_overrides(overrides)
        other, choices = with_hydra.parted(with_hydra.composed(overrides, folder=folder))
    except (HydraException, ConfigError) as error:
        raise ConfigError(f"evaluate.on: {with_hydra.explain(error, overrides)}") from error
    other.paths.data = cfg.paths.data
    expand_home(other)
    from_disk.find_images(other, choices)
    node: Any = OmegaConf.to_container(other.dataset, resolve=True)
    return {"dataset": choices["dataset"].rpartition(":")[2], **node}


def expand_home(cfg: DictConfig) -> None:
    """Replace ``~`` at the beginning of every path by the home folder."""
    for key, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if isinstance(value, str) and value.startswith("~") and with_hydra.PATH_KEY.fullmatch(key):
            OmegaConf.update(cfg, key, str(given_path(value)), force_add=True)


def evaluated_again(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The keys of a run that is evaluated with overrides of them: ``CHANGED``.

    The options that ``evaluate=...`` names take the place of the run's evaluators, with values of the run where they
    refer to other keys. Without ``evaluate=...`` the run keeps its evaluators, and the overrides change their settings.

    Raises:
        ConfigError: an option or a key does not exist, or an override cannot be read.
    """
    with with_hydra.in_sentences(overrides):
        overrides = [with_hydra.as_typed(override) for override in overrides]
        with_hydra.check_overrides(overrides)
        given = {str(override.key_or_group): override for override in with_hydra.parsed(overrides)}
        for key, override in given.items():
            part = OmegaConf.create({})
            OmegaConf.update(part, key, override.value(), force_add=True)
            from_disk.check_computed(OmegaConf.to_container(part))  # type: ignore[arg-type]
        root: Any = OmegaConf.create({key: value for key, value in config.items() if key != "choices"})
        choices = dict(config["choices"])
        if "evaluate" in given:
            other, chosen = with_hydra.parted(with_hydra.composed([str(given.pop("evaluate").input_line)]))
            choices |= {"evaluate": chosen.get("evaluate")}
            replaced = evaluators(config["evaluate"])
            settings = {name: value for name, value in config["evaluate"].items() if name not in replaced}
            root.evaluate = OmegaConf.merge(evaluators(other.evaluate), settings)
        OmegaConf.set_struct(root, True)
        for key, override in given.items():
            if OmegaConf.select(root, key, default=...) is ...:
                hint = near(key, [path for path, _ in leaves(OmegaConf.to_container(root.evaluate), "evaluate")])
                remedy = f"the run's evaluators are {', '.join(evaluators(root.evaluate)) or 'none'}"
                raise ConfigError(f"there is no key {key}{hint}: {remedy}; evaluate=[NAME,...] takes others")
            value: Any = override.value()
            is_place = key in ("dataset.root", "dataset.path") and isinstance(value, str)
            value = str(given_path(value).absolute()) if is_place else value
            OmegaConf.update(root, key, value, merge=key != "evaluate.on", force_add=True)  # another data set
        expand_home(root)
        find_other_images(root)
        from_disk.find_labels(root)
        from_disk.leave_out(root, choices)
        every: Any = OmegaConf.to_container(root, resolve=True)
    return {key: every[key] for key in CHANGED}
