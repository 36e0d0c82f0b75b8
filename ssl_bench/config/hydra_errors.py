"""Put the errors of Hydra and OmegaConf into one sentence, and refuse overrides at which they would fail."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from ssl_bench.config import guard
from ssl_bench.config.build import near
from ssl_bench.config.schema import directory
from ssl_bench.config.with_hydra import composed, groups, parted
from ssl_bench.errors import ConfigError, reason

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
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        line, group, value = override.input_line, override.key_or_group, override.value()
        if not group:
            raise ConfigError(f"{line}: write key=value, such as seed=3")
        if override.get_key_element().lstrip("+~").startswith(("hydra/sweeper", "hydra.sweeper")):
            raise ConfigError(f"{line}: {guard.NO_SWEEPER}")
        if override.is_sweep_override() and not grid:
            raise ConfigError(f"{line}: several values make a grid: add -m, or write [a,b] for a list")
        if override.is_add() and override.package is None and group in groups():
            raise ConfigError(f"{group} has a value already: leave the + before {group} out")
        if group == "experiment" and (isinstance(value, list) or override.is_sweep_override()):
            raise ConfigError(f"{line}: each experiment has a grid of its own: start one at a time")
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
    if "Could not delete" in str(error):
        return _nothing_to_leave_out(str(error), overrides)
    first = error  # what has led to it
    while not isinstance(first, ConfigError) and (earlier := first.__cause__ or first.__context__):
        first = earlier
    failed = error.__cause__ if isinstance(error, HydraException) else error
    if not isinstance(failed, OmegaConfBaseException) or not (key := failed.full_key):
        return str(first) if isinstance(first, ConfigError) else " ".join(str(error).split())
    if isinstance(first, ConfigError):  # what a resolver has refused
        return f"{key}: {first}"
    override = next((text for text in overrides if text.lstrip("+").startswith((f"{key}=", f"{key}."))), key)
    if isinstance(failed, LACKING):
        key = override.partition("=")[0]
        remedy = _meant(key, _keys(overrides) - {key})
        return f"there is no key {key}{remedy}; `ssl-bench train --cfg job` prints them all"
    why = reason(first if type(failed) is InterpolationResolutionError else failed)
    why = why[:1].lower() + why[1:].replace("Integer", "an integer").replace("Float", "a number")
    return f"{override}: {why}" if failed is not error else f"{key}: {why}; set {key} to a value"


def _nothing_to_leave_out(error: str, overrides: Sequence[str]) -> str:
    """The refusal of ~KEY where there is no such key; the options of evaluate are a list, which Hydra leaves whole."""
    without = [word for word in overrides if word.startswith("~")]
    word = next(
        (word for word in without if f"'{word[1:]}'" in error or f"'{word[1:].partition('=')[0]}'" in error), "~"
    )
    key = word[1:].partition("=")[0]
    if key == "evaluate":
        return f"{word}: set evaluate to the options that you want, or to [] to evaluate nothing"
    remedy = _meant(key, _keys(overrides) - {key})
    return f"{word}: there is no key {key} to leave out{remedy}; `ssl-bench train --cfg job` prints them all"


def _no_option(file: str, options: Sequence[str] | None) -> str:
    """The refusal of an option that has no file; Hydra names the others of the group, or none."""
    group, _, option = file.rpartition("/")
    if file.partition("/")[0] in groups():  # experiment, of experiment/<paper>/<name>
        group, _, option = file.partition("/")
    options = options or sorted(path.stem for path in (directory() / group).glob("*.yaml"))
    folder = f"{option.rpartition('/')[0]}/"
    options = [other for other in options if other.startswith(folder)] or options
    remedy = f"set {group} to one of {', '.join(options)}"
    if group == "experiment" and "/" in option:
        remedy += f", or train a paper's table by `ssl-bench reproduce {option}`"
    method = METHODS.get(re.sub(r"[-_]", "", option.lower())) if group == "framework" else None
    hint = f" (did you mean {method}?)" if method else near(option, options)
    return f"{group}={option}: there is no such option{hint}; {remedy}"


def _key_of_group(group: str, key: str, value: str = "") -> str:
    """``group.key`` and ``value``, with the options that have the key if not all have it; empty if none has it."""
    files = sorted((directory() / group).glob("*.yaml"))
    having = [path.stem for path in files if re.search(rf"^{key}:", path.read_text(), re.MULTILINE)]
    some = f" with {group}={' or '.join(having)}" if len(having) < len(files) else ""
    return f"{group}.{key}{value}{some}" if having else ""


def _meant(key: str, keys: Collection[str]) -> str:
    """`` (did you mean X or Y?)`` for an unknown key: keys of that name in other groups, or one that is similar."""
    if foreign := FOREIGN.get(key.lower()):
        return f" (did you mean {foreign}?)"
    group, _, name = key.rpartition(".")
    elsewhere = sorted(other for other in keys if other.rpartition(".")[2] == name and other.count(".") < 2)
    owners = [group] if group in groups() else sorted(groups() - {"evaluate"})
    texts = [] if elsewhere else [_key_of_group(owner, name) for owner in owners]
    meant = " or ".join([*elsewhere, *(text for text in texts if " " in text)])
    return f" (did you mean {meant}?)" if meant else near(key, keys)


def _keys(overrides: Sequence[str]) -> set[str]:
    """The groups, and all keys of the configuration with the groups that ``overrides`` choose."""
    chosen = [override for override in overrides if override.split("=")[0] in groups() and "," not in override]
    try:
        config = OmegaConf.to_container(parted(composed(chosen))[0], resolve=False)
    except HydraException:  # an option of a folder that only --config-dir names
        config = {}
    return {path for path, _ in guard.leaves(config)} | groups()
