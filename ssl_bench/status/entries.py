"""An entry of the table: a run, or a run that a grid has still to make; its state and the time left."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.claim import Owner
from ssl_bench.record.results import complete
from ssl_bench.status.configs import Configs, SharedConfig
from ssl_bench.status.follow import QUANTITY, Mark, MetricsFile, accuracies, find_mark, finite, quantity
from ssl_bench.status.grids import GridFolder

_PLAIN = re.compile(r"[\w@%+=:,./-]+( [\w@%+=:,./-]+)*", re.ASCII).fullmatch  # a command that needs no quotes


class Status(str, Enum):
    """State of an entry.

    ``RUNNING``: the process that owns the run is alive. ``WAITING``: a grid at work has still to start the run.
    ``PARTIAL``: the run was begun and has no owner; ``ssl-bench train`` resumes it.
    """

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PARTIAL = "partial"
    FAILED = "failed"


URGENT = (Status.RUNNING, Status.FAILED, Status.PARTIAL, Status.WAITING, Status.DONE)  # most urgent first


CONFIG, COMMAND, RESULTS, FAILURE = "config.yaml", "command.txt", "results.json", "failed.json"
METRICS = "metrics.jsonl"
LONGEST_COMMAND = 2**18  # bytes: shlex needs a second for a million
FILES = (CONFIG, COMMAND, RESULTS, FAILURE, METRICS)


class RunFolder:
    """A run's directory, as its files were when they were last read.

    Args:
        outputs: the results folder.
        path: of the directory, relative to ``outputs``.

    Attributes:
        parent: the directory's parent, relative to ``outputs``.
        mark, marks: of the directory and of each of ``FILES``; None: there is no such file.
        config, seed: the configuration without its seed, and the seed as JSON.
        epochs, max_steps, batch_size, span: settings; ``span`` is the number of epochs between two evaluations.
        began: time of change of ``config.yaml``, in seconds of the epoch; None: there is only ``results.json``.
        command: the command that trains it, if it was recorded.
        done: whether it has whole results.
        run_id, results: the run_id and the metrics in ``results.json``, the latter as JSON; None if it is not done.
        seconds: time that the whole run took; None before it is done.
        failure: why it failed, in one line; None: it has not failed.
        owner: the process that carries it out.
        fixed: whether it is finished and only its directory has to be looked at to see whether it has changed.
        stored: whether the index has it as it is.
    """

    config: SharedConfig
    seed: str | None
    done: bool
    seconds: float | None
    run_id: str | None
    results: str | None
    owner: Owner | None = None
    # As the index has them. What is made of them is made when it is needed, which it seldom is for a finished run.
    last: tuple[float | None, ...] = ()
    best_json = final_json = "{}"

    def __init__(self, outputs: str, path: str) -> None:
        self._outputs, self.path, self.parent = outputs, path, path.rpartition("/")[0]
        self.mark: Mark | None = None
        self.marks: dict[str, Mark | None] = {}
        self.began: float | None = None
        self.command: str | None = None
        self.failure: str | None = None
        self.fixed = self.stored = False

    @property
    def changed(self) -> float:
        """Last time of change of its files, in seconds of the epoch."""
        return max(mark[0] for mark in (self.mark, *self.marks.values()) if mark) / 1e9

    @classmethod
    def restored(cls, outputs: str, attributes: Iterable[tuple[str, Any]]) -> RunFolder:
        """Make a run from the attributes in the index."""
        run = cls.__new__(cls)
        run.__dict__.update(attributes)
        run._outputs, run.parent = outputs, run.path.rpartition("/")[0]
        return run

    @cached_property
    def folder(self) -> Path:
        """The directory."""
        return Path(self._outputs, self.path)

    @cached_property
    def metrics(self) -> MetricsFile:
        """Rows of ``metrics.jsonl``."""
        return MetricsFile.restored_from(self.span, (*self.last, json.loads(self.best_json)), self.marks.get(METRICS))

    @cached_property
    def final(self) -> dict[str, float]:
        """A finished run's accuracies, or all its metrics if it trained no network."""
        final: dict[str, float] = json.loads(self.final_json)
        return final

    def update(self, configs: Configs, mark: Mark) -> bool:
        """Read what has changed; return whether there is a run.

        Args:
            configs: where the configuration is kept.
            mark: present mark of the directory.
        """
        start = f"{self._outputs}/{self.path}/" if self.path else f"{self._outputs}/"
        marks = {name: find_mark(start + name) for name in FILES}
        if not marks[CONFIG] and not marks[RESULTS]:
            return False
        changed = set() if marks == self.marks else {n for n in FILES if marks[n] != self.marks.get(n)}
        self.stored = self.stored and not changed and mark == self.mark
        self.marks, self.mark = marks, mark
        if changed & {CONFIG, RESULTS}:
            if not self._read(configs, start):
                return False
            changed = {*FILES}
        if COMMAND in changed:
            self.command = _read_command(start + COMMAND)
        if FAILURE in changed:
            self.failure = None if self.done else _read_failure(start + FAILURE)
        self.owner = None if self.done else claim.owner(self.folder)
        if self.owner and self.metrics.restored:
            self.metrics = MetricsFile(self.span)  # the rate is needed, which was not stored
        self.metrics.update(start + METRICS, marks[METRICS], last_only=self.done)
        return True

    def _read(self, configs: Configs, start: str) -> bool:
        """Read the configuration and the results. JSON is read in a twentieth of the time of YAML."""
        results: Any = files.read_json(Path(start + RESULTS)) if self.marks[RESULTS] else None
        self.done = complete(results)
        written = self.marks[CONFIG]
        config = results["config"] if self.done else None
        if written and not (config and isinstance(config.get("choices"), dict)):
            config = _read_config(start + CONFIG) or config
        if config is None:
            return False
        self.began = written[0] / 1e9 if written else None
        self.config, self.seed = configs.add(config)
        self.epochs, self.max_steps = quantity(config, "epochs"), quantity(config, "max_steps")
        self.batch_size = quantity(config.get("batch_size"), "size")
        self.span = quantity(config.get("evaluate"), "every") or 0.0
        self.metrics = MetricsFile(self.span)
        self.seconds = quantity(results, "seconds") if self.done else None
        metrics: dict[str, Any] = results["metrics"] if self.done else {}
        self.run_id, self.results = (results["run_id"], json.dumps(metrics)) if self.done else (None, None)
        numbers = {name: value for name in metrics if (value := finite(metrics, name)) is not None}
        self.final = accuracies(metrics) if "evaluate" in config else numbers
        return True

    @property
    def end(self) -> float | None:
        """Epoch at which the training ends. With ``max_steps`` it is known after the first row."""
        if self.epochs is None or self.max_steps is None:
            return self.epochs
        step, epoch = self.metrics.step, self.metrics.epoch
        return min(self.epochs, self.max_steps * epoch / step) if step and epoch else None

    @property
    def share(self) -> float:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, (self.metrics.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def training_seconds(self) -> float | None:
        """Time that the whole training takes at its present rate."""
        rate = self.metrics.rate(self.batch_size)
        return self.end / rate if rate and self.end and self.end < QUANTITY * rate else None


@dataclass(slots=True)
class Entry:
    """A run, or a run that a grid has still to make.

    Attributes:
        run: its directory, if there is one.
        grid: the grid that it belongs to, if there is one.
        index: of the run in the grid.
        left: seconds until a running one is done, if that is known.
    """

    run: RunFolder | None
    grid: GridFolder | None
    index: int
    state: Status
    left: float | None = None

    @property
    def group(self) -> Any:
        """Its grid; a single run is a group of its own."""
        return self.grid or self.run

    @property
    def overrides(self) -> list[str] | None:
        """Its overrides in the grid."""
        return self.grid.runs[self.index] if self.grid else None

    @property
    def command(self) -> str | None:
        """The command that trains only this run; None if it was not recorded."""
        recorded = self.run.command if self.run else None
        return recorded or (self.grid.commands[self.index] if self.grid else None)

    @property
    def best(self) -> dict[str, float]:
        """A finished run's accuracies, or all its metrics if it trained no network; else the best so far."""
        if self.run is None:
            return {}
        return self.run.final if self.run.done else self.run.metrics.best

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if self.state is not Status.FAILED:
            return ""
        if self.run and self.run.failure is not None:
            return self.run.failure
        return _one_line(self.grid.records[self.index].reason) if self.grid and self.index in self.grid.records else ""


def estimate(entries: Sequence[Entry], now: float) -> float | None:
    """Set ``left`` of the running entries of one grid; return the seconds until the grid is done, if they are known.

    The training of a run takes T = epochs / rate. The rate is taken over its last rows, evaluations included. The final
    evaluation takes E, the mean time of the finished runs after their last row. W is the mean over what finished runs
    took and what running ones will take, T + E. R are the seconds left of each running entry.

        left of a running entry = T (1 - share done) + E - time since its last row, or W - time since its start
        left of the grid = max(longest of R, (sum of R + sum of W (1 - share done) of the waiting ones) / |R|)
    """
    done = [entry.run for entry in entries if entry.state is Status.DONE and entry.run]
    running = [entry for entry in entries if entry.state is Status.RUNNING]
    waiting = [entry.run.share if entry.run else 0.0 for entry in entries if entry.state is Status.WAITING]
    after = [max(0.0, run.seconds - run.metrics.seconds) for run in done if run.seconds and run.metrics.seconds]
    evaluation = mean(after) if after else 0.0
    whole = [run.seconds for run in done if run.seconds]
    whole += [e.run.training_seconds + evaluation for e in running if e.run and e.run.training_seconds is not None]
    usual = mean(whole) if whole else None
    for entry in running:
        run = entry.run
        assert run is not None and run.owner is not None
        if run.training_seconds is not None:
            left = run.training_seconds * (1 - run.share) + evaluation
            entry.left = max(0.0, left - max(0.0, now - max(run.metrics.changed, run.owner.since))) if left else None
        elif usual is not None:
            entry.left = max(0.0, usual - max(0.0, now - run.owner.since))
    known = [entry.left for entry in running if entry.left is not None]
    if not (running or waiting) or len(known) < len(running) or (waiting and usual is None):
        return None
    rest = sum(usual * (1 - share) for share in waiting) if usual is not None else 0.0
    return max([*known, (sum(known) + rest) / max(1, len(running))])


def words(command: str) -> list[str]:
    """The words of a command that ``shlex.join`` made; ``shlex.split`` takes long."""
    return shlex.split(command) if "'" in command else command.split(" ")


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
    return _one_line(failure.get("reason")) if isinstance(failure, dict) else None


def _one_line(reason: Any) -> str:
    return " ".join(str(reason or "").split()).encode(errors="replace").decode()
