"""Directories of runs, from their files.

``<paths.outputs>/<name>/<run_id>`` has ``config.yaml``, ``command.txt`` and ``metrics.jsonl`` from its start on,
``results.json`` once it is finished, and ``failed.json`` if it has failed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config import anchors, identity
from ssl_bench.errors import in_one_line, one_line, printable
from ssl_bench.files import exists, status
from ssl_bench.record import evaluations, results, rows, units
from ssl_bench.record.lease import Owner

CONFIG, RESULTS, METRICS = "config.yaml", results.NAME, "metrics.jsonl"
COMMAND, FAILURE = "command.txt", "failed.json"
RUN_ID = re.compile(f"[0-9a-f]{{{identity.RUN_ID_DIGITS}}}")
SIZE = "batch_size.size"  # what batch_size says, too
NOT_FLAT = {"paths", "tracking", "choices", "steady", "launcher"}  # keys of a configuration that are no settings
DEEPEST = 4  # folders of a results folder above a run: an experiment's name may have slashes
# What a configuration without a key stands for, by the names of settings.
UNSAID = [(name.partition(".")[0], name, value) for name, value in identity.NOT_HASHED.items() if "." in name]
READ = {"share", "pretrain", "mean", "std", "resize", "interpolation", "epochs", "knn_k"}  # keys of dataset
UNSAID_OPTIONS = {"positives": "view", "similarity": "cosine"}

Key = tuple[str, str, str | None]  # of a number: its metric, the identity of its evaluation, the hash of its images


@dataclass(eq=False)
class Run:
    """A run, as its files were when they were read.

    Attributes:
        folder: its directory; None: a grid has still to begin it.
        config: the resolved configuration; of a training that goes on to more epochs the longer one.
        results: content of ``results.json``; empty without.
        failure: why it has failed, in one line; empty: it has not.
        damaged: which of its files cannot be read, and why; empty: none.
        command: the command that trains it; empty: it was not recorded.
        began: when it was started last, in seconds of the epoch.
        overrides: of its grid; None: it belongs to none.
        grid: the command that started its grid; empty: none.
        asked_by: names of the experiments whose grids asked for it, also where it was trained under another one.
        owner: the process that carries it out.
        lacks: whether it has results without an evaluation that it was asked for since.
    """

    folder: Path | None
    config: Mapping[str, Any]
    results: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    damaged: str = ""
    command: str = ""
    began: float = 0.0
    overrides: Sequence[str] | None = None
    grid: str = ""
    asked_by: set[str] = field(default_factory=set)
    owner: Owner | None = None
    lacks: bool = False

    @property
    def place(self) -> Path:
        """The directory of a run that was begun."""
        assert self.folder is not None
        return self.folder

    @property
    def finished(self) -> bool:
        """Whether it has results, of as many epochs as it was asked for last."""
        return bool(self.results) and self.config.get("epochs") == self.results["config"].get("epochs")

    @cached_property
    def experiment(self) -> str:
        """The name of its experiment: that of the folder, which may have been renamed since the training."""
        if self.folder is None:
            return str(self.settings.get("name") or "default")
        trained, folder = str(self.config.get("name") or ""), os.path.dirname(os.path.abspath(self.folder))
        return trained if trained and folder.endswith(f"/{trained}") else os.path.basename(folder)

    @property
    def seed(self) -> int | None:
        """The seed; None: it has none."""
        return self.settings.get("seed") if self.folder is None else self.config.get("seed")

    @property
    def environment(self) -> dict[str, Any]:
        """What ``results.json`` says about the machine and the versions."""
        return dict(self.results.get("environment", {}))

    @property
    def conditions(self) -> dict[str, Any]:
        """What the bits of its numbers depend on beside its run_id, by name."""
        return results.conditions(self.config, self.environment)

    @property
    def warnings(self) -> list[str]:
        """The sentences in which it warns of its result."""
        return list(self.results.get("warnings", []))

    @property
    def units(self) -> dict[str, Any]:
        """What its metrics mean, as :mod:`ssl_bench.record.units` has it."""
        return dict(self.results.get("units", {}))

    @cached_property
    def progress(self) -> rows.Progress:
        """How far its training is, by its rows."""
        return rows.Progress() if self.folder is None else rows.progress(self.folder / METRICS, self.finished)

    @property
    def end(self) -> float | None:
        """Epoch at which the training ends. With ``max_steps`` it is known after the first row."""
        epochs, most = self.config.get("epochs"), self.config.get("max_steps")
        if epochs is None or most is None:
            return epochs
        at = self.progress
        return min(epochs, most * at.epoch / at.step) if at.step and at.epoch else None

    @property
    def share(self) -> float:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, (self.progress.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def seconds(self) -> float | None:
        """What it took, of an unfinished run so far, in all its processes together."""
        return self.results["seconds"] if self.finished else self.progress.seconds

    @cached_property
    def evaluations(self) -> list[evaluations.Entry]:
        """What has evaluated the network after the last epoch, with the numbers; nothing of an unfinished run."""
        entries = self.results["evaluations"] if self.finished else []
        return evaluations.after(entries, self.config.get("epochs"))

    @cached_property
    def numbers(self) -> dict[Key, float]:
        """The numbers of its networks, each with what made it."""
        entries = self.evaluations
        return {(m, e["id"], e.get("images")): value for e in entries for m, value in e["metrics"].items()}

    @cached_property
    def main(self) -> list[Key]:
        """The main ones of its numbers."""
        names = units.main([metric for metric, *_ in self.numbers], self.units)
        return [key for key in self.numbers if key[0] in names]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings by the names that the command line has for them; ``batch_size`` is the size.

        A network that is not trained has those only that its numbers depend on. A value that is no number, text or
        truth value is written as JSON.
        """
        if not self.config:
            pairs = (word.lstrip("+").partition("=") for word in self.overrides or ())
            given = {name: _value(text) for name, _, text in pairs}
            return given | ({"batch_size": given[SIZE]} if SIZE in given else {})
        seed, counted, choices = self.seed, dict(self.config), dict(self.config.get("choices", {}))
        alone = identity.untrained(self.config) and identity.read_alone(self.config) | identity.NOT_IN_RUN_ID
        for part in (counted, choices):
            for name in [name for name in part if name == "evaluate" or (alone and name not in alone)]:
                del part[name]
        every = {name: value for group, name, value in UNSAID if isinstance(counted.get(group), dict)}
        every |= UNSAID_OPTIONS if "loss" in choices and not alone else {}
        every |= flat({**counted, "choices": choices}) | {"name": self.experiment}
        for name, value in [*every.items()]:
            if type(value) is list:
                every[name] = _as_value(name, value)
            elif name[-5:] == ".seed" and value == seed:
                del every[name]
        return every

    @cached_property
    def requested(self) -> set[str]:
        """The settings that its command sets."""
        words = self.command.replace("'", "").split() if self.command else [*(self.overrides or ())]
        names = (word.partition("=")[0].lstrip("+") for word in words if "=" in word)
        return {"batch_size" if name == SIZE else name for name in names}

    @cached_property
    def recipe(self) -> str:
        """All that its numbers depend on but the seed and the evaluators, as a text: equal for equal trainings."""
        return self.without(())[1]

    def without(self, names: Sequence[str]) -> tuple[str, str]:
        """Some settings that its numbers depend on, with all keys of a group, and the rest of the recipe, as texts."""
        content = {**identity.hashed(without_seed(self.config, self.seed)), "epochs": self.config.get("epochs")}
        content.pop("seed", None)
        named = [_pop(content, name) for name in names]
        return identity.text(named), identity.text(content)

    @cached_property
    def images(self) -> str:
        """The images that it is evaluated on: the data set, its content and size and what is held out.

        Numbers of other images are not compared. How many of them are trained on, and how they are read, is a setting.
        """
        node = identity.hashed({"dataset": self.config.get("dataset")})["dataset"]
        node = node if isinstance(node, Mapping) else {}
        return identity.text({n: v for n, v in node.items() if n not in READ} or self.settings.get("dataset"))


def of_node(function: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Let a function of a name and a node of a configuration be called once for each: most runs share their nodes."""
    known = dict[tuple[str, int], tuple[Any, Any]]()

    def call(name: str, node: Any) -> Any:
        if (name, id(node)) not in known:  # of a node that is kept, so that no other one has its id
            known[name, id(node)] = node, function(name, node)
        return known[name, id(node)][1]

    return call


@of_node
def _leaves(name: str, node: Any) -> dict[str, Any]:
    """The settings in a node of a configuration."""
    return {
        path: printable(value) if isinstance(value, str) else value
        for path, value in evaluations.leaves(node, name)
        if not path.endswith("._target_") and not isinstance(value, Mapping)
    }


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, and the options of its groups, under the names that the command line has."""
    values = dict[str, Any]()
    for name, node in config.items():
        if name not in NOT_FLAT:
            plain = printable(node) if isinstance(node, str) else node
            values |= _leaves(name, node) if isinstance(node, dict | list) else {name: plain}
    values |= {
        group: printable(option) for group, option in config["choices"].items() if group not in ("tracking", "launcher")
    }
    return values | ({"batch_size": values[SIZE]} if SIZE in values else {})


def walk(outputs: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """The folders of a results folder that are no runs, each with the names that runs in it have, and of its files."""
    for above, names, inside in os.walk(outputs, onerror=_name_closed):
        yield above, [*filter(RUN_ID.fullmatch, names)], inside
        deeper = [name for name in names if not RUN_ID.fullmatch(name) and name[0] != "." and name != "wandb"]
        names[:] = deeper if len(Path(above).relative_to(outputs).parts) + 1 < DEEPEST else []


def _name_closed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        files.say_once(f"ssl-bench: {error.filename}: {error.strerror}; runs in there are missing")


def folders(outputs: Path) -> Iterator[Path]:
    """The directories below a results folder that have the name of a run and its configuration or results."""
    for folder in (f"{above}/{name}" for above, names, _ in walk(outputs) for name in names):
        try:
            if not os.path.islink(folder) and (
                os.path.exists(f"{folder}/{RESULTS}") or any(exists(Path(folder, file)) for file in (CONFIG, RESULTS))
            ):
                yield Path(folder)
        except PermissionError as error:
            error.filename = folder
            _name_closed(error)


def read(folder: Path) -> Run:
    """The run in a directory; files that cannot be read, or have values of other kinds, are named in ``damaged``."""
    try:
        run = _read(folder)
        run.settings, run.numbers, float(run.end or 0)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        run = Run(folder, {}, damaged=f"it has a value of another kind ({in_one_line(error)})")
    return run


def _read(folder: Path) -> Run:
    """The run in a directory.

    JSON is read in a twentieth of the time of YAML: of a finished run that was not started again ``config.yaml`` is not
    read.
    """
    content, wrong = results.examined(folder)
    times = [getattr(status(folder / name), "st_mtime", 0.0) for name in (CONFIG, RESULTS)]
    wrong = wrong or "cannot be read" * (content is None and times[1] > 0)
    damaged = {RESULTS: wrong} if wrong else {}
    config: Mapping[str, Any] = content["config"] if content else {}
    failure: Any = None
    lacks = False
    if content is None or times[0] > times[1]:
        asked, wrong = _asked(folder)
        damaged |= {CONFIG: wrong} if wrong else {}
        config = asked if (asked and (asked.get("epochs") or 0) > (config.get("epochs") or 0)) or not config else config
        lacks = bool(content and asked and evaluations.missing(content["evaluations"], asked))
    if content is None or config.get("epochs") != content["config"].get("epochs"):
        failure, _ = files.examined(folder / FAILURE, dict, of_a_run=True)
    reason = one_line(str(failure.get("reason"))) if failure else ""
    named = "; ".join(files.damage(name, wrong) for name, wrong in damaged.items())
    command, began = read_command(folder), times[0] or times[1]
    return Run(folder, config, content or {}, reason, named, command, began, lacks=lacks)


def _asked(folder: Path) -> tuple[Any, str]:
    """The configuration that a run was started with last, and what is wrong in it; the name of its folder is its id."""
    config, wrong = files.examined(folder / CONFIG, dict, anchors.as_json, of_a_run=True)
    given = identity.run_id(config) if config else folder.name
    wrong = wrong if given == folder.name else f"it is that of run {given}"
    return ({}, wrong or "cannot be read") if wrong or not config else (results.shared(config), "")


def without_seed(node: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """``node`` with null in place of each ``seed`` that has this value."""
    return {
        key: without_seed(value, seed) if isinstance(value, dict) else None if (key, value) == ("seed", seed) else value
        for key, value in node.items()
    }


def _pop(node: dict[str, Any], name: str) -> Any:
    """Remove a setting from a configuration and return it."""
    *groups, key = name.split(".")
    for group in groups:
        if not isinstance(inner := node.get(group), dict):
            return None
        node[group] = node = dict(inner)
    return node.pop(key, None)


def read_command(folder: Path) -> str:
    """The command that trains a run; empty: it was not recorded."""
    try:
        return files.read_bytes(files.of_run(f"{folder}/{COMMAND}")).decode(errors="surrogateescape").strip()
    except OSError:
        return ""


def as_value(value: Any) -> Any:
    """A number, a truth value, a text or None as it is; anything else as JSON in one line."""
    plain = value is None or isinstance(value, str | int | float)
    return value if plain else json.dumps(value, separators=(",", ":"), default=str)


_as_value = of_node(lambda name, node: as_value(node))


def _value(text: str) -> Any:
    """The value in an override: a number (64 of ``b64``), a truth value, None, or else the text itself."""
    try:
        return as_value(json.loads(re.sub(r"^b(?=\d+$)", "", text)))
    except ValueError:
        return text
