"""Put the errors of Hydra and OmegaConf into one sentence, and refuse overrides at which they would fail."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from ssl_bench.config.build import near
from ssl_bench.config.schema import directory
from ssl_bench.config.with_hydra import HYDRAS, composed, groups, leaves, parsed, parted
from ssl_bench.errors import ConfigError, in_one_line, reason

LACKING = ConfigAttributeError, ConfigKeyError  # the causes of Hydra's error for a key that is not there
# The key that group=0.1 may mean.
NUMBER_KEYS = {"batch_size": "size", "negatives": "k", "optimizer": "lr", "temperature": "tau"}
# Words of other tools, and what they are called here.
FOREIGN = {
    **dict.fromkeys(("arch", "architecture", "encoder", "model"), "backbone"),
    **dict.fromkeys(("bs", "batch"), "batch_size.size"),
    **dict.fromkeys(("gpu", "gpus", "nproc_per_node", "num_gpus"), "devices"),
    **dict.fromkeys(("algorithm", "method", "ssl_method"), "framework"),
    **dict.fromkeys(("logger", "wandb"), "tracking"),
    "criterion": "loss",
    "data": "dataset or paths.data",
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
}
# Methods that are no framework here, by their names without dashes: an option of another group, and what it goes with.
METHODS = {
    "barlowtwins": "loss=barlow_twins negatives=none head=expander",
    "nnclr": "positives=nearest negatives=cross_view",
    "supcon": "loss=supcon positives=label",
    "vicreg": "loss=vicreg negatives=none head=expander",
}


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
                several = f", or write {_key_of_group(group, NUMBER_KEYS[group], f'={value}')}"
            raise ConfigError(f"{line}: set {group} to the name of an option{several}")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str:
    """Put an error of Hydra or OmegaConf into one sentence that names the key and says what to set."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException):
        name, _, value = error.override.partition("=")
        quoted = f"'{name}=\"{value}\"'"
        return f"{error.override}: cannot be read: write key=value, with quotes around other characters, as in {quoted}"
    if absent := re.search("Could not delete .*'(.+)' does not exist", str(error)):
        return _no_key(absent[1], overrides)
    first = error  # what has led to it
    while not isinstance(first, ConfigError) and (earlier := first.__cause__ or first.__context__):
        first = earlier
    failed = error.__cause__ if isinstance(error, HydraException) else error
    key = getattr(failed, "full_key", None)
    if isinstance(first, ConfigError):  # what a resolver has refused
        return f"{key}: {first}" if key else str(first)
    if not failed or not key:
        return in_one_line(error)
    override = next((text for text in overrides if text.lstrip("+").startswith((f"{key}=", f"{key}."))), key)
    if isinstance(failed, LACKING):
        return _no_key(override.lstrip("+").partition("=")[0], overrides)
    why = reason(first if type(failed) is InterpolationResolutionError else failed)
    why = why[:1].lower() + why[1:].replace("Integer", "an integer").replace("Float", "a number")
    return f"{override}: {why}" if failed is not error else f"{key}: {why}; set {key} to a value"


def _no_option(file: str, options: Sequence[str] | None) -> str:
    """The refusal of an option that has no file; Hydra names the others of the group, or none."""
    group, _, option = file.rpartition("/")
    if file.partition("/")[0] in groups():  # experiment, of experiment/<paper>/<name>
        group, _, option = file.partition("/")
    if group == "hydra/launcher":
        return f"{group}={option}: {HYDRAS['launcher']}"
    options = options or sorted(path.stem for path in (directory() / group).glob("*.yaml"))
    method = METHODS.get(re.sub(r"[-_]", "", option.lower())) if group == "framework" else None
    hint = f" (did you mean {method}?)" if method else near(option, options)
    return f"{group}={option}: there is no such option{hint}; set {group} to one of {', '.join(options)}"


def _key_of_group(group: str, key: str, value: str = "") -> str:
    """``group.key`` and ``value``, with the options that have the key if not all have it; empty if none has it."""
    files = sorted((directory() / group).glob("*.yaml"))
    having = [path.stem for path in files if re.search(rf"^{key}:", path.read_text(), re.MULTILINE)]
    some = f" with {group}={' or '.join(having)}" if len(having) < len(files) else ""
    return f"{group}.{key}{value}{some}" if having else ""


def _no_key(key: str, overrides: Sequence[str]) -> str:
    """The refusal of an unknown key, with keys of that name in other groups, or one that is similar."""
    chosen = [override for override in overrides if override.split("=")[0] in groups() and "," not in override]
    try:
        config = OmegaConf.to_container(parted(composed(chosen))[0], resolve=False)
    except HydraException:  # an option of a folder that only --config-dir names
        config = {}
    keys = ({path for path, _ in leaves(config)} | groups()) - {key}
    group, _, name = key.rpartition(".")
    elsewhere = sorted(other for other in keys if other.rpartition(".")[2] == name and other.count(".") < 2)
    owners = [group] if group in groups() else sorted(groups() - {"evaluate"})
    texts = [] if elsewhere else [_key_of_group(owner, name) for owner in owners]
    meant = FOREIGN.get(key.lower()) or " or ".join([*elsewhere, *(text for text in texts if " " in text)])
    hint = f" (did you mean {meant}?)" if meant else near(key, keys)
    return f"there is no key {key}{hint}; `ssl-bench train --cfg job` prints them all"
