"""The directory of a run: ``<paths.outputs>/<name>/<run_id>``, or where the same training stands under another name."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.identity import on_disk, recipe_id, run_dir
from ssl_bench.record import runs
from ssl_bench.record.results import examined, is_finished


def find(config: Mapping[str, Any]) -> Path:
    """The directory of a run, which need not exist: its own, or where the same training stands under another name.

    Of several a finished one is taken; where prepared images are not on this machine, one with any of them.
    """
    usual = run_dir(config)
    if files.exists(usual / runs.CONFIG) or files.exists(usual / runs.RESULTS):
        return usual
    recipe, needed, same = recipe_id(config), on_disk(config).items(), list[Path]()
    for folder in runs.folders(Path(config["paths"]["outputs"])):
        its_recipe, hashes = _identity(folder.absolute())
        same += [folder] if its_recipe == recipe and needed <= hashes.items() else []
    return min(same, key=lambda folder: (not is_finished(folder), folder), default=usual)


def find_named(word: str, outputs: Path) -> Path:
    """The directory of that name, or of the run below ``outputs`` with that run_id; it need not exist."""
    folder = Path(word)
    if "/" in word or folder.exists():
        return folder
    return min((place for place in runs.folders(outputs) if place.name == word), default=folder)


def begin(folder: Path, config: Mapping[str, Any], command: str) -> None:
    """Write the configuration and the command of a run that is known to start or to go on.

    Raises:
        ConfigError: the directory cannot be written.
    """
    try:
        files.remove(folder / "failed.json")
        files.write_text(folder / "command.txt", command + "\n")
        files.write_text(folder / "config.yaml", as_yaml(config))
    except OSError as error:
        raise files.unwritable(error) from error


def begun(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run has started or gone on with this configuration, rather than refused it."""
    try:
        return files.read_bytes(files.of_run(folder / "config.yaml")) == as_yaml(config).encode()
    except OSError:
        return False


def as_yaml(config: Mapping[str, Any]) -> str:
    """The text of ``config.yaml``."""
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False)


@cache
def _identity(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The recipe of a run and the hashes of what it depends on beside it, which do not change."""
    content, _ = examined(folder)
    config = content["config"] if content else runs.read(folder).config
    return recipe_id(config), on_disk(config)
