"""Put the errors of Hydra and OmegaConf into one sentence, and refuse overrides at which they would fail."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config import guard
from ssl_bench.config.build import near
from ssl_bench.config.schema import directory
from ssl_bench.config.with_hydra import composed, groups, parted
from ssl_bench.errors import ConfigError

_NO_KEY = r"Could not override '(.+?)'"  # of Hydra's error
# The key that group=0.1 may mean.
NUMBER_KEYS = {"batch_size": "size", "negatives": "k", "optimizer": "lr", "temperature": "tau"}


class NoSuchKey(ConfigError):
    """The chosen options have no key of a name; other options may have it."""


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
        return f"there is no key {match[1]}{_meant(match[1], known)}; `ssl-bench {primary} --cfg job` prints them all"
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


def _keys(overrides: Sequence[str], primary: str) -> set[str]:
    """The groups, and all keys of the configuration with the groups that ``overrides`` choose."""
    chosen = [override for override in overrides if override.split("=")[0] in groups() and "," not in override]
    try:
        config = OmegaConf.to_container(parted(composed(chosen, primary))[0], resolve=False)
    except HydraException:  # an option of a folder that only --config-dir names
        config = {}
    return {path for path, _ in guard.leaves(config)} | groups()
