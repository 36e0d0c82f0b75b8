"""The runs below a results folder, from their files, and ``<outputs>/.runs.jsonl``, which spares reading them again.

Each line of that cache is either the configuration of some runs without their seed, or what was read of one run. A run
is read again when the time of change, the size or the inode of one of its files is another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.claim import Owner
from ssl_bench.record.results import complete, is_number
from ssl_bench.status import cache
from ssl_bench.status.cache import as_json, no_collection
from ssl_bench.status.follow import QUANTITY, Mark, Metrics, accuracies, find_mark, finite, quantity, read_metrics

NAME = ".runs.jsonl"
FILES = "config.yaml", "results.json", "command.txt", "failed.json", "metrics.jsonl"
CONFIG, RESULTS, COMMAND, FAILURE, METRICS = FILES
FINAL = FILES[:2]  # the files that may change what is shown of a finished run
LONGEST_COMMAND = 2**18  # bytes: shlex needs a second for a million
SEED = ""  # instead of the JSON of a value that is the run's seed
_PLACE = "\0the run's seed"
_PLAIN = re.compile(r"[\w@%+=:,./-]+( [\w@%+=:,./-]+)*", re.ASCII).fullmatch  # a command that needs no quotes
_TEXT, _NUMBER = (str, type(None)), (int, float, type(None))
_LINE = (  # types of a run's line: path, marks, key of its configuration, [seed]; command, failure, run_id; numbers
    *((str,), (str,), (str,), (list, type(None)), _TEXT, _TEXT, _TEXT),
    *(_NUMBER,) * 5,  # seconds; step, epoch, seconds and speed of the last row
    *((dict,), (dict,)),  # results, best accuracies
)


class SharedConfig:
    """A configuration without its seed, which runs share that differ in nothing else.

    Args:
        text: its JSON, with a placeholder for the seed.
    """

    def __init__(self, text: str) -> None:
        self.text, self.key = text, hashlib.sha1(text.encode()).hexdigest()[:16]

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The configuration with null instead of the seed."""
        content: dict[str, Any] = json.loads(self.text, object_hook=_seedless)
        return content

    @cached_property
    def settings(self) -> dict[tuple[str, ...], str]:
        """Every value as JSON, or SEED, by the path of its keys; an empty mapping and a list are values."""
        return dict(_settings(json.loads(self.text)))


def varying(configs: Collection[SharedConfig]) -> list[dict[tuple[str, ...], str]]:
    """The settings of each configuration that are not common to all, and those whose value is the seed."""
    every = [config.settings.items() for config in configs]
    common = set[Any]().union(*every[:1]).intersection(*every)
    return [{path: value for path, value in one if value == SEED or (path, value) not in common} for one in every]


def _settings(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], str]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, (*path, key))
        else:
            yield (*path, key), SEED if value == _PLACE else as_json(value)


def without_seed(config: Mapping[str, Any]) -> tuple[SharedConfig, str | None]:
    """A configuration without its seed, and the seed as JSON; None if there is none."""
    seed = as_json(config["seed"]) if "seed" in config else None
    return SharedConfig(as_json(config if seed is None else _without_seed(config, seed))), seed


def _without_seed(node: Mapping[str, Any], seed: str) -> dict[str, Any]:
    """``node`` with a placeholder for each value under a key ``seed`` whose JSON is ``seed``."""
    return {
        key: _without_seed(value, seed)
        if isinstance(value, dict)
        else _PLACE
        if key == "seed" and as_json(value) == seed
        else value
        for key, value in node.items()
    }


def _seedless(node: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == _PLACE else value for key, value in node.items()}


@dataclass(eq=False)
class Run:
    """A run's directory, as its files were when they were read.

    Attributes:
        outputs: the results folder.
        path: of the directory, relative to it.
        marks: time of change, size and inode of each of FILES, or of a finished run of each of FINAL, as text.
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
    began: float | None = field(default=None, init=False)
    owner: Owner | None = field(default=None, init=False)

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
    def training_seconds(self) -> float | None:
        """Time that the whole training takes at its present rate."""
        rate = self.metrics.rate(quantity(self.config.content.get("batch_size"), "size"))
        return self.end / rate if rate and self.end and self.end < 1e15 * rate else None


class Runs:
    """Finds the runs below a results folder; what has not changed since the last time, or in the cache, is not read."""

    def __init__(self, outputs: Path) -> None:
        self._outputs, self._file = str(outputs), outputs / NAME
        self._configs: dict[str, SharedConfig] = {}  # by their key
        self._runs: dict[str, Run] = {}
        self._unsaved = 0
        self.sweeps: list[str] = []  # folders of grids
        self.unreadable: list[str] = []  # folders and files that this user may not read
        self._load()

    def find(self) -> list[Run]:
        """The runs, sorted by parent directory, then by start; also directories with ``results.json`` only."""
        found, folders = dict[str, Run](), [""]
        self.sweeps, self.unreadable = [], []
        while folders:
            path = folders.pop()
            run = self._run(path)
            if run is not None:
                found[path] = run
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
        self._unsaved += len(self._runs.keys() - found.keys())
        self._runs = found
        if cache.save(self._file, self._lines(), self._unsaved, len(found)):
            self._unsaved = 0
        return sorted(found.values(), key=lambda run: (run.parent.split("/"), run.began or 0.0, run.path))

    def _run(self, path: str) -> Run | None:
        """The run in a folder; None if there is none."""
        start = f"{self._outputs}/{path}/" if path else f"{self._outputs}/"
        run = self._runs.get(path)
        marks = [find_mark(start + name) for name in (FINAL if run is not None and run.done else FILES)]
        if not any(marks[: len(FINAL)]):
            return None
        if run is None or run.marks != str(marks):
            run = self._read(path, start, marks)
            self._unsaved += run is not None
        for name, mark in zip(FINAL, marks, strict=False) if run is None or not run.done else ():
            if mark and not os.access(start + name, os.R_OK, effective_ids=True):
                self.unreadable.append(start + name)
        if run is not None:
            run.began = marks[0] and marks[0][0] / 1e9
            run.owner = None if run.done else claim.owner(run.folder)
            if run.owner and not run.metrics.window:  # which is not in the cache
                run.metrics = self._metrics(run.config.content, start)
        return run

    def _read(self, path: str, start: str, marks: Sequence[Mark | None]) -> Run | None:
        """Read a run from its files. JSON is read in a twentieth of the time of YAML."""
        results: Any = files.read_json(Path(start + RESULTS))
        done = complete(results)
        config = results["config"] if done else None
        if marks[0] and not (config and isinstance(config.get("choices"), dict)):
            config = _read_config(start + CONFIG) or config
        if config is None:
            return None
        shared, seed = without_seed(config)
        return Run(
            *(self._outputs, path, str(marks[: len(FINAL)] if done else marks)),
            *(self._configs.setdefault(shared.key, shared), seed),
            command=_read_command(start + COMMAND),
            failure=None if done else _read_failure(start + FAILURE),
            run_id=results["run_id"] if done else None,
            seconds=quantity(results, "seconds") if done else None,
            results=results["metrics"] if done else {},
            metrics=self._metrics(config, start, last_only=done),
        )

    def _metrics(self, config: Mapping[str, Any], start: str, last_only: bool = False) -> Metrics:
        return read_metrics(start + METRICS, quantity(config.get("evaluate"), "every") or 0.0, last_only)

    def _load(self) -> None:
        """Read the cache: lines of configurations, each before those of its runs."""
        for content in cache.load(self._file):
            with contextlib.suppress(LookupError, ValueError):
                if not isinstance(content, dict):
                    run = self._restored(content)
                    self._runs[run.path] = run
                elif isinstance(content.get("choices", {}), dict):
                    config = SharedConfig(as_json(content))
                    self._configs[config.key] = config

    def _restored(self, content: Any) -> Run:
        """The run of a line of the cache.

        Raises:
            LookupError, ValueError: the line is damaged, or that of its configuration.
        """
        kinds = [*map(type, content)] if isinstance(content, list) else []
        if len(kinds) != len(_LINE) or not all(kind in known for kind, known in zip(kinds, _LINE, strict=True)):
            raise ValueError("other types")
        path, marks, config, seed, command, failure, run_id, *numbers, results, best = content
        good = all(0 <= number <= QUANTITY for number in numbers if number is not None)
        if not (
            good and all(map(is_number, results.values())) and all(finite(best, name) is not None for name in best)
        ):
            raise ValueError("other numbers")
        seconds, step, epoch, elapsed, speed = numbers
        metrics = Metrics(step, epoch, elapsed, speed, best)
        seed = None if seed is None else as_json(seed[0])
        shared = self._configs[config]
        return Run(self._outputs, path, marks, shared, seed, command, failure, run_id, seconds, results, metrics)

    def _lines(self) -> Iterable[Any]:
        yield from {run.config.key: json.loads(run.config.text) for run in self._runs.values()}.values()
        for run in self._runs.values():
            last = run.metrics
            yield (
                *(run.path, run.marks, run.config.key, None if run.seed is None else [json.loads(run.seed)]),
                *(run.command, run.failure, run.run_id, run.seconds, last.step, last.epoch, last.seconds, last.speed),
                *(run.results, last.best),
            )


@dataclass(frozen=True)
class Finished:
    """A run with ``results.json``.

    Attributes:
        run_id: as in ``results.json``.
    """

    run_id: str
    _run: Run

    @property
    def folder(self) -> Path:
        """Its directory."""
        return self._run.folder

    @property
    def seed(self) -> int | None:
        """Its seed, if that is an integer."""
        seed = json.loads(self._run.seed or "null")
        return seed if isinstance(seed, int) else None

    @property
    def config_key(self) -> str:
        """Equal for runs that differ in their seed only."""
        return self._run.config.key

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration, with null instead of the seed."""
        return self._run.config.content

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics in ``results.json``."""
        return self._run.results


@no_collection()
def finished(outputs: Path) -> list[Finished]:
    """Every run with a ``results.json`` below a folder, each run_id once, sorted by directory.

    A run needs no ``config.yaml``. The directories inside the directory of a run are not searched.
    """
    first = dict[str, Run]()
    for run in sorted(Runs(outputs).find(), key=lambda run: run.path.split("/")):
        if run.run_id is not None:
            first.setdefault(run.run_id, run)
    return [Finished(run_id, run) for run_id, run in first.items()]


def _read_config(path: str) -> dict[str, Any] | None:
    """A run's configuration; None for any other YAML."""
    config = files.read_yaml(Path(path))
    return config if isinstance(config, dict) and isinstance(config.get("choices"), dict) else None


def _read_command(path: str) -> str | None:
    """A recorded command, quoted as ``shlex.join`` does."""
    try:
        text = files.read_bytes(path, LONGEST_COMMAND).decode().strip()
        return text if _PLAIN(text) else shlex.join(shlex.split(text)) or None
    except (OSError, ValueError):
        return None


def _read_failure(path: str) -> str | None:
    failure: Any = files.read_json(Path(path))
    return one_line(failure.get("reason")) if isinstance(failure, dict) else None


def one_line(reason: Any) -> str:
    """A reason without line breaks and half characters."""
    return " ".join(str(reason or "").split()).encode(errors="replace").decode()


def words(command: str) -> list[str]:
    """The words of a command that ``shlex.join`` made; ``shlex.split`` takes long."""
    return shlex.split(command) if "'" in command else command.split(" ")
