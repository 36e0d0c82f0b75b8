"""Read the files of all runs below a results folder: once, and again only after they have changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ssl_bench import files
from ssl_bench.config import identity
from ssl_bench.disk.patience import answer
from ssl_bench.record import evaluations, results
from ssl_bench.record.cache import Cache
from ssl_bench.record.evaluations import Entry
from ssl_bench.record.follow import find_mark, finite, read_rows
from ssl_bench.record.results import CONDITIONS, Config, Failure

CONFIG, RESULTS, METRICS = "config.yaml", "results.json", "metrics.jsonl"
COMMAND, FAILURE = "command.txt", "failed.json"
KEPT = (*CONDITIONS, "cuda", "git")  # of a run's environment

Result = TypeVar("Result")


class Indexed(NamedTuple):
    """A run's directory, as its files were when they were read.

    Attributes:
        path: relative to the results folder.
        marks: of its files.
        began: when it was started last, in seconds of the epoch.
        content: what they say, as attributes of a ``RunFolder`` (``results/runs.py``), and ``on_disk`` of its identity.
            Under ``shared`` and ``units`` are names, one for all runs that have the same.
        config: the configuration with null in place of the seed.
        units: of ``results.json``.
        evaluations: what made its numbers, by the keys of ``numbers`` in the content.
    """

    path: str
    marks: str
    began: float
    content: dict[str, Any]
    config: dict[str, Any]
    units: dict[str, Any]
    evaluations: dict[str, dict[str, Any]]


class Index:
    """The runs below a results folder.

    Attributes:
        sweeps: folders of grids that were found.
        unreadable: folders and files that this user may not read.
    """

    def __init__(self, outputs: Path, cache: Cache) -> None:
        self._outputs, self.cache = str(outputs), cache
        self.sweeps: list[str] = []
        self.unreadable: list[str] = []

    def entries(self) -> Iterator[Indexed]:
        """The runs, in no order."""
        return self.walk(self._entry)

    def walk(self, look: Callable[[str], Result | None]) -> Iterator[Result]:
        """Call ``look`` with the path of each folder and yield its results that are not None.

        Folders inside one that has a result are left out.
        """
        folders, self.sweeps, self.unreadable = [""], [], []
        while folders:
            path = folders.pop()
            if (result := look(path)) is not None:
                yield result
                continue
            start = f"{path}/" if path else ""
            try:
                names = answer(f"{self._outputs}/{path}", partial(self._folders, path))
            except OSError as error:
                self.unreadable += [f"{self._outputs}/{path}"] if isinstance(error, PermissionError) else []
                continue
            self.sweeps += [start + name for name in names if name == ".sweeps"]
            folders += [start + name for name in names if name[0] != "." and name != "wandb"]

    def _folders(self, path: str) -> list[str]:
        """The names of the folders in one."""
        with os.scandir(f"{self._outputs}/{path}") as inside:
            return [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]

    def _entry(self, path: str) -> Indexed | None:
        """The run in a folder; None if there is none.

        Of a finished run only the first two files can change, unless it was started again, which writes the first one.
        """
        start = f"{self._outputs}/{path}/" if path else f"{self._outputs}/"
        marks = [find_mark(start + name) for name in (CONFIG, RESULTS)]
        began = marks[0] or marks[1]
        if began is None:
            return None
        needed = start + (RESULTS if marks[1] else CONFIG)
        readable = os.access(needed, os.R_OK, effective_ids=True)
        self.unreadable += [] if readable else [needed]
        again = marks[1] is None or (marks[0] is not None and marks[0][0] > marks[1][0])
        others = [] if not again else [find_mark(start + name) for name in (COMMAND, FAILURE, METRICS)]
        text = str([readable, *marks, *others])
        content = self.cache.get(path, text, lambda: self._read(start, again))
        if not content:
            return None
        if marks[1] and readable and not content["run_id"]:
            files.say_damaged(start + RESULTS)  # it was said when it was read, perhaps by another process
        config, units = (self._shared(content[name]) for name in ("shared", "units"))
        made_by = {key: self._shared(key) for key in content["numbers"]}
        return Indexed(path, text, began[0] / 1e9, content, config, units, made_by)

    def _read(self, start: str, again: bool) -> dict[str, Any] | None:
        """The entry of a run in the cache, empty for the YAML of another program; None if its files are damaged.

        JSON is read in a twentieth of the time of YAML, so that is left out if the run was not started ``again``.
        """
        content: Any = results.read(Path(start))
        done = content is not None
        config: Any = content["config"] if done else None
        asked = files.read_yaml(start + CONFIG, Config) if again or not done else None
        longer = done and (finite(asked, "epochs") or 0) > (finite(config, "epochs") or 0)
        config = asked if longer or not done else config
        if config is None:
            return None
        if not done and "choices" not in config:
            return {}  # any other YAML
        failure: Failure | None = None if done and not longer else files.read_json(start + FAILURE, Failure)
        seed = config.get("seed")
        environment = content.get("environment", {}) if done else {}
        rows = read_rows(start + METRICS, not done or longer, bool(finite(config.get("evaluate"), "every")))
        best = rows.pop("evaluated", {})
        entries = content["evaluations"] if done else evaluations.on_the_way(config, best)
        return {
            "shared": self._keep(without_seed(config, seed)),
            "units": self._keep(content.get("units", {}) if done else {}),
            "seed": seed if type(seed) is int else None,
            "command": _read_command(start + COMMAND),
            "failure": one_line(failure["reason"]) if failure else None,
            "training": identity.recipe_id(config),
            "on_disk": identity.on_disk(config),
            "run_id": content["run_id"] if done else "",
            "seconds": finite(content, "seconds") if done and not longer else None,
            "environment": {name: environment[name] for name in KEPT if name in environment},
            "warnings": content.get("warnings", []) if done else [],
            "longer": longer,
            "numbers": self._numbers(entries, content["config"] if done else config),
            **rows,
        }

    def _numbers(self, entries: Sequence[Entry], config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """The numbers of a run's networks after its last epoch: by the key of what made them, then by name."""
        numbers: dict[str, dict[str, float]] = {}
        for entry in entries:
            if entry["epochs"] == config.get("epochs"):
                numbers.setdefault(self._keep(evaluations.made_by(entry)), {}).update(entry["metrics"])
        return numbers

    def _shared(self, key: str) -> dict[str, Any]:
        """What many runs share."""
        content: dict[str, Any] = self.cache.get(f"config {key}", "", dict)
        return content

    def _keep(self, content: dict[str, Any]) -> str:
        """The key of what many runs share, which is in the cache once."""
        key = hashlib.sha1(as_text(content).encode()).hexdigest()[:16]
        self.cache.get(f"config {key}", "", lambda: content)
        return key


def without_seed(node: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """``node`` with null in place of each ``seed`` that has this value."""
    return {
        key: without_seed(value, seed) if isinstance(value, dict) else None if (key, value) == ("seed", seed) else value
        for key, value in node.items()
    }


def _read_command(path: str) -> str | None:
    try:
        return files.read_bytes(path).decode(errors="surrogateescape").strip() or None
    except OSError:
        return None


def one_line(reason: str) -> str:
    """A reason without line breaks and half characters."""
    return " ".join(reason.split()).encode(errors="replace").decode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


def as_text(value: Any) -> str:
    """A value as an override writes it: JSON in one line, a text without its quotes."""
    return value if isinstance(value, str) else _ENCODER.encode(value)
