"""Put the errors of Hydra and OmegaConf into one sentence, and refuse overrides at which they would fail."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ssl_bench.config.build import near
from ssl_bench.config.schema import directory, leaves
from ssl_bench.config.with_hydra import groups, parsed
from ssl_bench.errors import ConfigError, in_one_line, reason

LACKING = ConfigAttributeError, ConfigKeyError  # the causes of Hydra's error for a key that is not there
FEW = 3  # options that are named beside a key that only they have
# The key that group=0.1 may mean.
NUMBER_KEYS = {"batch_size": "size", "negatives": "k", "optimizer": "lr", "temperature": "tau"}
# Words of other tools, and what they are called here.
FOREIGN = {"algorithm": "framework", "arch": "backbone", "batch": "batch_size.size", "bs": "batch_size.size"}
FOREIGN |= {"criterion": "loss", "data": "dataset or paths.data", "encoder": "backbone", "gpus": "devices"}
FOREIGN |= {"learning_rate": "optimizer.lr", "logger": "tracking", "method": "framework", "model": "backbone"}
FOREIGN |= {"num_gpus": "devices", "wandb": "tracking", "wd": "optimizer.weight_decay"}


class NoSuchKey(ConfigError):
    """The chosen options have no key of a name; other options may have it."""


@contextlib.contextmanager
def in_sentences(overrides: Sequence[str]) -> Iterator[None]:
    """Put what Hydra and OmegaConf raise in the block into a ConfigError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        refusal = NoSuchKey if isinstance(error.__cause__, LACKING) else ConfigError
        raise refusal(explain(error, overrides)) from error


def check_overrides(overrides: Sequence[str], grid: bool = False) -> None:
    """Refuse values of groups that are no name: Hydra would fail at some, and merge the options of a list into one.

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
        if in_question and not all(isinstance(name, str) for name in names):
            several = "; only evaluate takes a list" if isinstance(value, list) else f", or leave it out by ~{group}"
            if group in NUMBER_KEYS and isinstance(value, int | float):
                several = f", or write {group}.{NUMBER_KEYS[group]}={value}"
            raise ConfigError(f"{line}: set {group} to the name of an option{several}")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str:
    """Put an error of Hydra or OmegaConf into one sentence that names the key and says what to set."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException):
        name, _, value = error.override.partition("=")
        quoted = f"'{name}=\"{value}\"'"
        return f"{error.override}: cannot be read: write key=value, with quotes around other characters, as in {quoted}"
    chain = [error]  # with what has led to it
    while not isinstance(chain[-1], ConfigError) and (earlier := chain[-1].__cause__ or chain[-1].__context__):
        chain.append(earlier)
    failed = next((each for each in chain if getattr(each, "full_key", None)), None)
    key = getattr(failed, "full_key", "")
    if isinstance(chain[-1], ConfigError):  # what a resolver has refused
        return f"{key}: {chain[-1]}" if key else str(chain[-1])
    if absent := re.search("Could not delete .*'(.+)' does not exist", str(error)):
        return _no_key(absent[1])
    if isinstance(failed, LACKING):
        words = (text.lstrip("+") for text in overrides)
        return _no_key(next((text for text in words if text.startswith((f"{key}=", f"{key}."))), key).partition("=")[0])
    return f"{key}: {reason(failed)}; set {key} to a value" if failed else in_one_line(error)


def _no_option(file: str, options: Sequence[str] | None) -> str:
    """The refusal of an option that has no file; Hydra names the others of the group, or none."""
    group, _, option = file.rpartition("/")
    if file.partition("/")[0] in groups():  # experiment, of experiment/<paper>/<name>
        group, _, option = file.partition("/")
    options = options or sorted(path.stem for path in (directory() / group).glob("*.yaml"))
    return (
        f"{group}={option}: there is no such option{near(option, options)}; set {group} to one of {', '.join(options)}"
    )


def _no_key(key: str) -> str:
    """The refusal of an unknown key, with what it is called here, options that have it, or keys that are similar."""
    having = dict[str, dict[str, None]]()  # keys, with the options that have them
    for path in sorted(directory().glob("*/*.yaml")):
        group, content = path.parent.name, yaml.safe_load(path.read_text()) or {}
        for name, _ in leaves(content.get(group, content), group) if group not in ("experiment", "local") else ():
            having.setdefault(name, {})[path.stem] = None
    everywhere = leaves(yaml.safe_load((directory() / "train.yaml").read_text()) | {"hydra": {}})
    having |= {name: {} for name, _ in everywhere}
    last = f".{key.rpartition('.')[2]}"
    alike = [name for name in having if name == key or (name.endswith(last) and name.count(".") == 1)]
    meant = FOREIGN.get(key.lower()) or " or ".join(
        f"{name} with {name.partition('.')[0]}={' or '.join(having[name])}" if 0 < len(having[name]) <= FEW else name
        for name in alike
    )
    hint = f" (did you mean {meant}?)" if meant else near(key, having)
    return f"there is no key {key}{hint}; `ssl-bench train --cfg job` prints them all"
