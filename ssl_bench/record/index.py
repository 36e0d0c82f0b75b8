"""Read the files of all runs below a results folder: once, and again only after they have changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ssl_bench import files
from ssl_bench.config import identity
from ssl_bench.disk.patience import answer
from ssl_bench.errors import one_line
from ssl_bench.record import evaluations, results
from ssl_bench.record.cache import Cache
from ssl_bench.record.content import Config, Failure, Units, unusable
from ssl_bench.record.evaluations import Entry
from ssl_bench.record.follow import find_mark, read_rows
from ssl_bench.record.results import ENVIRONMENT

CONFIG, RESULTS, METRICS = "config.yaml", "results.json", "metrics.jsonl"
COMMAND, FAILURE = "command.txt", "failed.json"
UNITS = "units.json"  # of the numbers of an unfinished run, as results.json has them later
RUN_ID = re.compile(f"[0-9a-f]{{{identity.RUN_ID_DIGITS}}}")
KEPT = (*ENVIRONMENT, "git")  # of a run's environment

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
        units: of ``results.json``, of an unfinished run of ``units.json``.
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
        again = marks[1] is None or (marks[0] is not None and marks[0][3] > marks[1][3])
        others = [] if not again else [find_mark(start + name) for name in (COMMAND, FAILURE, METRICS)]
        text = str([readable, *marks, *others])
        content = self.cache.get(path, text, lambda: self._read(path, start, again))
        for name, wrong in content.get("damaged", {}).items() if readable else ():  # perhaps read by another process
            files.say_damaged(start + name, wrong)
        if rows := content.get("damaged_rows"):
            files.say_damaged_rows(start + METRICS, len(rows), rows[0])
        if "shared" not in content:
            return None
        config, units = (self._shared(content[name]) for name in ("shared", "units"))
        made_by = {key: self._shared(key) for key in content["numbers"]}
        return Indexed(path, text, began[3] / 1e9, content, config, units, made_by)

    def _read(self, path: str, start: str, again: bool) -> dict[str, Any]:
        """The entry of a run in the cache, with what is ``damaged`` of its files; without a run nothing else.

        JSON is read in a twentieth of the time of YAML, so that is left out if the run was not started ``again``.
        """
        damaged = dict[str, str]()
        written, damaged[RESULTS] = results.examined(Path(start))
        done, content = written is not None, written or {}
        asked, damaged[CONFIG] = _asked(start, path.rpartition("/")[2]) if again or not done else (None, "")
        config: Any = content["config"] if done else asked
        longer = bool(done and asked and asked.get("epochs", 0) > config.get("epochs", 0))
        config = asked if longer else config
        failure = None
        if not done or longer:
            failure, damaged[FAILURE] = files.examined(start + FAILURE, Failure, of_a_run=True)
        damaged = {name: wrong for name, wrong in damaged.items() if wrong}
        if config is None:
            return {"damaged": damaged}
        if not done and "choices" not in config:
            return {}  # any other YAML
        seed = config.get("seed")
        environment = content.get("environment", {})
        units: Any = content.get("units", {}) if done else files.read_json(start + UNITS, Units, of_a_run=True) or {}
        every = bool(config.get("evaluate", {}).get("every"))
        rows = read_rows(start + METRICS, not done or longer, every, units, config)
        best, damaged_rows = rows.pop("evaluated", {}), rows.pop("damaged", [])
        entries = content["evaluations"] if done else evaluations.on_the_way(config, best)
        return {
            "shared": self._keep(without_seed(config, seed)),
            "units": self._keep(units),
            "seed": seed,
            "command": _read_command(start + COMMAND),
            "failure": one_line(failure["reason"]) if failure else None,
            "training": identity.recipe_id(config),
            "on_disk": identity.on_disk(config),
            "run_id": content.get("run_id", ""),
            "seconds": content["seconds"] if done and not longer else None,
            "environment": {name: environment[name] for name in KEPT if name in environment},
            "warnings": content.get("warnings", []),
            "longer": longer,
            "damaged": damaged,
            "damaged_rows": damaged_rows,
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


def _asked(start: str, folder: str) -> tuple[Any, str]:
    """The configuration that a run was started with last, and what is wrong in it; the name of its folder is its id."""
    config, wrong = files.examined(start + CONFIG, Config, files.parse_yaml, of_a_run=True)
    wrong = wrong or (unusable(config) if config else "")
    if config and not wrong and RUN_ID.fullmatch(folder):
        given = identity.run_id(config)
        wrong = f"it is that of run {given}" if given != folder else "" if "choices" in config else "choices is missing"
    return (None, wrong) if wrong else (config, "")


def without_seed(node: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """``node`` with null in place of each ``seed`` that has this value."""
    return {
        key: without_seed(value, seed) if isinstance(value, dict) else None if (key, value) == ("seed", seed) else value
        for key, value in node.items()
    }


def _read_command(path: str) -> str | None:
    try:
        return files.read_bytes(files.of_run(path)).decode(errors="surrogateescape").strip() or None
    except OSError:
        return None


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


def as_text(value: Any) -> str:
    """A value as an override writes it: JSON in one line, a text without its quotes."""
    return value if isinstance(value, str) else _ENCODER.encode(value)
