"""The directory of a run: ``<paths.outputs>/<name>/<run_id>``, or where the same training stands already.

The same training can stand under another name, or under the identity that it had in an earlier version.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.identity import run_dir, run_id, upgraded

INDEX = ".identities.json"  # {directory: [time of change of its configuration, identity]}


def find(config: Mapping[str, Any]) -> Path:
    """The directory of a run, which need not exist."""
    own = run_dir(config)
    if _has_run(own):
        return own
    outputs = Path(config["paths"]["outputs"])
    return next((folder for folder, identity in _identities(outputs) if identity == own.name), own)


def named(word: str, outputs: Path) -> Path:
    """The directory of that name, or of the run below ``outputs`` with that run_id; it need not exist."""
    folder = Path(word)
    found = () if "/" in word or folder.exists() else _folders(outputs)
    return next((each for each in found if each.name == word), folder)


def _identities(outputs: Path) -> Iterator[tuple[Path, str]]:
    """The directories of runs with the identities of their configurations, finished runs first."""
    content = files.read_json(outputs / INDEX)
    known: dict[str, Any] = content if isinstance(content, dict) else {}
    found = dict[str, list[Any]]()
    for folder in _folders(outputs):
        path = str(folder.relative_to(outputs))
        changed = max(_changed(folder / name) for name in ("results.json", "config.yaml"))
        entry = known.get(path)
        found[path] = entry if isinstance(entry, list) and entry[:1] == [changed] else [changed, _identity(folder)]
    if found != known:
        with contextlib.suppress(OSError):  # it only saves time
            files.write_json(outputs / INDEX, found)
    pairs = [(outputs / path, identity) for path, (_, identity) in found.items()]
    yield from sorted(pairs, key=lambda pair: (not (pair[0] / "results.json").exists(), pair[0]))


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


def _identity(folder: Path) -> str:
    """The identity of the training in a directory; empty if its configuration cannot be read."""
    results: Any = files.read_json(folder / "results.json")
    config = results.get("config") if isinstance(results, dict) else None
    if not isinstance(config, dict):
        config = files.read_yaml(folder / "config.yaml")
    return run_id(upgraded(config)) if isinstance(config, dict) else ""
