"""The directory of a run: ``<paths.outputs>/<name>/<run_id>``, or where the same training stands under another name."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.identity import on_disk, recipe_id, run_dir
from ssl_bench.disk.patience import exists, is_file, patiently, unwritable
from ssl_bench.record.cache import Cache
from ssl_bench.record.index import Index
from ssl_bench.record.results import is_finished, set_damaged_aside


def find(config: Mapping[str, Any]) -> Path:
    """The directory of a run, which need not exist: its own, or where the same training stands under another name.

    Of several a finished one is taken; where prepared images are not on this machine, one with any of them.
    """
    usual = run_dir(config)
    if _has_run(usual):
        return usual
    outputs, recipe, needed = Path(config["paths"]["outputs"]), recipe_id(config), on_disk(config)
    index = _index(outputs.absolute())
    runs = [run for run in index.entries() if run.content["training"] == recipe]
    runs = [run for run in runs if needed.items() <= run.content["on_disk"].items()]
    index.cache.save()
    return outputs / min(runs, key=lambda run: (not run.content["run_id"], run.path)).path if runs else usual


def find_named(word: str, outputs: Path) -> Path:
    """The directory of that name, or of the run below ``outputs`` with that run_id; it need not exist."""
    folder = Path(word)
    if "/" in word or folder.exists():
        return folder
    paths = _index(outputs.absolute()).walk(lambda path: path if _has_run(outputs / path) else None)
    return next((outputs / path for path in sorted(paths) if path.rpartition("/")[2] == word), folder)


def fresh(folder: Path) -> bool:
    """Whether there is nothing in a run's directory yet that a refused command could spoil."""
    return not is_finished(folder) and not exists(folder / "checkpoints")


def begin(folder: Path, config: Mapping[str, Any], command: str) -> None:
    """Write the configuration and the command of a run that is known to start or to go on.

    Raises:
        ConfigError: the directory cannot be written.
    """
    try:
        set_damaged_aside(folder)
        patiently(lambda: (folder / "failed.json").unlink(missing_ok=True))
        files.write_text(folder / "command.txt", command + "\n")
        files.write_text(folder / "config.yaml", as_yaml(config))
    except OSError as error:
        raise unwritable(error) from error


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
def _index(outputs: Path) -> Index:
    """The index of a results folder, whose cache is read once in this process."""
    return Index(outputs, Cache(outputs))


def _has_run(folder: Path) -> bool:
    return is_file(folder / "config.yaml") or is_file(folder / "results.json")
