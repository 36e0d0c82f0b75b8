"""The runs below a results folder, from their files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.launch import lock
from ssl_bench.launch.lock import Owner
from ssl_bench.record.results import complete
from ssl_bench.status.cache import Cache
from ssl_bench.status.follow import Metrics, accuracies, find_mark, finite, quantity, read_metrics

FILES = "config.yaml", "results.json", "command.txt", "failed.json", "metrics.jsonl"
CONFIG, RESULTS, COMMAND, FAILURE, METRICS = FILES
FINAL = CONFIG, RESULTS  # the files that may change what is shown of a finished run


class SharedConfig:
    """A configuration without its seed, which runs share that differ in nothing else.

    Attributes:
        content: the configuration with null in place of the seed.
        key: of the content.
        settings: every value as JSON by its name, such as ``optimizer.lr``; the option of a group by the group's name.
    """

    def __init__(self, content: dict[str, Any], key: str) -> None:
        self.content, self.key = content, key
        choices = content.get("choices")
        self.groups: Collection[str] = choices.keys() if isinstance(choices, dict) else ()

    @cached_property
    def settings(self) -> dict[str, str]:
        keys = {name: value for name, value in self.content.items() if name != "choices"}
        return dict(_settings(keys, "")) | {name: as_json(self.content["choices"][name]) for name in self.groups}


def _settings(node: Mapping[str, Any], start: str) -> Iterator[tuple[str, str]]:
    """Values as JSON by name; an empty mapping and a list are values, and a seed that is the run's is none."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{start}{key}.")
        elif key != "seed" or value is not None:
            yield start + key, as_json(value)


def without_seed(node: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """``node`` with null in place of each ``seed`` that has this value."""
    return {
        key: without_seed(value, seed) if isinstance(value, dict) else None if (key, value) == ("seed", seed) else value
        for key, value in node.items()
    }


def varying(configs: Collection[SharedConfig]) -> list[dict[str, str]]:
    """The settings of each configuration that are not common to all."""
    every = [config.settings.items() for config in configs]
    common = set[Any]().union(*every[:1]).intersection(*every)
    return [{name: value for name, value in one if (name, value) not in common} for one in every]


@dataclass(eq=False)
class Run:
    """A run's directory, as its files were when they were read.

    Attributes:
        outputs: the results folder.
        path: of the directory, relative to it.
        marks: of its files.
        config, seed: the configuration without its seed, and the seed as JSON; None: it has none.
        command: the command that trains it, if it was recorded.
        failure: why it failed, in one line; None: it has not failed.
        run_id, seconds, results: of ``results.json``: the run_id, the time that the whole run took and the metrics; the
            run_id is None if there are no whole results.
        metrics: rows of ``metrics.jsonl``.
        began: time of change of ``config.yaml``, in seconds of the epoch; None: there is only ``results.json``.
        owner: the process that carries it out.
    """

    outputs: str
    path: str
    marks: str
    config: SharedConfig
    seed: str | None
    command: str | None
    failure: str | None
    run_id: str | None
    seconds: float | None
    results: dict[str, float]
    metrics: Metrics
    began: float | None
    owner: Owner | None = None

    @property
    def done(self) -> bool:
        """Whether it has whole results."""
        return self.run_id is not None

    @property
    def folder(self) -> Path:
        """The directory."""
        return Path(self.outputs, self.path)

    @property
    def parent(self) -> str:
        """The directory's parent, relative to ``outputs``."""
        return self.path.rpartition("/")[0]

    def setting(self, name: str) -> str | None:
        """The value of a key, or the option of a group, as JSON."""
        return self.seed if name == "seed" else self.config.settings.get(name)

    @cached_property
    def best(self) -> dict[str, float]:
        """A finished run's accuracies, or all its metrics if it trained no network; else the best so far."""
        if not self.done:
            return self.metrics.best
        if "evaluate" in self.config.content:
            return accuracies(self.results)
        return {name: value for name in self.results if (value := finite(self.results, name)) is not None}

    @property
    def end(self) -> float | None:
        """Epoch at which the training ends. With ``max_steps`` it is known after the first row."""
        epochs, max_steps = (quantity(self.config.content, key) for key in ("epochs", "max_steps"))
        if epochs is None or max_steps is None:
            return epochs
        step, epoch = self.metrics.step, self.metrics.epoch
        return min(epochs, max_steps * epoch / step) if step and epoch else None

    @property
    def share(self) -> float:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, (self.metrics.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def whole(self) -> float | None:
        """Seconds that the whole run takes: as long for the rest of the training as for what is done of it."""
        return self.seconds or (self.metrics.seconds / self.share if self.metrics.seconds and self.share else None)


class Runs:
    """Finds the runs below a results folder; what has not changed is not read again.

    Attributes:
        sweeps: folders of grids.
        unreadable: folders and files that this user may not read.
    """

    def __init__(self, outputs: Path, cache: Cache) -> None:
        self._outputs, self._cache = str(outputs), cache
        self._configs: dict[str, SharedConfig] = {}  # by their key
        self.sweeps: list[str] = []
        self.unreadable: list[str] = []

    def find(self) -> list[Run]:
        """The runs, sorted by parent directory, then by start; also directories with ``results.json`` only.

        The directories inside the directory of a run are not searched.
        """
        found, folders = list[Run](), [""]
        self.sweeps, self.unreadable = [], []
        while folders:
            path = folders.pop()
            run = self._run(path, f"{self._outputs}/{path}/" if path else f"{self._outputs}/")
            found += [run] if run else []
            if run is not None and run.began is not None:
                continue
            try:
                with os.scandir(f"{self._outputs}/{path}") as inside:
                    names = [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
            except OSError as error:
                self.unreadable += [f"{self._outputs}/{path}"] if isinstance(error, PermissionError) else []
                continue
            start = f"{path}/" if path else ""
            self.sweeps += [start + name for name in names if name == ".sweeps"]
            folders += [start + name for name in names if name[0] != "." and name != "wandb"]
        return sorted(found, key=lambda run: (run.parent.split("/"), run.began or 0.0, run.path))

    def _run(self, path: str, start: str) -> Run | None:
        """The run in a folder; None if there is none."""
        began, ended = (find_mark(start + name) for name in FINAL)
        if not (began or ended):
            return None
        needed = start + (RESULTS if ended else CONFIG)
        readable = os.access(needed, os.R_OK, effective_ids=True)
        self.unreadable += [] if readable else [needed]
        others = [] if ended else [find_mark(start + name) for name in FILES[2:]]
        marks = str([readable, began, ended, *others])
        known = self._cache.get(path, marks, lambda: self._read(start, began is not None))
        if known is None:
            return None
        run = Run(self._outputs, path, marks, began=began and began[0] / 1e9, **self._restored(known))
        run.owner = None if run.done else lock.owner(run.folder)
        return run

    def _restored(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a run from its value in the cache."""
        key = known["config"]
        if key not in self._configs:
            content = self._cache.get(f"config {key}", "", lambda: None)
            self._configs[key] = SharedConfig(content, key)
        return {**known, "config": self._configs[key], "metrics": Metrics(**known["metrics"])}

    def _read(self, start: str, begun: bool) -> dict[str, Any] | None:
        """The entry of a run in the cache. JSON is read in a twentieth of the time of YAML."""
        results: Any = files.read_json(start + RESULTS)
        done = complete(results)
        config = results["config"] if done else None
        if begun and not (config and isinstance(config.get("choices"), dict)):
            config = _read_config(start + CONFIG) or config
        if config is None:
            return None
        failure: Any = None if done else files.read_json(start + FAILURE)
        shared = without_seed(config, config.get("seed"))
        key = hashlib.sha1(as_json(shared).encode()).hexdigest()[:16]
        self._cache.get(f"config {key}", "", lambda: shared)
        evaluated = not done and bool(quantity(config.get("evaluate"), "every"))
        return {
            "config": key,
            "seed": as_json(config["seed"]) if "seed" in config else None,
            "command": _read_command(start + COMMAND),
            "failure": one_line(failure.get("reason")) if isinstance(failure, dict) else None,
            "run_id": results["run_id"] if done else None,
            "seconds": quantity(results, "seconds") if done else None,
            "results": results["metrics"] if done else {},
            "metrics": asdict(read_metrics(start + METRICS, evaluated)),
        }


@dataclass(frozen=True)
class Finished:
    """A run with ``results.json``.

    Attributes:
        run_id: as in ``results.json``.
        folder: its directory.
        seed: if that is an integer.
        config_key: equal for runs that differ in their seed only.
        config: its configuration, with null in place of the seed.
        metrics: those in ``results.json``.
    """

    run_id: str
    folder: Path
    seed: int | None
    config_key: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]


def finished(outputs: Path) -> list[Finished]:
    """Every run with a ``results.json`` below a folder, each run_id once, sorted by directory."""
    cache, first = Cache(outputs), dict[str, Finished]()
    for run in sorted(Runs(outputs, cache).find(), key=lambda run: run.path.split("/")):
        if run.run_id is not None and run.run_id not in first:
            seed = json.loads(run.seed or "null")
            seed = seed if isinstance(seed, int) else None
            config = run.config
            first[run.run_id] = Finished(run.run_id, run.folder, seed, config.key, config.content, run.results)
    cache.save()
    return list(first.values())


def _read_config(path: str) -> dict[str, Any] | None:
    """A run's configuration; None for any other YAML."""
    config = files.read_yaml(Path(path))
    return config if isinstance(config, dict) and isinstance(config.get("choices"), dict) else None


def _read_command(path: str) -> str | None:
    try:
        return files.read_bytes(path).decode().strip() or None
    except (OSError, ValueError):
        return None


def one_line(reason: Any) -> str:
    """A reason without line breaks and half characters."""
    return " ".join(str(reason or "").split()).encode(errors="replace").decode()


def as_json(value: Any) -> str:
    """A value as JSON in one line."""
    return json.dumps(value, separators=(",", ":"), default=str)
