"""Compose the configuration with Hydra, and put Hydra's errors into one sentence."""

import contextlib
import math
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config import from_disk, guard, identity, plugins, wandb
from ssl_bench.config.build import converted, former, near
from ssl_bench.config.schema import Config, directory
from ssl_bench.config.typed import PATH_KEY, as_typed, quoted
from ssl_bench.errors import ConfigError, require, shown
from ssl_bench.files import given_path
from ssl_bench.hardware import concurrent_runs

ConfigStore.instance().store("schema", Config)
# Hydra 1.4 has no older behaviour to choose from, and warns if one is named.
VERSION_BASE = {"version_base": "1.3"} if version("hydra-core").startswith("1.3.") else {}
# OmegaConf 2.4 has another name for the function.
register: Any = OmegaConf.register_new_resolver if version("omegaconf") < "2.4" else OmegaConf.register_resolver
register("oc.env", guard.read_environment, replace=True)
register("add", lambda *numbers: sum(numbers), replace=True)  # ${add:3,${dataset.bits}}
register("jobs", concurrent_runs, replace=True)  # ${jobs:${devices},${runs_per_gpu}}
register(  # ${per_node:${devices},${.nodes},8}: eight for each device of a node
    "per_node", lambda devices, nodes, each=1: each * math.ceil(devices / nodes), replace=True
)
register("wandb_mode", wandb.mode, replace=True)  # ${wandb_mode:WANDB_MODE,WANDB_DISABLED}
register("wandb_tags", wandb.tags, replace=True)
_MISSING = object()
_OPEN: ContextVar[bool] = ContextVar("_OPEN", default=False)  # Hydra has the folder of the YAML files
_NO_KEY = r"Could not override '(.+?)'"  # of Hydra's error
# The key that group=0.1 may mean.
NUMBER_KEYS = {"batch_size": "size", "negatives": "k", "optimizer": "lr", "temperature": "tau"}


class NoSuchKey(ConfigError):
    """The chosen options have no key of a name; other options may have it."""


def resolve(cfg: Any, choices: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Turn a composed configuration into a plain dict without interpolations.

    Its key ``choices`` has the option that was chosen in each group. What the user's own images and weights are is
    found on the disk, and written into it.

    Args:
        folder: of ``--config-dir``.

    Raises:
        ConfigError: an interpolation has no value, a value is missing, a plugin cannot be used, or there are no such
            images or weights.
    """
    choices = dict(choices)
    try:
        _expand_home(cfg)
        if "dataset" in cfg:
            from_disk.find_images(cfg, choices)
            from_disk.find_weights(cfg)
            _find_other_images(cfg, folder)
            from_disk.find_labels(cfg)
            from_disk.leave_out(cfg, choices)
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    if OmegaConf.is_interpolation(cfg, "name"):
        config["name"] = shown(config["name"])  # such as ${seed}
    converted(config.get("name", ""), str, "name")  # before it names a folder
    listed = plugins.versions(config.pop("plugins", []))
    plugins.check_listed(config, listed)
    config |= {"plugins": listed} if listed else {}
    config["choices"] = {k: v for k, v in sorted(choices.items()) if v is not None and "/" not in k and k != "local"}
    return config


def _find_other_images(cfg: DictConfig, folder: Path | None = None) -> None:
    """Replace ``evaluate.on`` by the data sets that it names: options, or mappings of ``dataset`` and keys."""
    given: Any = OmegaConf.to_container(cfg.evaluate).get("on")  # type: ignore[union-attr]
    each = given if isinstance(given, list) else [given]
    if given is None or not each:
        return
    nodes = [_other_images(cfg, one, folder) for one in each]
    raw: Any = OmegaConf.to_container(cfg.evaluate, resolve=False)
    neighbours = [node["knn_k"] for node in nodes if node["knn_k"]]
    with open_dict(cfg):
        cfg.evaluate.on = nodes if isinstance(given, list) else nodes[0]
        for name, evaluator in raw.items():
            if isinstance(evaluator, dict) and evaluator.get("k") == "${dataset.knn_k}" and neighbours:
                cfg.evaluate[name].k = min(neighbours)


def _other_images(cfg: DictConfig, given: Any, folder: Path | None) -> dict[str, Any]:
    """The node of a data set that ``evaluate.on`` names."""
    keys = given if isinstance(given, dict) else {"dataset": given}
    if "knn_k" in keys:  # of a run that is read again
        return keys
    require(bool(keys.get("dataset")), "evaluate.on", given, "a dataset, or to {dataset: folder, root: DIR}")
    values = {k: quoted(v) if isinstance(v, str) else shown(v) for k, v in keys.items()}
    overrides = [f"dataset={keys['dataset']}", *(f"dataset.{k}={v}" for k, v in values.items() if k != "dataset")]
    try:
        check_overrides(overrides)
        other, choices = _parts(composed(overrides, folder=folder))
    except (HydraException, ConfigError) as error:
        raise ConfigError(f"evaluate.on: {explain(error, overrides)}") from error
    other.paths.data = cfg.paths.data
    _expand_home(other)
    from_disk.find_images(other, choices)
    node: Any = OmegaConf.to_container(other.dataset, resolve=True)
    return {"dataset": choices["dataset"].rpartition(":")[2], **node}


def load(overrides: Sequence[str] = (), primary: str = "train", folder: Path | None = None) -> dict[str, Any]:
    """Compose ``<primary>.yaml`` with overrides and resolve it.

    Args:
        folder: with further options, of ``--config-dir``.

    Raises:
        ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
    """
    with in_sentences(overrides, primary):
        overrides = as_hydra_takes(overrides)
        check_overrides(overrides)
        return resolved(composed(overrides, primary, folder), folder)


@contextlib.contextmanager
def in_sentences(overrides: Sequence[str], primary: str) -> Iterator[None]:
    """Put what Hydra and OmegaConf raise in the block into a ConfigError.

    Args:
        overrides, primary: what is composed.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        refusal = NoSuchKey if re.search(_NO_KEY, str(error)) else ConfigError
        raise refusal(explain(error, overrides, primary)) from error


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """Let Hydra find the YAML files in the block, which may stand in another one, or in a program of Hydra's own."""
    if _OPEN.get():
        yield
        return
    with initialize_config_dir(str(directory()), **VERSION_BASE):
        token = _OPEN.set(True)
        try:
            yield
        finally:
            _OPEN.reset(token)


def composed(overrides: Sequence[str], primary: str = "train", folder: Path | None = None) -> DictConfig:
    """Compose ``<primary>.yaml`` with overrides; Hydra's own part is its key ``hydra``.

    Args:
        folder: with further options, of ``--config-dir``.

    Raises:
        ConfigError: a file is no YAML, or Hydra's part holds what is refused.
        HydraException: an override names a key or an option that does not exist, or a value of the wrong type.
    """
    place = [f"file://{folder.absolute()}"] if folder else []
    search = [f"hydra.searchpath=[{quoted(place[0])}]"] if place else []
    try:
        with opened():
            cfg = compose(primary, [*search, *overrides], return_hydra_config=True)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"a YAML file of the configuration cannot be read: {error}") from error
    if place and cfg.hydra.searchpath == place:
        cfg.hydra.searchpath = []
    guard.check_unread(cfg.hydra)
    return cfg


def resolved(cfg: DictConfig, folder: Path | None = None) -> dict[str, Any]:
    """Resolve a configuration of :func:`composed`, without Hydra's own part."""
    return resolve(*_parts(cfg), folder)


def as_yaml(cfg: DictConfig, part: str, package: str | None, resolve: bool) -> str:
    """A composed configuration as YAML.

    Args:
        part: ``job``, ``hydra`` or ``all`` of it.
        package: only what stands at this key.
        resolve: replace interpolations by their values.

    Raises:
        ConfigError: there is no such key.
    """
    with open_dict(cfg):
        for key in list(cfg):
            if part != "all" and (key == "hydra") != (part == "hydra") and key != (package or "").partition(".")[0]:
                del cfg[key]
    node: Any = OmegaConf.select(cfg, package) if package and package != "_global_" else cfg
    if node is None:
        raise ConfigError(f"--package={package}: there is no such key: --cfg {part} prints them all")
    if not OmegaConf.is_config(node):
        return str(node)
    head = f"# @package {package}\n" if package else ""
    return (head + OmegaConf.to_yaml(node, resolve=resolve)).rstrip("\n")


def _parts(cfg: DictConfig) -> tuple[DictConfig, dict[str, Any]]:
    """A composed configuration without Hydra's own part, and the option that was chosen in each group."""
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


def evaluated_again(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The keys ``evaluate``, ``paths`` and ``dataset`` of a run that is evaluated with overrides of them.

    The options that ``evaluate=...`` names take the place of the run's evaluators, with values of the run where they
    refer to other keys. Without it the run's own evaluators stay, and the overrides change their settings.

    Args:
        config: resolved configuration of the run.

    Raises:
        ConfigError: an option or a key does not exist, or an override cannot be read.
    """
    try:
        overrides = list(map(as_typed, overrides))
        check_overrides(overrides)
        given = {each.key_or_group: each for each in OverridesParser.create().parse_overrides(list(overrides))}
        root: Any = OmegaConf.create({key: value for key, value in config.items() if key != "choices"})
        root.evaluate = {"on": None, "labels": [1.0]} | config["evaluate"]  # runs of older versions lack it
        choices = dict(config["choices"])
        if "evaluate" in given:
            other, chosen = _parts(composed([str(given.pop("evaluate").input_line)]))
            choices |= {"evaluate": chosen.get("evaluate")}
            evaluators = identity.evaluators(other.evaluate)
            own = identity.evaluators(config["evaluate"])
            settings = {name: value for name, value in config["evaluate"].items() if name not in own}
            root.evaluate = OmegaConf.merge(evaluators, settings)
        OmegaConf.set_struct(root, True)
        for key, override in given.items():
            if OmegaConf.select(root, key, default=_MISSING) is _MISSING:
                names = list(identity.evaluators(root.evaluate))
                known = [path for path, _ in guard.leaves(OmegaConf.to_container(root.evaluate), "evaluate")]
                remedy = f"the run's evaluators are {', '.join(names) or 'none'}; evaluate=[NAME,...] takes others"
                beside = [other for other in known if other.startswith(f"{key.rpartition('.')[0]}.")]
                raise ConfigError(f"there is no key {key}{near(key, beside)}: {remedy}")
            value: Any = override.value()
            is_place = key in ("dataset.root", "dataset.path") and isinstance(value, str)
            value = str(given_path(value).absolute()) if is_place else value
            OmegaConf.update(root, key, value, merge=key != "evaluate.on", force_add=True)  # another data set
        _expand_home(root)
        _find_other_images(root)
        from_disk.find_labels(root)
        from_disk.leave_out(root, choices)
        resolved: Any = OmegaConf.to_container(root, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain(error, overrides)) from error
    return {key: resolved[key] for key in ("evaluate", "paths", "dataset")}


class Composer:
    """Composes many configurations: Hydra composes each combination of groups once, values are set in copies of it.

    Hydra takes a tenth of a second for a combination of groups. Setting values takes a few milliseconds, through the
    same functions as in Hydra.

    Args:
        folder: with further options, of ``--config-dir``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._bases: dict[tuple[str, tuple[str, ...]], tuple[bytes, Mapping[str, Any]]] = {}

    def load(self, overrides: Sequence[str], primary: str = "train") -> dict[str, Any]:
        """Compose as :func:`load` does.

        Raises:
            ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
        """
        try:
            return self._with_values(overrides, primary)
        except (HydraException, OmegaConfBaseException, ValueError):
            return load(overrides, primary, self._folder)  # for anything unusual, and for Hydra's own error

    def _with_values(self, overrides: Sequence[str], primary: str) -> dict[str, Any]:
        known = groups()
        chosen, values = list[str](), list[str]()  # what Hydra has to compose, and what sets a value
        for override in map(as_typed, overrides):
            key = override.partition("=")[0]
            if not re.fullmatch(r"[\w./]+", key) or key.startswith("backbone.args."):  # it adds, removes or moves
                raise ValueError(override)
            part = chosen if key in known or "/" in key or key.startswith("hydra.") else values
            part.append(override)
        base = primary, tuple(chosen)
        if base not in self._bases:
            cfg, options = _parts(composed(chosen, primary, self._folder))
            self._bases[base] = pickle.dumps(cfg), options
        pickled, choices = self._bases[base]
        cfg = pickle.loads(pickled)  # ten times faster than a deep copy
        for value in map(_parse, values):
            OmegaConf.update(cfg, value.key_or_group, value.value(), merge=True)
        return resolve(cfg, choices, self._folder)


@cache
def composer(folder: Path | None) -> Composer:
    """The composer of this process, with the options of a folder."""
    return Composer(folder)


@cache
def _parse(override: str) -> Override:
    parsed = OverridesParser.create().parse_override(override)
    if parsed.is_sweep_override():
        raise ValueError(override)
    return parsed


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them: text in quotes where it needs them, and timm's ``backbone.args`` as new keys."""
    return [f"++{each}" if each.startswith("backbone.args.") else as_typed(each) for each in overrides]


def _expand_home(cfg: DictConfig) -> None:
    """Replace ``~`` at the beginning of every path by the home folder."""
    for key, value in guard.leaves(OmegaConf.to_container(cfg, resolve=False)):
        if isinstance(value, str) and value.startswith("~") and PATH_KEY.fullmatch(key):
            OmegaConf.update(cfg, key, str(given_path(value)), force_add=True)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse values of groups that are no name: Hydra would fail at some, and merge the options of a list into one.

    Raises:
        ConfigError: naming the override.
        HydraException: an override cannot be read.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        line, group, value = override.input_line, override.key_or_group, override.value()
        if not group:
            raise ConfigError(f"{line}: write key=value, such as seed=3")
        if group == "experiment" and (isinstance(value, list) or override.is_sweep_override()):
            raise ConfigError(f"{line}: each experiment has a grid of its own: start one at a time")
        names = value if isinstance(value, list) and group == "evaluate" else [value]
        in_question = group in groups() and not override.is_delete() and not override.is_sweep_override()
        if in_question and not all(isinstance(name, str) for name in names):
            several = "; only evaluate takes a list" if isinstance(value, list) else f", or leave it out by ~{group}"
            if group in NUMBER_KEYS and isinstance(value, int | float):
                several = f", or write {_key_of_group(group, NUMBER_KEYS[group], f'={value}')}"
            raise ConfigError(f"{line}: set {group} to the name of an option{several}")


def _key_of_group(group: str, key: str, value: str = "") -> str:
    """``group.key`` and ``value``, with the options that have the key if not all have it; empty if none has it."""
    files = sorted((directory() / group).glob("*.yaml"))
    having = [path.stem for path in files if re.search(rf"^{key}:", path.read_text(), re.MULTILINE)]
    some = f" with {group}={' or '.join(having)}" if len(having) < len(files) else ""
    return f"{group}.{key}{value}{some}" if having else ""


def _meant(key: str, known: Collection[str]) -> str:
    """`` (did you mean X or Y?)`` for an unknown key: keys of that name in other groups, or one that is similar."""
    group, _, name = key.rpartition(".")
    elsewhere = sorted(other for other in known if other.rpartition(".")[2] == name and other.count(".") < 2)
    each_group = [group] if group in groups() else sorted(groups() - {"evaluate"})
    other_options = [text for each in each_group if " " in (text := _key_of_group(each, name))] if not elsewhere else []
    found = " or ".join([*elsewhere, *other_options])
    return f" (did you mean {found}?)" if found else near(key, known)


def groups() -> set[str]:
    """Names of the groups of options."""
    return {"experiment", *(entry.name for entry in directory().iterdir() if entry.is_dir())} - {"hydra"}


def explain(error: BaseException, overrides: Sequence[str] = (), primary: str = "train") -> str:
    """Put an error of Hydra or OmegaConf into one sentence that names the key and says what to set."""
    text, key = str(error), getattr(error, "full_key", None)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConfigError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:  # what a resolver has refused
        return f"{key}: {cause}" if key else str(cause)
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'(?: requires|\n)", text):
        return f"{match[1]}: several values make a grid: add -m, or write [a,b] for a list"
    if match := re.search(r"Multiple values for (\S+?)\. To override", text):
        return f"{match[1]} has a value already: leave the + before {match[1]} out"
    if match := re.search(_NO_KEY, text):
        known = [key for key in _keys(overrides, primary) if key != match[1]]
        remedy = former(match[1]) or _meant(match[1], known)
        return f"there is no key {match[1]}{remedy}; `ssl-bench {primary} --cfg job` prints them all"
    if match := re.search(r"Could not (?:find|load) '(.+)/(.*?)'", text):
        group, option = match[1], match[2]
        if listed := re.search(r"Available options in '(.+?)'", text):  # experiment, of experiment/<paper>/<name>
            group, option = listed[1], f"{group}/{option}".removeprefix(f"{listed[1]}/")
        options = re.findall(r"^\t(?!provider=)(.+)$", text, re.MULTILINE)
        options = options or sorted(path.stem for path in (directory() / group).glob("*.yaml"))
        folder = f"{option.rpartition('/')[0]}/"
        options = [other for other in options if other.startswith(folder)] or options
        remedy = f"set {group} to one of {', '.join(options)}"
        return f"{group}={option}: there is no such option{near(option, options)}; {remedy}"
    if text.startswith("Error merging override ") and error.__cause__ is not None:
        override = text.removeprefix("Error merging override ")
        reason = str(error.__cause__).splitlines()[0].replace("Integer", "an integer").replace("Float", "a number")
        return f"{override}: {reason[:1].lower()}{reason[1:]}"
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        quoted = f"'{key}=\"{value}\"'"
        return f"{error.override}: cannot be read: write key=value, with quotes around other characters, as in {quoted}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        reason = text.splitlines()[0].split("raised while resolving interpolation: ")[-1].strip('"')
        return f"{error.full_key}: {reason[:1].lower()}{reason[1:]}; set {error.full_key} to a value"
    return " ".join(text.split("\nSee http")[0].split())


def _keys(overrides: Sequence[str], primary: str) -> set[str]:
    """The groups, and all keys of the configuration with the groups that ``overrides`` choose."""
    chosen = [override for override in overrides if override.split("=")[0] in groups() and "," not in override]
    try:
        config = OmegaConf.to_container(_parts(composed(chosen, primary))[0], resolve=False)
    except HydraException:  # an option of a folder that only --config-dir names
        config = {}
    return {path for path, _ in guard.leaves(config)} | groups()
