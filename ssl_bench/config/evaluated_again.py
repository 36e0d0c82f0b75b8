"""The configuration of a trained run that is evaluated with other settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config import from_disk, identity
from ssl_bench.config.build import near
from ssl_bench.config.compose import expand_home, find_other_images
from ssl_bench.config.hydra_errors import check_overrides, explain
from ssl_bench.config.typed import as_typed
from ssl_bench.config.with_hydra import composed, leaves, parsed, parted
from ssl_bench.errors import ConfigError
from ssl_bench.files import given_path

CHANGED = ("device", "devices", "precision", "evaluate", "paths", "dataset")
_MISSING = object()


def evaluated_again(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The keys of a run that is evaluated with overrides of them: ``CHANGED``.

    The options that ``evaluate=...`` names take the place of the run's evaluators, with values of the run where they
    refer to other keys. Without it the run's own evaluators stay, and the overrides change their settings.

    Raises:
        ConfigError: an option or a key does not exist, or an override cannot be read.
    """
    try:
        overrides = [as_typed(override) for override in overrides]
        check_overrides(overrides)
        given = {str(override.key_or_group): override for override in parsed(overrides)}
        for key, override in given.items():
            part = OmegaConf.create({})
            OmegaConf.update(part, key, override.value(), force_add=True)
            from_disk.check_computed(OmegaConf.to_container(part))  # type: ignore[arg-type]
        root: Any = OmegaConf.create({key: value for key, value in config.items() if key != "choices"})
        choices = dict(config["choices"])
        if "evaluate" in given:
            other, chosen = parted(composed([str(given.pop("evaluate").input_line)]))
            choices |= {"evaluate": chosen.get("evaluate")}
            replaced = identity.evaluators(config["evaluate"])
            settings = {name: value for name, value in config["evaluate"].items() if name not in replaced}
            root.evaluate = OmegaConf.merge(identity.evaluators(other.evaluate), settings)
        OmegaConf.set_struct(root, True)
        for key, override in given.items():
            if OmegaConf.select(root, key, default=_MISSING) is _MISSING:
                names = list(identity.evaluators(root.evaluate))
                keys = [path for path, _ in leaves(OmegaConf.to_container(root.evaluate), "evaluate")]
                remedy = f"the run's evaluators are {', '.join(names) or 'none'}; evaluate=[NAME,...] takes others"
                beside = [other for other in keys if other.startswith(f"{key.rpartition('.')[0]}.")]
                raise ConfigError(f"there is no key {key}{near(key, beside)}: {remedy}")
            value: Any = override.value()
            is_place = key in ("dataset.root", "dataset.path") and isinstance(value, str)
            value = str(given_path(value).absolute()) if is_place else value
            OmegaConf.update(root, key, value, merge=key != "evaluate.on", force_add=True)  # another data set
        expand_home(root)
        find_other_images(root)
        from_disk.find_labels(root)
        from_disk.leave_out(root, choices)
        resolved: Any = OmegaConf.to_container(root, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain(error, overrides)) from error
    return {key: resolved[key] for key in CHANGED}
