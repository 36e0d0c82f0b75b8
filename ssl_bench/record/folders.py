"""The directory of a run: ``<paths.outputs>/<name>/<run_id>``, or where the same training stands already; its start.

The same training can stand under another name, or under the identity that it had in an earlier version. That did not
know the images of prepared datasets, nor the sources of plugins: its runs are taken as made with those of today.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.identity import agree, on_disk, recipe_id, run_dir, upgraded
from ssl_bench.errors import unwritable
from ssl_bench.record.results import Config, finished, read, set_damaged_aside

# A cache: {directory: [time of change of its configuration, recipe_id, what was found on the disk]}.
INDEX = ".identities.json"


def find(config: Mapping[str, Any]) -> Path:
    """The directory of a run, which need not exist."""
    own = run_dir(config)
    if _has_run(own):
        return own
    outputs, recipe, needed = Path(config["paths"]["outputs"]), recipe_id(config), on_disk(config)
    found = [(folder, known) for folder, each, known in _identities(outputs) if each == recipe and agree(known, needed)]
    if not found:
        return own
    folder, known = max(found, key=lambda pair: len(pair[1]))  # the first of those of which most is known
    if unknown := sorted(needed.keys() - known.keys()):
        _say(f"{folder} has no hash of its {' and '.join(unknown)}: they are taken as those of today")
    return folder


@cache
def _say(sentence: str) -> None:
    """Print a sentence once in this process, on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print(sentence, file=sys.stderr, flush=True)


def named(word: str, outputs: Path) -> Path:
    """The directory of that name, or of the run below ``outputs`` with that run_id; it need not exist."""
    folder = Path(word)
    found = () if "/" in word or folder.exists() else _folders(outputs)
    return next((each for each in found if each.name == word), folder)


def fresh(folder: Path) -> bool:
    """Whether there is nothing in a run's directory yet that a refused command could spoil."""
    return not finished(folder) and not any(folder.glob("checkpoints/*.pt"))


def begin(folder: Path, config: Mapping[str, Any], command: str) -> None:
    """Write the configuration and the command of a run that is known to start or to go on.

    Raises:
        ConfigError: the directory cannot be written.
    """
    files.remove_temporary(folder)
    try:
        set_damaged_aside(folder)
        (folder / "failed.json").unlink(missing_ok=True)
        files.write_text(folder / "command.txt", command + "\n")
        files.write_text(folder / "config.yaml", as_yaml(config))
    except OSError as error:
        raise unwritable(error) from error


def begun(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run has started or gone on with this configuration, rather than refused it."""
    try:
        return files.read_bytes(folder / "config.yaml") == as_yaml(config).encode()
    except OSError:
        return False


def as_yaml(config: Mapping[str, Any]) -> str:
    """The text of ``config.yaml``."""
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False)


def _identities(outputs: Path) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """The directories of runs, each with the recipe of its configuration and :func:`on_disk`; finished runs first."""
    known: dict[str, list[Any]] = files.read_cache(outputs / INDEX) or {}
    found = dict[str, list[Any]]()
    for folder in _folders(outputs):
        path = str(folder.relative_to(outputs))
        changed = max(_changed(folder / name) for name in ("results.json", "config.yaml"))
        entry = known.get(path, [])
        found[path] = entry if entry[:1] == [changed] else [changed, *_identity(folder)]
    if found != known:
        with contextlib.suppress(OSError):  # it only saves time
            files.write_cache(outputs / INDEX, found)
    each = [(outputs / path, recipe, known) for path, (_, recipe, known) in found.items()]
    yield from sorted(each, key=lambda run: (not (run[0] / "results.json").exists(), run[0]))


def _folders(folder: Path) -> Iterator[Path]:
    """The directories of runs below a folder; the directories inside them are not searched."""
    try:
        with os.scandir(folder) as inside:
            names = sorted(entry.name for entry in inside if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        if name[0] == "." or name == "wandb":
            continue
        if _has_run(folder / name):
            yield folder / name
        else:
            yield from _folders(folder / name)


def _has_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or (folder / "results.json").is_file()


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _identity(folder: Path) -> tuple[str, dict[str, str]]:
    """The recipe of the training in a directory and its :func:`on_disk`; empty if its configuration cannot be read."""
    results = read(folder)
    config = results["config"] if results else files.read_yaml(folder / "config.yaml", Config)
    return (recipe_id(upgraded(config)), on_disk(config)) if config else ("", {})
