"""Compose the YAML files with Hydra, and define the functions of their interpolations, such as ``${oc.env:HOME}``.

Hydra takes a tenth of a second or more for a combination of options. So each is composed once in a process, and the
values of keys are set in copies of it, which takes a few milliseconds, by Hydra's own function. Most options only fill
the key of their group, and are merged into such a copy, too: of 28 losses and 11 batch sizes Hydra composes one
combination. Everywhere ``folder`` is the folder of ``--config-dir``, with further options.
"""

import contextlib
import io
import math
import netrc
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from omegaconf.resolvers import oc

from ssl_bench import files
from ssl_bench.config import anchors, shorthand
from ssl_bench.config.build import directory
from ssl_bench.config.identity import evaluators, leaves
from ssl_bench.config.ranges import near, one_of
from ssl_bench.errors import ConfigError, command_line, in_one_line, reason, shown

READABLE = re.compile(  # by ${oc.env:NAME}: what a configuration may hold, which is written to the disk
    r"(SSL_BENCH_|SLURM_(?!JWT$))\w+|HOME|USER|TMPDIR|CUDA_VISIBLE_DEVICES|WANDB_(MODE|PROJECT|ENTITY|TAGS)"
)


# W&B's own variables, the defaults of tracking.*, which the command line overrides.
MODES = {"online": "online", "shared": "online", "offline": "offline", "dryrun": "offline", "disabled": "off"}
VARIABLES = ("MODE", "DISABLED", "PROJECT", "ENTITY", "TAGS", "API_KEY")
# Keys whose values are text, which stay as they were typed: name=1e5 is a name, though Hydra would read the number
# 100000.0. In lists and mappings quotes are the user's.
PATHS = r"init|paths\.\w+|dataset\.(root|path)|evaluate\.\w+\.(root|path|data|images|annotations|reference_weights)"
PATH_KEY = re.compile(PATHS)
TEXT_KEY = re.compile(
    rf"{PATHS}|name|plugins|tracking\.(project|entity|tags)|backbone\.name|augment\.interpolation"
    r"|(dataset|evaluate\.on)\.(name|folder|train|test|classes|torchvision|pretrain|image|label|content|group)"
    r"|evaluate\.on|evaluate\.\w+\.(interpolation|layers|reference)|launcher\.(partition|account|qos|constraint)"
)
SYNTAX = re.compile(r"""[][{}'"\\]|^\w+\(""")  # Hydra's own, of lists, mappings, quotes, interpolations and functions


def read_environment(name: str, *default: str | None) -> str | None:
    """The value of ``${oc.env:NAME,default}``, in which ``~`` at the beginning is the home folder.

    Raises:
        ConfigError: the variable is not one of ``READABLE``: it may be a secret.
        KeyError: it is not set, and there is no default.
    """
    if not READABLE.fullmatch(name):
        raise ConfigError(f'the environment variable {name} is not read: write "${name}", which the shell replaces')
    value: str | None = oc.env(name, *default)
    return value and os.path.expanduser(value)


def wandb_mode() -> str:
    """``tracking.mode``: as ``WANDB_MODE`` says, else ``offline`` where W&B is used, and ``off`` elsewhere.

    It is used where one of its variables is set, or where the user has logged in.

    Raises:
        ConfigError: W&B has no such mode.
    """
    given = {name: value.strip().lower() for name in VARIABLES if (value := os.environ.get(f"WANDB_{name}"))}
    if given.pop("DISABLED", "false") not in ("false", "0"):
        return "off"
    if "MODE" in given:
        one_of("WANDB_MODE", given["MODE"], [*MODES])
        return MODES[given["MODE"]]
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        given |= dict.fromkeys(netrc.netrc().hosts.keys() & {"api.wandb.ai"}, "")
    return "offline" if given else "off"


register = partial(OmegaConf.register_new_resolver, replace=True)
# ${setting:seed,${seed}}: a column of the help text; of evaluate and its node the evaluators
register("setting", lambda key, value: f"{key}={shown([*evaluators(value)] if key == 'evaluate' else value)}".ljust(24))
register("oc.env", read_environment)
register("add", lambda *numbers: sum(numbers))  # ${add:3,${dataset.bits}}
# ${per_node:${devices},${.nodes},8}: eight for each device of a node
register("per_node", lambda devices, nodes, count=1: count * math.ceil(devices / max(nodes, 1)))
register("wandb_mode", wandb_mode)  # ${wandb_mode:}
# ${wandb_tags:a,b}: the words between the commas
register("wandb_tags", lambda text: ListConfig([word.strip() for word in text.split(",") if word.strip()]))
LARGEST_OPTION = 2**18  # bytes of a YAML file, which takes ten seconds: OmegaConf makes an object of each value
# The remedy for an override of a key of Hydra, of which only hydra.mode and hydra.sweeper.params are read.
HYDRAS = {
    "launcher": "write launcher=here, local or slurm, and launcher.KEY=VALUE for its settings",
    "sweeper": "leave it out: write the values of a grid as key=a,b, and search with scripts/examples/search.py",
    None: "leave it out: it is not read; paths.outputs and name say where a run has its config.yaml and train.log",
}
# Words of other tools, and what they are called here.
FOREIGN = {"arch": "backbone", "batch": "batch_size.size", "bs": "batch_size.size", "criterion": "loss"}
FOREIGN |= {"data": "dataset or paths.data", "encoder": "backbone", "gpus": "devices", "logger": "tracking"}
FOREIGN |= {"method": "framework", "model": "backbone", "wandb": "tracking", "wd": "optimizer.weight_decay"}
_COMPOSED = dict[Any, bytes]()  # as pickles, by folder, its files' times, and overrides that choose options


@cache
def groups() -> set[str]:
    """Names of the groups of options."""
    return {"experiment", *(entry.name for entry in directory().iterdir() if entry.is_dir())}


def options(group: str, folder: Path | None = None) -> list[str]:
    """The options of a group that are listed, with those in the folder of ``--config-dir``."""
    places = [parent / group for parent in (directory(), folder) if parent]
    names = {path.relative_to(place).with_suffix("").as_posix() for place in places for path in place.rglob("*.yaml")}
    return sorted(names - ({"frozen"} if group == "framework" else set()))  # which trains nothing


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Overrides as Hydra reads them."""
    return [_parsed(override) for override in overrides]


@cache
def _parsed(override: str) -> Override:
    (one,) = OverridesParser.create().parse_overrides([override])
    return one


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them: text in quotes where it needs them, and timm's ``backbone.args`` as new keys.

    Raises:
        ConfigError: an override sets a key of Hydra.
    """
    for word in overrides:
        if match := re.match(r"[+~]*(hydra[./](launcher|sweeper)?.*)", word):
            raise ConfigError(f"{match[1]}: {HYDRAS[match[2]]}")
    return [f"++{word}" if word.startswith("backbone.args.") else as_typed(word) for word in overrides]


@cache
def as_typed(override: str) -> str:
    """The override with quotes around values that are text and that Hydra would not read as that text."""
    key, equals, value = override.partition("=")
    path = key.lstrip("+")
    if not equals or SYNTAX.search(value) or not TEXT_KEY.fullmatch(path):
        return override
    words = (word.strip() for word in value.split(","))
    return f"{key}={','.join(word if _reads(word, path) else quoted(word) for word in words)}"


def quoted(text: str) -> str:
    """``text`` as a value that Hydra reads as this text."""
    return QuotedString(text, Quote.double).with_quotes()


def _reads(word: str, key: str) -> bool:
    """Whether Hydra reads a word as that text."""
    if not word or word.lower() == "null":
        return key != "name"  # which every run has
    with contextlib.suppress(HydraException):
        return bool(OverridesParser.create().parse_rule(word, "element") == word)
    return False


def composed(overrides: Sequence[str], folder: Path | None = None) -> DictConfig:
    """Compose ``train.yaml`` with overrides; Hydra's own part is its key ``hydra``.

    Raises:
        ConfigError: a file is no YAML, or Hydra's part holds what is refused.
        HydraException: an override names a key or an option that does not exist, or a value of the wrong type.
    """
    plain, nodes = shorthand.written_out(overrides, options("dataset", folder))
    try:
        return with_values(plain, folder, nodes)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if more := shorthand.implied(plain):
            files.say_once(f"{' '.join(more)}, which has the key that was set")
            return composed([*more, *overrides], folder)
        if nodes or type(error) is not ValueError:
            raise
        return by_hydra(plain, folder)  # an override that adds, removes or moves


def with_values(overrides: Sequence[str], folder: Path | None, nodes: Mapping[str, tuple[str, Any]]) -> DictConfig:
    """As :func:`composed`, by setting values in what Hydra has composed of the options.

    Args:
        nodes: what is chosen in groups beside the options, with its text.

    Raises:
        ValueError: an override does something else than to choose an option or to set a value.
    """
    chosen, values = list[str](), list[str]()  # what Hydra has to compose, and what sets a value
    for override in overrides:
        key = override.partition("=")[0]
        if not re.fullmatch(r"[\w./]+", key):  # it adds, removes or moves
            raise ValueError(f"{override}: write key=value")
        (chosen if key in groups() or "/" in key else values).append(override)
    cfg = _with_options(tuple(chosen), folder)
    for group, (text, node) in nodes.items():
        cfg[group] = OmegaConf.create(node, flags={"struct": False})  # its other arguments may be set, too
        cfg.hydra.runtime.choices[group] = text
    for value in parsed(values):
        OmegaConf.update(cfg, value.key_or_group, value.value(), merge=True)
    return cfg


def _with_options(chosen: tuple[str, ...], folder: Path | None) -> DictConfig:
    """Compose a combination of options.

    Hydra composes the options that set keys of several groups, with [] for the others, which only fill the key of
    their group. These are merged here, as Hydra does: over the group's keys in ``train.yaml``, and below its values in
    the options that Hydra has composed.
    """
    by_group = {option.partition("=")[0]: option for option in chosen}  # of two of a group the last one
    if folder:
        return _composed_once(chosen, folder)
    filled = {group: key for group, option in by_group.items() if (key := _filled(option)) is not None}
    cfg = _composed_once(tuple(f"{group}=[]" if group in filled else by_group[group] for group in by_group), None)
    with open_dict(cfg):
        for group, key in filled.items():
            cfg[group] = OmegaConf.merge(key, cfg.get(group) or {})
            cfg.hydra.runtime.choices[group] = by_group[group].partition("=")[2]
    return cfg


def _composed_once(chosen: tuple[str, ...], folder: Path | None) -> DictConfig:
    key = folder, _times(folder), chosen
    if key not in _COMPOSED:
        _COMPOSED[key] = pickle.dumps(by_hydra(chosen, folder))
    loaded: DictConfig = pickle.loads(_COMPOSED[key])  # ten times faster than a deep copy
    return loaded


def _times(folder: Path | None) -> tuple[tuple[str, int], ...]:
    """When the files of options in ``folder``, which the user may edit, were changed."""
    options_in = sorted(folder.rglob("*.yaml")) if folder else ()
    return tuple((str(path), path.stat().st_mtime_ns) for path in options_in if path.is_file())


@cache
def _filled(override: str) -> DictConfig | None:
    """A group's key as ``train.yaml`` and an option set it; None if both set a key, or the option also sets others."""
    path = directory() / f"{override.replace('=', '/')}.yaml"
    is_option = re.fullmatch(r"\w+=[\w-]+", override) and path.is_file()  # and no list of options, and no key
    if not is_option or re.search(r"^(defaults:|# *@package)", path.read_text(), re.MULTILINE):
        return None
    below = anchors.parse((directory() / "train.yaml").read_text()).get(path.parent.name) or {}
    content = OmegaConf.load(path)
    return None if content.keys() & below.keys() else DictConfig(OmegaConf.merge(below, content))


def by_hydra(overrides: Sequence[str], folder: Path | None) -> DictConfig:
    """As :func:`composed`, all of it by Hydra."""
    search = [f"hydra.searchpath=[{quoted(f'file://{folder.absolute()}')}]"] if folder else []
    _check_options(folder)
    try:
        with initialize_config_dir(str(directory()), version_base="1.3"):
            cfg = compose("train", [*search, *overrides], return_hydra_config=True)
    except (OmegaConfBaseException, HydraException):
        raise
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"a YAML file of the configuration cannot be read: {in_one_line(error)}") from error
    for part in ("launcher", "sweeper"):
        if (option := cfg.hydra.runtime.choices[f"hydra/{part}"]) != "basic":
            raise ConfigError(f"hydra/{part}={option}: {HYDRAS[part]}")
    return cfg


def _check_options(folder: Path | None) -> None:
    """Refuse files of options in ``folder`` that are no YAML, or of which Hydra would make too much."""
    for path in (path for group in sorted(groups()) if folder for path in sorted((folder / group).rglob("*.yaml"))):
        try:
            text = files.read_bytes(path, LARGEST_OPTION).decode()
            anchors.parse(text, construct=False)
            OmegaConf.load(io.StringIO(text))
        except (yaml.YAMLError, ValueError, OSError) as error:
            raise ConfigError(f"{path} cannot be read: {in_one_line(error)}") from error


def parted(cfg: DictConfig) -> tuple[DictConfig, dict[str, Any]]:
    """Split a composed configuration into the part without Hydra's keys, and the chosen option of each group."""
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


def as_yaml(cfg: DictConfig) -> str:
    """A composed configuration as YAML, without Hydra's own part, with values in place of interpolations."""
    return OmegaConf.to_yaml(parted(cfg)[0], resolve=True).rstrip("\n")


# ---- errors


@contextlib.contextmanager
def in_sentences(overrides: Sequence[str]) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf in the block into a ConfigError of one sentence."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain(error, overrides)) from error


def check_overrides(overrides: Sequence[str], grid: bool = False) -> None:
    """Refuse values of groups that are not the name of an option: Hydra fails at some, and merges lists of options.

    Args:
        grid: keys may have several values.

    Raises:
        ConfigError: naming the override.
        HydraException: an override cannot be read.
    """
    for override in parsed(overrides):
        line, group, value = override.input_line, override.key_or_group, override.value()
        if not group:
            raise ConfigError(f"{line}: write key=value, such as seed=3")
        if override.is_sweep_override() and (group == "experiment" or not grid):
            remedy = "each experiment has a grid of its own: start one at a time"
            remedy = remedy if grid else "several values make a grid: add -m, or write [a,b] for a list"
            raise ConfigError(f"{line}: {remedy}")
        if override.is_add() and override.package is None and group in groups():
            raise ConfigError(f"{group} has a value already: leave the + before {group} out")
        if override.is_delete() and group == "evaluate":  # a list, which Hydra leaves as it is
            raise ConfigError(f"{line}: set evaluate to the options that you want, or to [] to evaluate nothing")
        names = value if isinstance(value, list) and group == "evaluate" else [value]
        in_question = group in groups() and not override.is_delete() and not override.is_sweep_override()
        in_question &= group not in shorthand.NUMBER_KEYS or not isinstance(value, int | float)
        if in_question and not all(isinstance(name, str) for name in names):
            several = "; only evaluate takes a list" if isinstance(value, list) else f", or leave it out by ~{group}"
            raise ConfigError(f"{line}: set {group} to the name of an option{several}")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str:
    """Put an error of Hydra or OmegaConf into one sentence that names the key and says what to set."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException):
        name, _, value = error.override.partition("=")
        typed = command_line([f'{name}="{value}"'])
        return f"{error.override}: cannot be read: write key=value, with quotes around other characters, as in {typed}"
    chain = [error]  # with what has led to it
    while not isinstance(chain[-1], ConfigError) and (earlier := chain[-1].__cause__ or chain[-1].__context__):
        chain.append(earlier)
    failed = next((each for each in chain if getattr(each, "full_key", None)), None)
    key = getattr(failed, "full_key", "")
    if isinstance(chain[-1], ConfigError):  # what a resolver has refused
        return f"{key}: {chain[-1]}" if key else str(chain[-1])
    if absent := re.search("Could not delete .*'(.+)' does not exist", str(error)):
        return _no_key(absent[1])
    if isinstance(failed, ConfigAttributeError | ConfigKeyError):
        words = (text.lstrip("+") for text in overrides)
        return _no_key(next((text for text in words if text.startswith((f"{key}=", f"{key}."))), key).partition("=")[0])
    return f"{key}: {reason(failed)}; set {key} to a value" if failed else in_one_line(error)


def _no_option(file: str, options: Sequence[str] | None) -> str:
    """The refusal of an option that has no file.

    Args:
        options: the options of the group, as Hydra names them; None: Hydra names none.
    """
    parts = file.partition("/")  # such as experiment, of experiment/<paper>/<name>
    group, _, option = parts if parts[0] in groups() else file.rpartition("/")
    options = options or sorted(path.stem for path in (directory() / group).glob("*.yaml"))
    other = f", or write backbone=timm backbone.name={option} for a network of timm" * (group == "backbone")
    other = ", or to a number" if group in shorthand.NUMBER_KEYS else other
    remedy = f"set {group} to one of {', '.join(options)}{other}"
    return f"{group}={option}: there is no such option{near(option, options)}; {remedy}"


def _no_key(key: str) -> str:
    """The refusal of a key that is unknown or of other options: with its name here, those options, or similar keys."""
    having = dict[str, dict[str, None]]()  # keys, with the options that have them
    for path in sorted(directory().glob("*/*.yaml")):
        group, content = path.parent.name, anchors.parse(path.read_text()) or {}
        for name, _ in leaves(content.get(group, content), group) if group not in ("experiment", "local") else ():
            having.setdefault(name, {})[path.stem] = None
    everywhere = leaves(anchors.parse((directory() / "train.yaml").read_text()) | {"hydra": {}})
    having |= {name: {} for name, _ in everywhere}
    last = f".{key.rpartition('.')[2]}"
    alike = [name for name in having if name.endswith(last) and name.count(".") == 1 and name != key]
    if of := [f"{key.partition('.')[0]}={option}" for option in having.get(key, ())]:
        words = " or ".join([f"add {' or '.join(of[::-1])}, which has it", *(f"set {name}" for name in alike)])
        return f"{key}: no chosen option has this key: {words}"
    meant = FOREIGN.get(key.lower()) or " or ".join(alike)
    hint = f" (did you mean {meant}?)" if meant else near(key, having)
    return f"there is no key {key}{hint}; `ssl-bench train --cfg job` prints them all"
