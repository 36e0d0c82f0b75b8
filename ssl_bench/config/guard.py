"""Refuse dangerous, unknown and secret entries of a configuration, before Hydra makes anything of it.

Hydra makes its callbacks, launcher, sweeper and log handlers of classes that the configuration names. Only those that
this package uses are left. Keys that nothing reads are refused, and secrets, since a configuration is written to disk.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from hydra._internal import hydra as application
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ssl_bench.config.build import KINDS, near
from ssl_bench.config.schema import Config, directory
from ssl_bench.errors import ConfigError

TARGETS = {
    "hydra.launcher": (
        "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
        "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
    ),
    "hydra.sweeper": ("hydra._internal.core_plugins.basic_sweeper.BasicSweeper",),
}
# Keys of Hydra that would run code or change the environment of a run, with what to use.
REFUSED = {
    "hydra.callbacks": "there are none",
    "hydra.job.env_set": "set environment variables in the shell",
    "hydra.searchpath": "use --config-dir",
}
LOGGING = ("hydra.job_logging", "hydra.hydra_logging")

SECRET = re.compile(
    r"(^|_)(secret|secrets|password|passwd|passphrase|credentials?|token|(api|access|private)_?key)(_|$)"
)
FORMS = (
    r"[0-9a-f]{40}",  # W&B, until 2025
    r"wandb_v\d+_\w+",
    r"(gh[oprsu]|github_pat)_\w{30,}",
    r"hf_[A-Za-z]{30,}",
    r"sk-[\w-]{20,}",
    r"A(KI|SI)A[0-9A-Z]{16}",
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",  # JSON web token
    r"\w+://[^/\s:@]+:[^/\s@]+@.*",  # password in an address
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
)
VALUE = re.compile("|".join(FORMS), re.DOTALL)
SHORTEST = 12  # characters of a secret of the environment


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's loader, which refuses what no configuration may hold."""

    _asked: tuple[list[str], DictConfig] | None = None

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose as Hydra does.

        Raises:
            ConfigError: the configuration holds a key or a value that is refused.
        """
        if not validate_sweep_overrides:
            # Hydra composes everything to read hydra.mode, and then once more with the mode as an override. Composing
            # takes most of the time of a refused command, so that the first configuration is kept.
            composed = self._compose(config_name, overrides, RunMode.RUN, from_shell, validate_sweep_overrides)
            self._asked = list(overrides), composed
            return composed
        asked, self._asked = self._asked, None
        mode = f"hydra.mode={run_mode.name}"
        if asked is None or asked[1].hydra.mode is not None or overrides != [*asked[0], mode]:
            return self._compose(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        parsed = OverridesParser.create().parse_overrides(overrides)
        self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        asked[1].hydra.mode = run_mode
        asked[1].hydra.overrides.hydra.append(mode)
        return asked[1]

    def _compose(self, config_name: str | None, overrides: list[str], *settings: Any) -> DictConfig:
        _check_search_path(overrides)
        try:
            composed = super().load_configuration(config_name, overrides, *settings)
        except yaml.MarkedYAMLError as error:
            place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}" if error.problem_mark else "a file"
            raise ConfigError(f"{place}: {error.problem}: mend the YAML") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"a YAML file of the configuration cannot be read: {error}") from error
        config: Any = OmegaConf.to_container(composed, resolve=False)
        hydra = config.pop("hydra", {})
        if config_name is not None:  # None: Hydra shows its own help
            _check_hydra(hydra)
            refuse_secrets(config)
            refuse_unknown(config, config_name)
        return composed


def install() -> None:
    """Make Hydra compose every configuration of this process with :class:`GuardedLoader`."""
    application.ConfigLoaderImpl = GuardedLoader  # type: ignore[misc]


def _check_search_path(overrides: Sequence[str]) -> None:
    """Refuse other sources of configurations, of which a package would be imported to search it."""
    for override in overrides:
        if override.partition("=")[0].lstrip("+~").startswith("hydra.searchpath"):
            raise ConfigError(f"{override}: leave it out: {REFUSED['hydra.searchpath']}")


def _check_hydra(config: Mapping[str, Any]) -> None:
    """Refuse keys of Hydra that would run code."""
    for key, remedy in REFUSED.items():
        node: Any = {"hydra": config}
        for name in key.split("."):
            node = (node or {}).get(name)
        if node:
            raise ConfigError(f"{key} is set: leave it out: {remedy}")
    for key in LOGGING:
        node = config.get(key.removeprefix("hydra.")) or {}
        if node.get("handlers") or node.get("formatters") or node.get("filters"):
            raise ConfigError(f"{key} is set: leave it out: a run writes train.log")
    for path, value in leaves({k: v for k, v in config.items() if k not in ("overrides", "runtime")}, "hydra"):
        group = path.removesuffix("._target_")
        if path.endswith("._target_") and value not in TARGETS.get(group, ()):
            options = " or ".join(target.rpartition(".")[2] for target in TARGETS.get(group, ()))
            raise ConfigError(f"{path}={value}: {f'set it to {options}' if options else f'leave {group} out'}")
        if path != "hydra.job.override_dirname":  # the overrides, whose values are checked where they stand
            _check_secret(path, value)


def refuse_unknown(config: Mapping[str, Any], primary: str) -> None:
    """Refuse keys that nothing reads. What stands in a group with a ``_target_`` is checked by its constructor.

    Args:
        config: without Hydra's part.
        primary: the file that it was composed of.
    """
    if primary == "train":
        _refuse_unknown(config, Config)
        return
    file = yaml.safe_load((directory() / f"{primary}.yaml").read_text())
    groups = {name for entry in file["defaults"] if isinstance(entry, dict) for name in entry}
    for key in config:
        if key not in {*file, *groups}:
            raise _no_key(str(key), [*file, *groups])


def _refuse_unknown(node: Mapping[str, Any], kind: type, prefix: str = "") -> None:
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    for key, value in node.items():
        if key not in fields:
            raise _no_key(f"{prefix}{key}", [f"{prefix}{name}" for name in fields])
        inner = fields[key]
        if dataclasses.is_dataclass(inner) and isinstance(inner, type) and isinstance(value, Mapping):
            _refuse_unknown(value, inner, f"{prefix}{key}.")
    for key in fields:
        if key not in node and key != "choices":
            raise ConfigError(f"{prefix}{key} is missing: set {prefix}{key}")
    for key in KINDS if not prefix else ():
        value = node[key]
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value}: set {key} to one of its options, or {key}.<argument> to a value")


def _no_key(key: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"there is no key {key}{near(key, known)}; `ssl-bench train --cfg job` prints them all")


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Refuse a configuration that holds what looks like a secret. The sentence does not repeat the value."""
    for path, value in leaves(config):
        _check_secret(path, value)


def _check_secret(path: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        return
    if SECRET.search(path.rpartition(".")[2].lower().replace("-", "_")):
        raise ConfigError(f"{path} looks like a secret, and the configuration is written to disk: leave it out")
    for name, secret in os.environ.items():
        known = len(secret) >= SHORTEST and SECRET.search(name.lower())
        if known and secret in value:
            raise ConfigError(f"{path} holds the value of the environment variable {name}, a secret: leave it out")
    if VALUE.fullmatch(value.strip()):
        raise ConfigError(f"{path} looks like a key or a password and is written to disk: use an environment variable")


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration that is no mapping and no list, with its path; the keys of mappings as well."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, path)
    else:
        yield path, node
